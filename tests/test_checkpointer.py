"""Checkpoints: saved in the background, restored bit-identical, verified by digests."""

import json
import math
import pathlib
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.checkpointing.checkpointer import Checkpointer, CheckpointError
from bertjax.checkpointing.integrity import delete_checkpoint, find_damage
from bertjax.checkpointing.lookup import find_checkpoint, find_unverified_checkpoint
from bertjax.checkpointing.parameters import check_params, load_params
from bertjax.checkpointing.retention import write_scores
from bertjax.faults import InjectedFaultError, inject_fault
from bertjax.mesh import distributed
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import sharded_shapes
from bertjax.steps.train_step import TrainState
from data_pipelines.errors import InputError


def make_state(step: int) -> TrainState:
    draw = np.random.Generator(np.random.Philox(key=step))
    params = {
        "encoder": {"embeddings": {"word": jnp.asarray(draw.normal(size=(16, 8)), jnp.float32)}},
        "bias": jnp.asarray(draw.normal(size=5), jnp.float32),
    }
    window = {"loss": (jnp.float32(step), jnp.float32(1))}
    return TrainState(jnp.int32(step), params, optax.adam(1e-3).init(params), window)


def write_metadata(path) -> None:
    (path / "vocab.txt").write_text("[PAD]\n")


@pytest.fixture
def target():
    return sharded_shapes(make_mesh(1, 1, 1, jax.devices()[:1]), make_state(0))


@pytest.fixture
def checkpoints(tmp_path: pathlib.Path) -> Checkpointer:
    checkpoints = Checkpointer(tmp_path / "workdir" / "checkpoints", max_to_keep=2)
    for step in (10, 20):
        checkpoints.save(make_state(step), write_metadata)
    checkpoints.wait_until_finished()
    return checkpoints


def equal(a: TrainState, b: TrainState) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def arrays_of(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(f for f in pathlib.Path(path).rglob("*") if f.is_file() and f.parent.name == "d")


def test_restore_returns_the_newest_state_bit_identical(checkpoints, target) -> None:
    assert equal(checkpoints.restore(target), make_state(20))


def test_restore_returns_none_without_checkpoints(tmp_path, target) -> None:
    assert Checkpointer(tmp_path / "none").restore(target) is None


def test_restore_places_a_state_on_another_mesh(checkpoints) -> None:
    mesh = make_mesh(2, 4, 1)
    state = checkpoints.restore(sharded_shapes(mesh, make_state(0)))
    assert equal(state, make_state(20))
    word = state.params["encoder"]["embeddings"]["word"]
    assert len({str(shard.index) for shard in word.addressable_shards}) == 8


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


def test_retention_keeps_the_newest_and_multiples_of_keep_period(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=2, keep_period=20)
    for step in range(5, 51, 5):
        checkpoints.save(make_state(step), write_metadata)
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [20, 40, 45, 50]


def test_retention_keeps_the_first_checkpoint_after_each_multiple(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path, 1, keep_period=1.0, progress_at=lambda step: step / 10)
    for step in range(4, 45, 4):
        checkpoints.save(make_state(step), write_metadata)
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [12, 20, 32, 40, 44]


def _truncate(path: pathlib.Path) -> None:
    largest = max(arrays_of(path), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])


def _empty(path: pathlib.Path) -> None:
    for file in arrays_of(path):
        file.write_bytes(b"")


