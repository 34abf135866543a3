"""The directory beside an output in which it is made, held by one process at a time."""

import contextlib
import os
from collections.abc import Iterator

from etils import epath

from bertjax.workdir.lock import LOCK_FILE, WorkdirLock
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote, remove_empty


@contextlib.contextmanager
def exclusive_draft(output: epath.Path, option: str) -> Iterator[WorkdirLock]:
    """Yield the lock of OUTPUT.partial; the block moves a file or directory from it to `output`.

    OUTPUT.partial is deleted at the end. After an error it remains, unless it is empty.

    Args:
      output: new file, or new or empty directory.
      option: argument that names it, for errors.

    Raises:
      InputError: `output` exists, or another process makes it.
    """
    draft = output.with_name(f"{output.name}.partial")
    problem = InputError(f"{output}: exists. Name another {option}, or remove it.")
    # The lock is deleted last, so a draft with one may be what a killed process left.
    if _exists(output) and not (draft / LOCK_FILE).exists():
        remove_empty([draft])
        raise problem
    with held_draft(draft, option) as lock:
        is_new = not _exists(output)
        if is_new:
            yield lock
    if not is_new:
        raise problem


@contextlib.contextmanager
def held_draft(draft: epath.Path, option: str) -> Iterator[WorkdirLock]:
    """Yield the lock of a directory, which is deleted at the end with all that is in it.

    After an error it remains, unless it is empty.

    Args:
      draft: the directory; it is created.
      option: argument that names the output, for errors.

    Raises:
      InputError: another process holds the directory.
    """
    with WorkdirLock(draft, option) as lock:
        yield lock
        lock.confirm()
        for path in draft.iterdir():
            if path.is_dir():
                path.rmtree()
            elif not path.name.startswith(LOCK_FILE):
                path.unlink()
    remove_empty([draft])


@contextlib.contextmanager
def new_directory(output: epath.Path, option: str) -> Iterator[epath.Path]:
    """Yield an empty directory, which becomes `output` at the end of the block.

    After an error nothing of it remains.

    Args:
      output: new or empty directory.
      option: argument that names it, for errors.

    Raises:
      InputError: `output` is not empty, cannot be replaced, or another process makes it.
    """
    if not is_remote(output) and (
        os.path.islink(output) or os.path.ismount(output) or not output.name
    ):
        raise InputError(
            f"{output}: a link, a mount point or the current directory, which cannot be replaced. "
            f"Name a new directory for {option}, such as {output / 'model'}."
        )
    with exclusive_draft(output, option) as lock:
        draft = lock.workdir / "model"
        if draft.exists():
            draft.rmtree()
        draft.mkdir()
        try:
            yield draft
            lock.confirm()
            if output.exists():
                output.rmdir()
            draft.rename(output)
        except BaseException:
            with contextlib.suppress(Exception):  # which would hide the error
                lock.confirm()  # else the draft is that of another process
                draft.rmtree(missing_ok=True)
            raise


def _exists(output: epath.Path) -> bool:
    return output.exists() and (not output.is_dir() or any(output.iterdir()))
