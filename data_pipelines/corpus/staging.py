"""Where a corpus is made before it is one: `OUTPUT.partial`, which one process has at a time.

In it are the stage, whose files become the corpus all at once, and the spool, which is deleted
after that: a preparation that is killed at any moment has either the spool or the corpus.
"""

import contextlib
import fcntl
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import IO

from etils import epath

from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

_PARTIAL = ".partial"


@contextlib.contextmanager
def staging_directory(output: epath.Path, resume: bool = False) -> Iterator[epath.Path]:
    """An empty directory for what shall be `output`: it appears when the block ends, and only then.

    With `resume`, what an earlier try left in the spool is still there.

    Raises:
      InputError: `output` already holds something, or another process is preparing it.
    """
    if is_remote(output):
        check_output(output)
        output.mkdir(parents=True, exist_ok=True)
        for leftover in output.iterdir():
            leftover.unlink()
        yield output
        return
    work = output.with_name(output.name + _PARTIAL)
    with _locked(output, work.with_name(f"{work.name}.lock")):
        check_output(output)
        stage = work / "corpus"
        for leftover in (stage, *([] if resume else [work])):
            if leftover.exists():
                leftover.rmtree()
        stage.mkdir(parents=True)
        try:
            yield stage
        except BaseException:
            stage.rmtree()
            if not any(work.iterdir()):
                work.rmdir()
            raise
        os.replace(stage, output)
        work.rmtree()


@contextlib.contextmanager
def spool_directory(stage: epath.Path) -> Iterator[pathlib.Path]:
    """Where the spool is: a local directory, of which only that of a local stage stays."""
    if is_remote(stage):
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory) / "spool"
    else:
        yield pathlib.Path(stage).with_name("spool")


def check_output(output: epath.Path) -> None:
    """Refuse an output that holds something (InputError)."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; choose another output directory.")
    unfinished = is_remote(output) and not (output / MANIFEST).exists()
    if output.is_dir() and not unfinished and any(output.iterdir()):
        held = "a finished corpus" if (output / MANIFEST).exists() else "other files"
        raise InputError(
            f"{output} already holds {held}; choose another output directory or delete it first."
        )


@contextlib.contextmanager
def _locked(output: epath.Path, path: epath.Path) -> Iterator[None]:
    """Holds the lock on a file, which ends with the process if not before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(path, "ab") as file:
            _lock(output, file)
            if not _is_same_file(path, file):
                continue  # who held it has deleted it
            try:
                yield
            finally:
                path.unlink()
            return


def _lock(output: epath.Path, file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"{output} is being prepared by another process; wait for it, or choose another "
            "output directory."
        ) from None


def _is_same_file(path: epath.Path, file: IO[bytes]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False
