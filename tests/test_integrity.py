"""Damage of checkpoints, which is not an error of a storage, and what killed commands left."""

import errno
import os

import pytest
from checkpoint_states import equal, make_state, save, state_target
from etils import epath

from bertjax.checkpointing import integrity
from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError
from bertjax.checkpointing.integrity import UnreadableError, find_damage, is_unfinished
from bertjax.checkpointing.lookup import find_checkpoint

pytestmark = pytest.mark.seconds


@pytest.fixture
def checkpoints(tmp_path, monkeypatch) -> Checkpointer:
    """The checkpoints of steps 10 and 20."""
    monkeypatch.setattr(integrity, "_RETRY_SECONDS", (0.0, 0.0))
    checkpoints = Checkpointer(tmp_path / "workdir" / "checkpoints", max_to_keep=2)
    save(checkpoints, 10, 20)
    return checkpoints


class Storage:
    """Errors of a storage in functions that read from paths which contain a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text, self.count = "", 0
        for module, name in ((os, "stat"), (os, "listdir"), (integrity, "file_digest")):
            monkeypatch.setattr(module, name, self._fail_first(getattr(module, name)))

    def fail(self, text: str, count: int) -> None:
        """Let the next `count` reads of a path that contains a text fail."""
        self.text, self.count = text, count

    def _fail_first(self, read):
        def call(path, *arguments, **options):
            if self.count and isinstance(path, os.PathLike | str) and self.text in str(path):
                self.count -= 1
                raise OSError(errno.ETIMEDOUT, "Connection timed out", str(path))
            return read(path, *arguments, **options)

        return call


@pytest.fixture
def storage(checkpoints, monkeypatch) -> Storage:
    return Storage(monkeypatch)


FILES = ["00000020/vocab.txt", "00000020/files.json", "workdir/checkpoints"]


@pytest.mark.parametrize("file", FILES)
def test_restore_tries_again_where_a_storage_fails_once(checkpoints, storage, file, caplog) -> None:
    storage.fail(file, 1)
    assert equal(checkpoints.restore(state_target()), make_state(20))
    assert storage.count == 0 and not caplog.records


@pytest.mark.parametrize("file", FILES)
def test_restore_raises_where_a_storage_fails(checkpoints, storage, file) -> None:
    """A run that falls back to step 10, or starts at step 0, would lose what is intact."""
    storage.fail(file, 1000)
    message = rf"{file}: cannot be read \(.*Connection timed out.*\)\. Run the same command again"
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore(state_target())
    storage.fail("", 0)
    assert checkpoints.all_steps() == [10, 20]


def test_delete_unfinished_keeps_a_checkpoint_whose_storage_fails(
    checkpoints, storage, caplog
) -> None:
    storage.fail("00000020/files.json", 1000)
    checkpoints.delete_unfinished()
    storage.fail("", 0)
    assert checkpoints.all_steps() == [10, 20]
    assert "00000020: not deleted: " in caplog.text and "Connection timed out" in caplog.text


def test_find_damage_distinguishes_a_storage_that_fails_from_damage(checkpoints, storage) -> None:
    path = checkpoints.path(20)
    storage.fail("00000020/vocab.txt", 1000)
    with pytest.raises(UnreadableError, match=r"vocab\.txt: cannot be read"):
        find_damage(path)
    storage.fail("", 0)
    assert find_damage(path) is None
    (path / "vocab.txt").unlink()
    assert find_damage(path) == "vocab.txt is missing"


def test_find_checkpoint_takes_another_one_where_a_storage_fails(
    checkpoints, storage, caplog
) -> None:
    workdir = checkpoints.directory.parent
    storage.fail("00000020/vocab.txt", 1000)
    assert find_checkpoint(workdir) == checkpoints.path(10)
    assert "00000020/vocab.txt: cannot be read" in caplog.text
    with pytest.raises(
        CheckpointError, match=r"vocab\.txt: cannot be read .* Run the same command"
    ):
        find_checkpoint(checkpoints.path(20))
    storage.fail("vocab.txt", 1000)
    with pytest.raises(
        CheckpointError, match=r"vocab\.txt: cannot be read .* Run the same command"
    ):
        find_checkpoint(workdir)


def test_deletion_that_was_killed_before_its_last_call_does_not_block_the_step(checkpoints) -> None:
    left = checkpoints.path(30)
    left.mkdir()
    assert is_unfinished(left)
    save(checkpoints, 30)
    assert equal(checkpoints.restore(state_target()), make_state(30))
    checkpoints.path(40).mkdir()
    checkpoints.delete_unfinished()
    assert not checkpoints.path(40).exists()
    file = epath.Path(checkpoints.directory / "00000050")
    file.write_text("of a user")
    assert not is_unfinished(file)
