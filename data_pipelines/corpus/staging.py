"""The directory in which a corpus is prepared, `OUTPUT.partial`, locked by one process at a time.

It holds the stage, whose files become the corpus in one rename, and the spool, which is deleted
afterwards. A preparation that is killed at any moment leaves either the spool or the corpus.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from etils import epath

from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote, locked, make_directory, remove_empty

_PARTIAL = ".partial"


@contextlib.contextmanager
def staging_directory(output: epath.Path, resume: bool = False) -> Iterator[epath.Path]:
    """Yield an empty directory that becomes `output` if the block succeeds.

    A remote file system cannot rename a directory: there the block writes into `output` itself.

    Args:
      output: a directory that does not exist or is empty.
      resume: keep the spool of an interrupted preparation.

    Raises:
      InputError: `output` is not empty, or another process prepares it.
    """
    if is_remote(output):
        _check_output(output)
        output.mkdir(parents=True, exist_ok=True)
        for leftover in output.iterdir():
            leftover.unlink()
        yield output
        return
    work = output.with_name(output.name + _PARTIAL)
    created = make_directory(output.parent)
    problem = (
        f"{output}: another process prepares this corpus. Wait for it, or choose another output "
        "directory."
    )
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, created)
        stack.enter_context(locked(work.with_name(f"{work.name}.lock"), problem))
        if (output / MANIFEST).exists() and work.exists():  # killed between the last two lines
            work.rmtree()
        _check_output(output)
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
    """Yield the local directory of the spool; it is temporary if the stage is remote."""
    if is_remote(stage):
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory) / "spool"
    else:
        yield pathlib.Path(stage).with_name("spool")


def _check_output(output: epath.Path) -> None:
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file. Choose another output directory.")
    unfinished = is_remote(output) and not (output / MANIFEST).exists()
    if output.is_dir() and not unfinished and any(output.iterdir()):
        content = "a finished corpus" if (output / MANIFEST).exists() else "other files"
        raise InputError(
            f"{output}: already contains {content}. Choose another output directory, or delete "
            "this one."
        )
