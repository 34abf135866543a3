"""The directory in which a corpus is prepared, `OUTPUT.partial`, locked by one process at a time.

It holds the stage, whose files become the corpus in one rename, and the spool, which is deleted
afterwards. A preparation that is killed leaves the spool or the corpus, or in the last moment both.
"""

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator

from etils import epath

from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote, locked, make_directory, remove_empty
from data_pipelines.vocabulary.sentencepiece_tokenizer import MODEL_FILE
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE
from data_pipelines.vocabulary.vocab_file import VOCAB_FILE

_PARTIAL = ".partial"
_SHARD = re.compile(r"(?:train|eval)-\d{5,}-of-\d{5,}\.tokens")
# The files written after the shards, also under the names that `atomic_write` gives them.
_LATER_FILES = "|".join(map(re.escape, (VOCAB_FILE, MODEL_FILE, CONFIG_FILE, MANIFEST)))
_LATER_FILE = re.compile(rf"(?:{_LATER_FILES})(?:\.[0-9a-f]{{8}}\.partial)?")


@contextlib.contextmanager
def staging_directory(output: epath.Path, resume: bool = False) -> Iterator[epath.Path]:
    """Yield an empty directory that becomes `output`, or what it links to, if the block succeeds.

    A remote file system cannot rename a directory: there the block writes into `output` itself, and
    the files of an interrupted preparation are deleted before.

    Args:
      output: a directory that does not exist or is empty.
      resume: keep the spool of an interrupted preparation.

    Raises:
      InputError: `output` is not empty or has no name, or another process prepares it.
    """
    if is_remote(output):
        leftovers = check_output(output)
        output.mkdir(parents=True, exist_ok=True)
        for leftover in leftovers:
            leftover.unlink()
        yield output
        return
    target = epath.Path(os.path.realpath(output))  # on its disk, where a rename can replace it
    work = target.with_name(target.name + _PARTIAL)
    created = make_directory(target.parent)
    problem = (
        f"{output}: another process prepares this corpus. Wait for it, or choose another output "
        "directory."
    )
    with contextlib.ExitStack() as stack:
        stack.callback(remove_empty, created)
        stack.enter_context(locked(work.with_name(f"{work.name}.lock"), problem))
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
        os.replace(stage, target)
        work.rmtree()


@contextlib.contextmanager
def spool_directory(stage: epath.Path) -> Iterator[pathlib.Path]:
    """Yield the local directory of the spool; it is temporary if the stage is remote."""
    if is_remote(stage):
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory) / "spool"
    else:
        yield pathlib.Path(stage).with_name("spool")


def is_in_output(source: str, output: epath.Path) -> bool:
    """Return whether an input is a file of the output, which may lie in a directory of inputs."""
    if is_remote(output):
        return source.startswith(f"{output}/")
    path, directory = os.path.realpath(source), os.path.realpath(output)
    work = f"{directory}{_PARTIAL}"
    return path == f"{work}.lock" or path.startswith((f"{directory}/", f"{work}/"))


def check_output(output: epath.Path) -> list[epath.Path]:
    """Return the files that an interrupted preparation left in a remote output.

    Shards are the last: without one, the other names may be those of a user's vocabulary.

    Raises:
      InputError: the output is a file or a mount point, has no name, or contains other files.
    """
    if not is_remote(output) and output.name in ("", ".."):  # it is renamed from one beside it
        raise InputError(f"{output}: not the name of a new directory. Choose one, such as corpus.")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file. Choose another output directory.")
    if not is_remote(output) and os.path.ismount(os.path.realpath(output)):
        raise InputError(
            f"{output}: a mount point, which cannot be renamed. Name a new directory in it."
        )
    files = list(output.iterdir()) if output.is_dir() else []
    if not files:
        return []
    is_corpus = (output / MANIFEST).exists()
    shards = [file for file in files if _SHARD.fullmatch(file.name)]
    later_files = [file for file in files if _LATER_FILE.fullmatch(file.name)]
    is_known = len(shards) + len(later_files) == len(files)
    is_interrupted = is_known and bool(shards) and not any(file.is_dir() for file in files)
    if is_corpus or not is_remote(output) or not is_interrupted:
        content = "a finished corpus" if is_corpus else "other files"
        path = output if is_remote(output) else epath.Path(os.path.realpath(output))
        work = path.with_name(path.name + _PARTIAL)
        left = f" {work} is left of its preparation: delete it." if work.exists() else ""
        raise InputError(
            f"{output}: already contains {content}. Choose another output directory, or delete "
            f"this one.{left}"
        )
    return [*later_files, *shards]
