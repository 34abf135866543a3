"""Files and directories that a user names, to read from and to write to."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write, check_file, is_remote
from data_pipelines.text import lines


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """The option that names the model of a verb, ours or a published one."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="a checkpoint or a workdir, or a model of Hugging Face or TF1",
    )


def read_lines(path: str) -> Iterator[str]:
    """The lines of a file as they come, with their ends; it may be compressed, and "-" is standard
    input.

    Raises:
      InputError: there is no such file, or, once that is read, a line is not UTF-8.
    """
    if path == "-":
        return _standard_input()
    return _with_ends(lines.read_lines(check_file(path), _refuse))


def _standard_input() -> Iterator[str]:
    try:
        for number, line in enumerate(sys.stdin):
            yield line if number else line.removeprefix("\ufeff")  # a byte-order mark
    except UnicodeDecodeError as error:
        raise InputError(f"- is not UTF-8 ({error}): convert it first.") from error


def _with_ends(parts: Iterator[str]) -> Iterator[str]:
    """Lines, from what stands before, between and after their ends."""
    before = next(parts)
    for part in parts:
        yield f"{before}\n"
        before = part
    if before:
        yield before


def _refuse(complaint: InputError) -> None:
    raise complaint


@contextlib.contextmanager
def output(path: str) -> Iterator[TextIO]:
    """A file that replaces `path` once everything is written, "-" being standard output.

    Raises:
      InputError: see `check_output`.
    """
    if path == "-":
        yield sys.stdout
        return
    check_output(path)
    with atomic_write(path) as draft, draft.open("w") as file:
        yield file


def check_output(path: epath.PathLike) -> None:
    """Refuses a file that cannot be written where it is to lie, before the work that fills it.

    Raises:
      InputError: it is a directory, or is to lie in one that does not exist or in which the system
        makes all files, or is something else that a file would replace, such as a device.
    """
    path = epath.Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file in it.")
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        raise InputError(
            f"{path} is no file, and one would replace it: name another, or - to print."
        )
    if not is_remote(path) and not path.parent.is_dir():
        raise InputError(f"{path} is to lie in {path.parent}, which is no directory: make it.")
    _refuse_system_directory(path)


def check_directory(path: epath.PathLike, name: str) -> None:
    """Refuses a directory, which may still be to make, where it or what it lies in is a file.

    Raises:
      InputError: it says of which argument, by its `name`; or a link leads nowhere, or it lies
        where the system makes all files.
    """
    path = epath.Path(path)
    _refuse_system_directory(path)
    # A bucket has no directories, in which something could lie.
    for place in [path] if is_remote(path) else [path, *path.parents]:
        if os.path.islink(place) and not place.exists():
            raise InputError(f"{place} is a link to what does not exist: make that directory.")
        if place.exists():
            if not place.is_dir():
                lies = "is" if place == path else f"lies in {place}, which is"
                raise InputError(f"{name}={path} {lies} a file: name a directory.")
            return


def _refuse_system_directory(path: epath.Path) -> None:
    """Refuses where even root is told, on writing, that the directory does not exist."""
    place = "/" if is_remote(path) else "/".join(os.path.realpath(path).split("/")[:2])
    if place in ("/proc", "/sys"):
        raise InputError(f"{path} lies in {place}, where no files can be made: name another place.")


def as_json(content: object, indent: int | None = None) -> str:
    """In JSON, of which half of a surrogate pair is escaped, which UTF-8 cannot hold."""
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def check_buckets(argv: Sequence[str]) -> None:
    """Refuses a bucket that does not exist: tensorflow would try for ever to write into it."""
    for bucket in sorted(set(re.findall(r"gs://[^/,\s]+", " ".join(argv)))):
        try:
            exists = epath.Path(bucket).exists()
        except bucket_errors():  # who may use its objects may not always look at the bucket itself
            continue
        if not exists:
            raise InputError(f"there is no bucket {bucket}: name one that exists.")


def bucket_errors() -> tuple[type[Exception], ...]:
    """What tensorflow raises where a bucket lets us do too little; they are no OSErrors."""
    if "tensorflow" not in sys.modules:
        return ()
    from tensorflow import errors

    return errors.PermissionDeniedError, errors.UnauthenticatedError
