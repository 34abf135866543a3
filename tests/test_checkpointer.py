"""Checkpoints: saved in the background, restored bit-identical, verified by digests."""

import errno
import pathlib
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_states import (
    arrays_of,
    equal,
    flip_bit,
    make_state,
    save,
    state_target,
    truncate,
    write_metadata,
)
from etils import epath

from bertjax.checkpointing import checkpointer
from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError
from bertjax.checkpointing.integrity import delete_checkpoint, find_damage, is_unfinished
from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.checkpointing.parameters import check_params, load_params
from bertjax.errors import LockLostError
from bertjax.faults import InjectedFaultError, inject_fault
from bertjax.mesh import distributed
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import sharded_shapes
from bertjax.steps.train_step import TrainState
from data_pipelines.errors import InputError


@pytest.fixture
def target():
    return state_target()


@pytest.fixture
def checkpoints(tmp_path: pathlib.Path) -> Checkpointer:
    checkpoints = Checkpointer(tmp_path / "workdir" / "checkpoints", max_to_keep=2)
    save(checkpoints, 10, 20)
    return checkpoints


@pytest.mark.seconds
def test_restore_returns_the_newest_state_bit_identical(checkpoints, target) -> None:
    assert equal(checkpoints.restore(target), make_state(20))


def test_restore_returns_none_without_checkpoints(tmp_path, target) -> None:
    assert Checkpointer(tmp_path / "none").restore(target) is None


@pytest.mark.seconds
def test_restore_places_a_state_on_another_mesh(checkpoints) -> None:
    mesh = make_mesh(2, 4, 1)
    state = checkpoints.restore(sharded_shapes(mesh, make_state(0)))
    assert equal(state, make_state(20))
    word = state.params["encoder"]["embeddings"]["word"]
    assert len({str(shard.index) for shard in word.addressable_shards}) == 8


@pytest.mark.seconds
def test_save_runs_while_training_changes_the_state(checkpoints, target) -> None:
    go = threading.Event()
    state = make_state(30)
    checkpoints.save(state, lambda path: go.wait() and write_metadata(path))
    for leaf in jax.tree.leaves(jax.jit(lambda s: jax.tree.map(jnp.zeros_like, s))(state)):
        leaf.block_until_ready()
    jax.tree.map(lambda leaf: leaf.delete(), state)
    assert checkpoints.all_steps() == [10, 20]
    checkpoints.pop_finished()
    go.set()
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [20, 30]
    assert equal(checkpoints.restore(target), make_state(30))


@pytest.mark.seconds
def test_save_waits_for_the_save_before(checkpoints) -> None:
    go = threading.Event()
    checkpoints.save(make_state(30), lambda path: go.wait() and None)
    second = threading.Thread(target=checkpoints.save, args=(make_state(40), write_metadata))
    second.start()
    second.join(0.3)
    assert second.is_alive() and not checkpoints.path(40).exists()
    go.set()
    second.join()
    assert 30 in checkpoints.all_steps()
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [30, 40]


def _empty(path: pathlib.Path) -> None:
    for file in arrays_of(path):
        file.write_bytes(b"")


DAMAGES = {
    "truncated": (truncate, "bytes instead of"),
    "emptied": (_empty, "has 0 bytes"),
    "one bit flipped": (flip_bit, "has changed"),
    "arrays missing": (lambda path: shutil.rmtree(path / "params"), "is missing"),
    "vocabulary missing": (lambda path: (path / "vocab.txt").unlink(), "vocab.txt is missing"),
    "list emptied": (lambda path: (path / "files.json").write_text(""), "files.json: not JSON"),
}


@pytest.mark.seconds
@pytest.mark.parametrize("damage", DAMAGES)
def test_restore_logs_a_damaged_checkpoint_and_uses_the_one_before(
    checkpoints, target, caplog, damage: str
) -> None:
    apply, symptom = DAMAGES[damage]
    apply(pathlib.Path(checkpoints.path(20)))
    assert symptom in find_damage(checkpoints.path(20))
    assert equal(checkpoints.restore(target), make_state(10))
    assert "00000020 is damaged" in caplog.text and symptom in caplog.text


