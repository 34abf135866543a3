"""Checks of files and directories that a user names, and access to them."""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from bertjax.errors import CommandError
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed
from data_pipelines.paths import as_path, atomic_write, check_expanded, check_file, is_remote

if TYPE_CHECKING:
    from etils import epath

# Arguments whose values are texts or names of fields, in which gs:// is no path.
_ARGUMENTS_WITH_TEXT = ("text", "field", "license")


def add_checkpoint(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the argument `--checkpoint`."""
    parser.add_argument(
        "--checkpoint",
        required=required,
        metavar="DIR",
        help="checkpoint or workdir, or a model directory of Hugging Face or TF1"
        + ("" if required else " (none)"),
    )
    add_task(parser)


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add `--task`, whose module is imported before the subcommand runs."""
    parser.add_argument(
        "--task",
        metavar="MODULE:CLASS",
        help="task of your own that the model was trained for; its code runs (a built-in task)",
    )


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, with their ends.

    Args:
      path: file, which may be compressed; "-" for standard input.

    Raises:
      InputError: the file does not exist, or a line that was read is not UTF-8.
    """
    if path == "-":
        return _standard_input()
    from data_pipelines.text import lines

    return _with_ends(lines.read_lines(check_file(path)))


def find_inputs(pattern: str) -> list[str]:
    """Return the files of `--input` for several processes: of a name, a directory or a pattern.

    Raises:
      InputError: there is none, or it is standard input.
    """
    from data_pipelines.text.sources import match_files

    if pattern == "-":
        raise InputError("--input=-: processes cannot share it. Name files that all of them read.")
    return [str(path) for path in match_files(str(as_path(pattern)))]


def _standard_input() -> Iterator[str]:
    try:
        for number, line in enumerate(sys.stdin):
            yield line if number else line.removeprefix("\ufeff")  # a byte-order mark
    except UnicodeDecodeError as error:
        raise InputError(f"-: not UTF-8 ({error}). Convert it.") from error


def _with_ends(parts: Iterator[str]) -> Iterator[str]:
    """Yield lines with their ends from the texts before, between and after the ends."""
    previous = next(parts)
    for part in parts:
        yield f"{previous}\n"
        previous = part
    if previous:
        yield previous


@contextlib.contextmanager
def open_output(path: str) -> Iterator[TextIO]:
    """Open a file that replaces `path` once everything is written; "-" is standard output.

    Raises:
      InputError: see `check_output`.
    """
    if path == "-":
        yield sys.stdout
        return
    check_output(path)
    with atomic_write(path) as draft, draft.open("w") as file:
        yield file


def check_output(path: "epath.PathLike") -> None:
    """Check that a file can be written, before the work whose result it holds.

    Raises:
      InputError: the path is a directory or a device, or has an unexpanded `~`. Or its directory
        does not exist, is not writable, belongs to the system (/proc, /sys, /dev), or is a
        checkpoint.
    """
    from etils import epath

    check_expanded(path)
    path = epath.Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory. Name a file in it.")
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        raise InputError(
            f"{path}: not a regular file, and would be replaced. Name another, or - to print."
        )
    if not is_remote(path) and not path.parent.is_dir():
        raise InputError(f"{path}: {path.parent} is not a directory. Create it.")
    _refuse_system_directory(path)
    _refuse_checkpoint(path.parent)
    _check_writable(path.parent, f"{path}", "directory")


def check_new_file(path: str) -> None:
    """Raise InputError if the file of `--output` exists."""
    from etils import epath

    if epath.Path(path).is_file():
        raise InputError(f"--output={path}: exists. Name another file, or remove it.")


def check_directory(path: "epath.PathLike", name: str) -> None:
    """Check that a directory exists and is writable, or can be created.

    Args:
      path: the directory.
      name: argument that names it, for the error.

    Raises:
      InputError: the path or one of its parents is a file or a dangling link, or belongs to the
        system (/proc, /sys, /dev), or it is a checkpoint. Or it has an unexpanded `~`, or the
        nearest directory that exists is not writable.
    """
    from etils import epath

    check_expanded(path)
    path = epath.Path(path)
    _refuse_system_directory(path)
    _refuse_checkpoint(path)
    # A bucket has no directories that could be files.
    for place in [path] if is_remote(path) else [path, *path.parents]:
        if os.path.islink(place) and not place.exists():
            raise InputError(f"{place}: dangling link. Create the directory that it names.")
        if place.exists():
            if not place.is_dir():
                problem = "is a file" if place == path else f"{place} is a file"
                raise InputError(f"{name}={path}: {problem}. Name a directory.")
            _check_writable(place, f"{name}={path}", name)
            return


def _check_writable(directory: "epath.Path", problem: str, name: str) -> None:
    """Check that this account may create files in a local directory.

    Args:
      directory: the directory, which exists.
      problem: path or argument with its value, for the error.
      name: what to replace, for the error.

    Raises:
      InputError: it may not.
    """
    if not is_remote(directory) and not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(
            f"{problem}: not writable (no permission for {directory}). Use another {name}, or one "
            "that this account may write to."
        )


def _refuse_system_directory(path: "epath.Path") -> None:
    """Raise InputError for a path in /proc, /sys or /dev, whose files are not ordinary ones.

    The path itself counts, and what links lead to: /dev/stdout may be a link to a file.
    """
    for absolute in [] if is_remote(path) else [os.path.abspath(path), os.path.realpath(path)]:
        place = "/".join(absolute.split("/")[:2])
        if place in ("/proc", "/sys", "/dev"):
            raise InputError(f"{path}: no files can be created in {place}. Name another place.")


def _refuse_checkpoint(directory: "epath.Path") -> None:
    """Raise InputError for a checkpoint, which another file would damage."""
    from bertjax.checkpointing.integrity import MANIFEST_FILE

    if (directory / MANIFEST_FILE).exists():
        raise InputError(f"{directory}: is a checkpoint. Name another directory.")


def report_lost_pooling(source: str, target: str) -> None:
    """Print the settings of embeddings that a conversion or an export left out, if there are any.

    Args:
      source: model directory, checkpoint or workdir.
      target: directory or file without them.
    """
    from bertjax.formats.loading import describe_pooling

    if settings := describe_pooling(source):
        print(
            f"{target} has no pooling configuration: give `bertjax embed` {source}. Not kept: "
            f"{settings}."
        )


def as_json(content: object, indent: int | None = None) -> str:
    """Return JSON in which lone surrogates, which UTF-8 cannot hold, are escaped.

    Raises:
      CommandError: a number is not finite, which JSON cannot express.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise CommandError(
            f"a result is not finite ({error}). Check the parameters of the model."
        ) from error
    return text.encode(errors="backslashreplace").decode()


def check_buckets(args: argparse.Namespace, extra: Sequence[str]) -> None:
    """Check the buckets of the paths in some arguments.

    Args:
      args: parsed arguments.
      extra: arguments that the parser does not know, such as `--config.data.dir=gs://...`.

    Raises:
      InputError: a bucket does not exist, which tensorflow would retry for ever, or no installed
        library reads buckets.
      CommandError: a bucket cannot be reached.
    """
    for bucket in sorted(_find_buckets(args, extra)):
        from etils import epath

        if importlib.util.find_spec("gcsfs") is None:  # etils uses it if tensorflow is missing
            check_installed(bucket, "tensorflow", install="tensorflow-cpu")
        try:
            exists = epath.Path(bucket).exists()
        except _permission_errors():  # access to objects does not imply access to the bucket itself
            continue
        except _access_errors() as error:
            raise CommandError(
                f"{bucket}: cannot be reached ({error}). Check the network and its proxy."
            ) from error
        if not exists:
            raise InputError(f"{bucket}: no such bucket. Name one that exists.")


def _find_buckets(args: argparse.Namespace, extra: Sequence[str]) -> set[str]:
    """Return the buckets at the start of arguments, or of values after `=`, `,` or `+` in them."""
    words: list[object] = [*extra]
    for name, value in vars(args).items():
        if name not in ("argv", *_ARGUMENTS_WITH_TEXT):
            words += value if isinstance(value, list) else [value]
    return {
        bucket
        for word in words
        if isinstance(word, str)
        for bucket in re.findall(r"(?:^|[=,+])['\"]?(gs://[^/,+\s'\"]+)", word)
    }


def _permission_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for missing permissions in a bucket."""
    if not sys.modules.get("tensorflow"):
        return (PermissionError,)
    from tensorflow import errors

    return PermissionError, errors.PermissionDeniedError, errors.UnauthenticatedError


def _access_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for buckets that cannot be accessed."""
    return OSError, *bucket_errors()


def bucket_errors() -> tuple[type[Exception], ...]:
    """Return tensorflow's exceptions for buckets that cannot be accessed, which are no OSErrors."""
    if not sys.modules.get("tensorflow"):
        return ()
    from tensorflow import errors

    return (
        errors.PermissionDeniedError,
        errors.UnauthenticatedError,
        errors.FailedPreconditionError,  # such as a name that is not resolved
        errors.UnavailableError,
        errors.DeadlineExceededError,
        errors.AbortedError,
    )
