"""Where a corpus is made before it is one: a directory beside it, of one process at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import IO

from etils import epath

from data_pipelines.corpus.records import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

_PARTIAL = ".partial"


@contextlib.contextmanager
def stage_for(output: epath.Path, resumes: bool = False) -> Iterator[epath.Path]:
    """Where to write what shall be `output`: it appears when the block ends, and only then.

    With `resumes`, what an earlier try left there is still there, but after bad input.

    Raises:
      InputError: `output` already holds something, or another process is preparing it.
    """
    if is_remote(output):
        check_output(output)
        output.mkdir(parents=True, exist_ok=True)
        yield output
        return
    stage = output.with_name(output.name + _PARTIAL)
    with _locked(output, stage.with_name(f"{stage.name}.lock")):
        check_output(output)
        if stage.exists() and not resumes:
            stage.rmtree()  # of a preparation that was killed
        stage.mkdir(parents=True, exist_ok=True)
        try:
            yield stage
            os.replace(stage, output)
        except BaseException as error:
            if not resumes or isinstance(error, InputError):
                stage.rmtree()
            raise


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
            if not _is_at(path, file):
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


def _is_at(path: epath.Path, file: IO[bytes]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    return False