@pytest.mark.seconds
def test_restore_ignores_an_unfinished_checkpoint(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    assert checkpoints.all_steps() == [10]
    assert equal(checkpoints.restore(target), make_state(10))


@pytest.mark.seconds
def test_save_replaces_an_unfinished_checkpoint(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    (checkpoints.path(20) / "rest").write_text("of a killed save")
    save(checkpoints, 20)
    assert equal(checkpoints.restore(target), make_state(20))
    assert not (checkpoints.path(20) / "rest").exists()


@pytest.mark.seconds
def test_delete_unfinished_deletes_what_killed_saves_left(checkpoints) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    left = checkpoints.directory / "00000030.orbax-checkpoint-tmp" / "params"
    left.mkdir(parents=True)
    (checkpoints.directory / "notes").mkdir()
    checkpoints.delete_unfinished()
    assert {path.name for path in checkpoints.directory.iterdir()} == {"00000010", "notes"}


@pytest.mark.seconds
def test_delete_unfinished_ignores_directories_of_others(checkpoints) -> None:
    names = ("20261127-export", "20261127", "00000030", "30", "00000030.backup")
    for name in names:
        (checkpoints.directory / name).mkdir()
        (checkpoints.directory / name / "model.bin").write_text("of a user")
    checkpoints.delete_unfinished()
    save(checkpoints, 40)
    left = {path.name for path in checkpoints.directory.iterdir()}
    assert left == {"00000020", "00000040", *names}


@pytest.mark.seconds
def test_save_does_not_replace_a_directory_of_others(checkpoints) -> None:
    checkpoints.path(30).mkdir()
    (checkpoints.path(30) / "model.bin").write_text("of a user")
    with pytest.raises(CheckpointError, match=r"00000030: .*exists and is not a checkpoint"):
        checkpoints.save(make_state(30), write_metadata)
    assert (checkpoints.path(30) / "model.bin").exists()


@pytest.mark.seconds
@pytest.mark.parametrize("point", ["save.after_write", "save.after_manifest"])
def test_save_that_fails_leaves_an_intact_checkpoint(
    point: str, tmp_path: pathlib.Path, target
) -> None:
    """Even if only one is kept: the old one is deleted after the new one is verified."""
    checkpoints = Checkpointer(tmp_path, max_to_keep=1)
    errors = (CheckpointError, InjectedFaultError)
    with inject_fault(f"{point}:2=raise"), pytest.raises(errors, match=f"injected at {point}"):
        save(checkpoints, 10, 20)
    expected = {"save.after_write": [10], "save.after_manifest": [10, 20]}[point]
    assert checkpoints.all_steps() == expected
    assert equal(Checkpointer(tmp_path).restore(target), make_state(expected[-1]))


@pytest.mark.seconds
@pytest.mark.parametrize("point", ["start", "end", "error"])
def test_run_that_has_lost_its_workdir_writes_and_deletes_nothing(
    point: str, tmp_path: pathlib.Path, target
) -> None:
    """Checkpoints, and those that are being saved, are those of its successor."""
    lost = threading.Event()

    def confirm() -> None:
        if lost.is_set():
            raise LockLostError("taken by another run")

    def write(path: epath.Path) -> None:
        write_metadata(path)
        lost.set()
        if point == "error":
            raise OSError("the disk is full")

    checkpoints = Checkpointer(tmp_path, max_to_keep=1, confirm=confirm)
    save(checkpoints, 10)
    (tmp_path / "00000025").mkdir()  # what another run saves, with Orbax's mark
    (tmp_path / "00000025" / "_CHECKPOINT_METADATA").touch()
    assert is_unfinished(epath.Path(tmp_path / "00000025"))
    if point == "start":
        lost.set()
    with pytest.raises(LockLostError):
        checkpoints.save(make_state(20), write)
        checkpoints.wait_until_finished()
    assert checkpoints.path(10).exists() and (tmp_path / "00000025").exists()
    assert checkpoints.all_steps() == [10]


@pytest.mark.seconds
def test_interrupted_deletion_is_completed(checkpoints) -> None:
    with inject_fault("delete.after_manifest=raise"), pytest.raises(InjectedFaultError):
        delete_checkpoint(checkpoints.path(10))
    assert checkpoints.all_steps() == [20] and checkpoints.path(10).exists()
    checkpoints.delete_unfinished()
    assert {path.name for path in checkpoints.directory.iterdir()} == {"00000020"}


def _with_metric_sums(target: TrainState, *names: str) -> TrainState:
    return target._replace(metric_sums=dict.fromkeys(names, target.metric_sums["loss"]))


@pytest.mark.seconds
def test_restore_returns_sums_since_the_last_log_by_name(tmp_path, target) -> None:
    checkpoints = Checkpointer(tmp_path)
    third = jnp.float32(1) / 3
    metric_sums = {"loss": (third, jnp.float32(7)), "dropped": (jnp.float32(1), jnp.float32(1))}
    checkpoints.save(make_state(10)._replace(metric_sums=metric_sums), write_metadata)
    checkpoints.wait_until_finished()
    found = checkpoints.restore(_with_metric_sums(target, "loss", "new")).metric_sums
    assert jax.device_get(found) == {"loss": (np.float32(1) / 3, 7), "new": (0, 0)}


def test_restore_raises_if_no_checkpoint_is_intact(checkpoints, target) -> None:
    for step in (10, 20):
        truncate(pathlib.Path(checkpoints.path(step)))
    with pytest.raises(CheckpointError, match=r"checkpoints: no checkpoint is intact\. Restore"):
        checkpoints.restore(target)


@pytest.mark.seconds
def test_failed_save_leaves_earlier_checkpoints_and_nothing_else(checkpoints, target) -> None:
    def full(path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(
        CheckpointError, match=r"00000030: the checkpoint of step 30 .* No space left on device"
    ):
        checkpoints.save(make_state(30), full)
        checkpoints.wait_until_finished()
    assert not checkpoints.path(30).exists()
    assert checkpoints.all_steps() == [10, 20]
    assert equal(checkpoints.restore(target), make_state(20))


@pytest.mark.seconds
def test_failed_save_names_the_reason_and_the_file(checkpoints) -> None:
    def exceed(path: epath.Path) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path / "config.json"))

    with pytest.raises(CheckpointError, match=r"\(.*Disk quota exceeded: '.*/config\.json'\)"):
        checkpoints.save(make_state(30), exceed)
        checkpoints.wait_until_finished()


@pytest.mark.seconds
def test_old_checkpoint_that_cannot_be_deleted_is_a_warning(
    tmp_path, target, monkeypatch, caplog
) -> None:
    def fail(path: epath.Path) -> None:
        if path.name == "00000010" and path.exists():
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        delete_checkpoint(path)

    checkpoints = Checkpointer(tmp_path, max_to_keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "delete_checkpoint", fail)
        save(checkpoints, 10, 20, 30)
        checkpoints.delete_old(30)  # as at the start of a run
    finished = [path.name for path in checkpoints.pop_finished()]
    assert finished == ["00000010", "00000020", "00000030"] and checkpoints.all_steps() == [10, 30]
    assert "00000010: not deleted: [Errno 39] Directory not empty" in caplog.text
    checkpoints.delete_old(30)
    assert checkpoints.all_steps() == [30]


@pytest.mark.seconds
def test_unfinished_checkpoint_that_cannot_be_deleted_is_a_warning(
    checkpoints, monkeypatch, caplog
) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    (checkpoints.path(10) / "files.json").unlink()

    def fail(path: epath.Path) -> None:
        if path.name == "00000010":
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        delete_checkpoint(path)

    monkeypatch.setattr(checkpointer, "delete_checkpoint", fail)
    checkpoints.delete_unfinished()
    assert "00000010: not deleted: [Errno 116] Stale file handle" in caplog.text
    assert [path.name for path in checkpoints.directory.iterdir()] == ["00000010"]


@pytest.mark.seconds
def test_pop_finished_raises_the_error_of_a_failed_save(checkpoints) -> None:
    checkpoints.save(make_state(30), lambda path: (path / "none" / "file").write_text(""))
    checkpoints.close()
    with pytest.raises(CheckpointError, match="checkpoint of step 30 could not be written"):
        checkpoints.pop_finished()
    assert checkpoints.all_steps() == [10, 20]


@pytest.mark.seconds
def test_finished_save_is_kept_if_another_process_is_lost(checkpoints, target, monkeypatch) -> None:
    def lose(what: str) -> None:
        if what == "checkpoint-end":
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: a host is gone")

    monkeypatch.setattr(distributed, "sync_processes", lose)
    with pytest.raises(jax.errors.JaxRuntimeError):
        save(checkpoints, 30)
    assert equal(checkpoints.restore(target), make_state(30))


def test_load_params_reads_parameters_alone(checkpoints, target) -> None:
    params = load_params(find_checkpoint(checkpoints.directory.parent), target.params)
    np.testing.assert_array_equal(params["bias"], make_state(20).params["bias"])


@pytest.mark.seconds
def test_find_checkpoint_takes_a_workdir_or_a_checkpoint(checkpoints) -> None:
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(20)
    assert find_checkpoint(checkpoints.path(10)) == checkpoints.path(10)
    truncate(pathlib.Path(checkpoints.path(20)))
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(10)
    with pytest.raises(CheckpointError, match="is damaged"):
        find_checkpoint(checkpoints.path(20))


@pytest.mark.seconds
def test_find_checkpoint_does_not_verify_training_state(checkpoints, target) -> None:
    shutil.rmtree(pathlib.Path(checkpoints.path(20)) / "training")
    for named in (checkpoints.directory.parent, checkpoints.path(20)):
        assert find_checkpoint(named) == checkpoints.path(20)
    assert equal(checkpoints.restore(target), make_state(10))


def test_find_checkpoint_rejects_a_path_without_checkpoints(tmp_path) -> None:
    with pytest.raises(InputError, match="neither a checkpoint nor a workdir"):
        find_checkpoint(tmp_path)


def test_check_params_rejects_another_model(checkpoints) -> None:
    other = make_state(0).params | {"bias": jnp.zeros(6)}
    with pytest.raises(ValueError, match=r"bias has shape \(5,\), and \(6,\) in"):
        check_params(checkpoints.path(20), other, make_state(20).params)