def _flip(path: pathlib.Path) -> None:
    largest = max(arrays_of(path), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


DAMAGES = {
    "truncated": (_truncate, "bytes instead of"),
    "emptied": (_empty, "has 0 bytes"),
    "one bit flipped": (_flip, "has changed"),
    "arrays missing": (lambda path: shutil.rmtree(path / "params"), "is missing"),
    "vocabulary missing": (lambda path: (path / "vocab.txt").unlink(), "vocab.txt is missing"),
    "list emptied": (lambda path: (path / "files.json").write_text(""), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_restore_logs_a_damaged_checkpoint_and_uses_the_one_before(
    checkpoints, target, caplog, damage: str
) -> None:
    apply, symptom = DAMAGES[damage]
    apply(pathlib.Path(checkpoints.path(20)))
    assert symptom in find_damage(checkpoints.path(20))
    assert equal(checkpoints.restore(target), make_state(10))
    assert "00000020 is damaged" in caplog.text and symptom in caplog.text


def evaluate(checkpoints: Checkpointer, step: int, scores: dict[str, float]) -> None:
    """Save as a run does after an evaluation; without scores a checkpoint is due anyway."""

    def write_metadata(path) -> None:
        (path / "config.json").write_text(json.dumps({"best_metric": checkpoints.best_metric}))
        if scores:
            write_scores(path, scores)

    if not scores or checkpoints.is_best(step, scores):
        checkpoints.save(make_state(step), write_metadata)


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("accuracy", [0.5, 0.7, 0.9, 0.8, 0.6], 3),
        ("accuracy", [0.9, 0.9, 0.1, math.inf, math.nan], 1),  # the first of equals
        ("dev/loss", [0.5, 0.7, 0.2, 0.8, 0.6], 3),
        ("mlm_perplexity", [math.nan, 9, 8, 7, 6], 5),
        ("mse", [math.inf, 3, -math.inf, 4, 5], 2),
    ],
)
def test_retention_keeps_the_best_for_use_and_the_newest_to_resume(
    name: str, values: list[float], best: int, tmp_path, target
) -> None:
    for step, value in enumerate(values, 1):
        # A new object for each evaluation: its state is in the files.
        evaluate(
            checkpoints := Checkpointer(tmp_path / "checkpoints", 1, 0, name), step, {name: value}
        )
        checkpoints.wait_until_finished()
    evaluate(checkpoints, 6, {})
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [best, 6]
    assert (
        find_checkpoint(tmp_path) == find_unverified_checkpoint(tmp_path) == checkpoints.path(best)
    )
    assert equal(checkpoints.restore(target), make_state(6))


def test_find_checkpoint_returns_the_newest_without_best_metric(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path / "checkpoints", max_to_keep=2)
    for step in (1, 2):
        checkpoints.save(
            make_state(step), lambda path, step=step: write_scores(path, {"f1": -step})
        )
    assert not checkpoints.is_best(3, {"f1": 100.0})
    checkpoints.wait_until_finished()
    assert find_checkpoint(tmp_path) == checkpoints.path(2)


@pytest.fixture
def with_best(tmp_path) -> Checkpointer:
    """Checkpoints of steps 1 and 2; the first is the best."""
    checkpoints = Checkpointer(tmp_path / "checkpoints", best_metric="f1")
    evaluate(checkpoints, 1, {"f1": 0.5})
    evaluate(checkpoints, 2, {})
    checkpoints.wait_until_finished()
    return checkpoints


def test_find_checkpoint_logs_a_damaged_best_and_returns_the_newest(with_best, caplog) -> None:
    assert find_checkpoint(with_best.directory.parent) == with_best.path(1)
    _flip(pathlib.Path(with_best.path(1)))
    assert find_checkpoint(with_best.directory.parent) == with_best.path(2)
    assert "00000001 is damaged" in caplog.text


def test_is_best_compares_with_earlier_steps_only(with_best) -> None:
    """Later ones are damaged if a run resumes from an earlier one."""
    evaluate(with_best, 9, {"f1": 0.9})
    assert with_best.is_best(5, {"f1": 0.6})
    assert not with_best.is_best(5, {"f1": 0.5})


def test_is_best_waits_for_a_save_in_progress(with_best) -> None:
    go = threading.Event()
    with_best.save(make_state(3), lambda path: go.wait() and write_scores(path, {"f1": 0.7}))
    threading.Timer(0.2, go.set).start()
    assert not with_best.is_best(4, {"f1": 0.6})


def test_is_best_returns_what_process_0_decides(with_best, monkeypatch) -> None:
    for answer in (0, 1):
        monkeypatch.setattr(
            distributed, "broadcast_from_process_0", lambda make, size, answer=answer: (answer,)
        )
        assert with_best.is_best(5, {"f1": 0.1}) == bool(answer)


def test_is_best_rejects_an_unknown_score_and_lists_the_scores(with_best) -> None:
    with pytest.raises(
        InputError, match=r"best_metric='f1': is not a score .* one of loss, exact\."
    ):
        with_best.is_best(3, {"loss": 1.0, "exact": 0.5})


def test_restore_ignores_an_unfinished_checkpoint(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    assert checkpoints.all_steps() == [10]
    assert equal(checkpoints.restore(target), make_state(10))


def test_save_replaces_an_unfinished_checkpoint(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    (checkpoints.path(20) / "rest").write_text("of a killed save")
    checkpoints.save(make_state(20), write_metadata)
    checkpoints.wait_until_finished()
    assert equal(checkpoints.restore(target), make_state(20))
    assert not (checkpoints.path(20) / "rest").exists()


def test_delete_unfinished_deletes_what_killed_saves_left(checkpoints) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    left = checkpoints.directory / "00000030.orbax-checkpoint-tmp" / "params"
    left.mkdir(parents=True)
    (checkpoints.directory / "notes").mkdir()
    checkpoints.delete_unfinished()
    assert {path.name for path in checkpoints.directory.iterdir()} == {"00000010", "notes"}


def test_delete_unfinished_ignores_directories_of_others(checkpoints) -> None:
    names = ("20261127-export", "20261127", "00000030", "30", "00000030.backup")
    for name in names:
        (checkpoints.directory / name).mkdir()
        (checkpoints.directory / name / "model.bin").write_text("of a user")
    checkpoints.delete_unfinished()
    checkpoints.save(make_state(40), write_metadata)
    checkpoints.wait_until_finished()
    left = {path.name for path in checkpoints.directory.iterdir()}
    assert left == {"00000020", "00000040", *names}


def test_save_does_not_replace_a_directory_of_others(checkpoints) -> None:
    checkpoints.path(30).mkdir()
    (checkpoints.path(30) / "model.bin").write_text("of a user")
    with pytest.raises(CheckpointError, match=r"00000030: .*exists and is not a checkpoint"):
        checkpoints.save(make_state(30), write_metadata)
    assert (checkpoints.path(30) / "model.bin").exists()


@pytest.mark.parametrize("point", ["save.after_write", "save.after_manifest"])
def test_save_that_fails_leaves_an_intact_checkpoint(
    point: str, tmp_path: pathlib.Path, target
) -> None:
    """Even if only one is kept: the old one is deleted after the new one is verified."""
    checkpoints = Checkpointer(tmp_path, max_to_keep=1)
    with inject_fault(f"{point}:2=raise"):
        checkpoints.save(make_state(10), write_metadata)
        checkpoints.save(make_state(20), write_metadata)
        with pytest.raises((CheckpointError, InjectedFaultError), match=f"injected at {point}"):
            checkpoints.wait_until_finished()
    expected = {"save.after_write": [10], "save.after_manifest": [10, 20]}[point]
    assert checkpoints.all_steps() == expected
    assert equal(Checkpointer(tmp_path).restore(target), make_state(expected[-1]))


def test_interrupted_deletion_is_completed(checkpoints) -> None:
    with inject_fault("delete.after_manifest=raise"), pytest.raises(InjectedFaultError):
        delete_checkpoint(checkpoints.path(10))
    assert checkpoints.all_steps() == [20] and checkpoints.path(10).exists()
    checkpoints.delete_unfinished()
    assert {path.name for path in checkpoints.directory.iterdir()} == {"00000020"}


def test_retention_ignores_a_later_damaged_checkpoint(tmp_path, target) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=1, keep_period=10)
    for step in (10, 20, 15):
        checkpoints.save(make_state(step), write_metadata)
        checkpoints.wait_until_finished()
        if step == 20:
            _truncate(pathlib.Path(checkpoints.path(20)))
    assert equal(checkpoints.restore(target), make_state(15))


def _with_window(target: TrainState, *names: str) -> TrainState:
    return target._replace(window=dict.fromkeys(names, target.window["loss"]))


def test_restore_returns_sums_since_the_last_log_by_name(tmp_path, target) -> None:
    checkpoints = Checkpointer(tmp_path)
    third = jnp.float32(1) / 3
    window = {"loss": (third, jnp.float32(7)), "dropped": (jnp.float32(1), jnp.float32(1))}
    checkpoints.save(make_state(10)._replace(window=window), write_metadata)
    checkpoints.wait_until_finished()
    found = checkpoints.restore(_with_window(target, "loss", "new")).window
    assert jax.device_get(found) == {"loss": (np.float32(1) / 3, 7), "new": (0, 0)}


def test_restore_raises_if_no_checkpoint_is_intact(checkpoints, target) -> None:
    for step in (10, 20):
        _truncate(pathlib.Path(checkpoints.path(step)))
    with pytest.raises(CheckpointError, match=r"checkpoints: no checkpoint is intact\. Restore"):
        checkpoints.restore(target)


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


def test_pop_finished_raises_the_error_of_a_failed_save(checkpoints) -> None:
    checkpoints.save(make_state(30), lambda path: (path / "none" / "file").write_text(""))
    checkpoints.close()
    with pytest.raises(CheckpointError, match="checkpoint of step 30 could not be written"):
        checkpoints.pop_finished()
    assert checkpoints.all_steps() == [10, 20]


def test_finished_save_is_kept_if_another_process_is_lost(checkpoints, target, monkeypatch) -> None:
    def lose(what: str) -> None:
        if what == "checkpoint-end":
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: a host is gone")

    monkeypatch.setattr(distributed, "sync_processes", lose)
    with pytest.raises(jax.errors.JaxRuntimeError):
        checkpoints.save(make_state(30), write_metadata)
        checkpoints.wait_until_finished()
    assert equal(checkpoints.restore(target), make_state(30))


def test_load_params_reads_parameters_alone(checkpoints, target) -> None:
    params = load_params(find_checkpoint(checkpoints.directory.parent), target.params)
    np.testing.assert_array_equal(params["bias"], make_state(20).params["bias"])


def test_find_checkpoint_takes_a_workdir_or_a_checkpoint(checkpoints) -> None:
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(20)
    assert find_checkpoint(checkpoints.path(10)) == checkpoints.path(10)
    _truncate(pathlib.Path(checkpoints.path(20)))
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(10)
    with pytest.raises(CheckpointError, match="is damaged"):
        find_checkpoint(checkpoints.path(20))


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
        check_params(checkpoints.path(20), other)
