"""Checkpoints: written beside training, they come back to the last bit, and damage is noticed."""

import json
import math
import pathlib
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from bertjax.checkpointing.best import write_scores
from bertjax.checkpointing.checkpointer import (
    Checkpointer,
    CheckpointError,
    find_checkpoint,
    find_unverified_checkpoint,
)
from bertjax.checkpointing.integrity import find_damage, mark_finished
from bertjax.checkpointing.parameters import check_params, load_params
from bertjax.mesh import distributed
from bertjax.mesh.sharding import make_mesh, sharded_shapes
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
    found = Checkpointer(tmp_path / "workdir" / "checkpoints", max_to_keep=2)
    for step in (10, 20):
        found.save(make_state(step), write_metadata)
    found.wait_until_finished()
    return found


def equal(a: TrainState, b: TrainState) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def arrays_of(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(f for f in pathlib.Path(path).rglob("*") if f.is_file() and f.parent.name == "d")


def test_the_newest_state_comes_back_to_the_last_bit(checkpoints, target) -> None:
    assert equal(checkpoints.restore(target), make_state(20))


def test_nothing_comes_back_where_nothing_is(tmp_path, target) -> None:
    assert Checkpointer(tmp_path / "none").restore(target) is None


def test_a_state_comes_back_on_another_mesh(checkpoints) -> None:
    mesh = make_mesh(2, 4, 1)
    state = checkpoints.restore(sharded_shapes(mesh, make_state(0)))
    assert equal(state, make_state(20))
    word = state.params["encoder"]["embeddings"]["word"]
    assert len({str(shard.index) for shard in word.addressable_shards}) == 8


def test_training_goes_on_and_changes_the_state_while_it_is_written(checkpoints, target) -> None:
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


def test_a_save_waits_for_the_one_before(checkpoints) -> None:
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


def test_only_the_newest_and_the_milestones_are_kept(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=2, keep_period=20)
    for step in range(5, 51, 5):
        checkpoints.save(make_state(step), write_metadata)
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [20, 40, 45, 50]


def test_of_multiples_that_are_no_checkpoint_the_next_one_is_kept(tmp_path) -> None:
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
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    checkpoints, target, caplog, damage: str
) -> None:
    apply, symptom = DAMAGES[damage]
    apply(pathlib.Path(checkpoints.path(20)))
    assert symptom in find_damage(checkpoints.path(20))
    assert equal(checkpoints.restore(target), make_state(10))
    assert "00000020 is damaged" in caplog.text and symptom in caplog.text


def evaluate(checkpoints: Checkpointer, step: int, scores: dict[str, float]) -> None:
    """What a run does with an evaluation; where it has no scores a checkpoint is due without."""

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
        ("accuracy", [0.9, 0.9, 0.1, math.inf, math.nan], 1),  # of equals the first
        ("dev/loss", [0.5, 0.7, 0.2, 0.8, 0.6], 3),
        ("mlm_perplexity", [math.nan, 9, 8, 7, 6], 5),
        ("mse", [math.inf, 3, -math.inf, 4, 5], 2),
    ],
)
def test_the_best_is_kept_beside_the_newest_and_used_and_the_newest_gone_on_with(
    name: str, values: list[float], best: int, tmp_path, target
) -> None:
    for step, value in enumerate(values, 1):
        # Each evaluation in a process of its own: what it needs to know lies in files.
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


def test_a_run_that_keeps_no_best_uses_the_newest(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path / "checkpoints", max_to_keep=2)
    for step in (1, 2):
        checkpoints.save(
            make_state(step), lambda path, step=step: write_scores(path, {"f1": -step})
        )
    assert not checkpoints.is_best(3, {"f1": 100.0})
    checkpoints.wait_until_finished()
    assert find_checkpoint(tmp_path) == checkpoints.path(2)


@pytest.fixture
def chosen(tmp_path) -> Checkpointer:
    """Steps 1 and 2, of which the first is the best."""
    checkpoints = Checkpointer(tmp_path / "checkpoints", best_metric="f1")
    evaluate(checkpoints, 1, {"f1": 0.5})
    evaluate(checkpoints, 2, {})
    checkpoints.wait_until_finished()
    return checkpoints


def test_where_the_best_is_damaged_it_is_named_and_the_newest_used(chosen, caplog) -> None:
    assert find_checkpoint(chosen.directory.parent) == chosen.path(1)
    _flip(pathlib.Path(chosen.path(1)))
    assert find_checkpoint(chosen.directory.parent) == chosen.path(2)
    assert "00000001 is damaged" in caplog.text


def test_a_step_is_compared_with_those_before_it_alone(chosen) -> None:
    """Later ones are damaged where a run goes on from an earlier one."""
    evaluate(chosen, 9, {"f1": 0.9})
    assert chosen.is_best(5, {"f1": 0.6})
    assert not chosen.is_best(5, {"f1": 0.5})


def test_the_save_before_counts_though_it_is_under_way(chosen) -> None:
    go = threading.Event()
    chosen.save(make_state(3), lambda path: go.wait() and write_scores(path, {"f1": 0.7}))
    threading.Timer(0.2, go.set).start()
    assert not chosen.is_best(4, {"f1": 0.6})


def test_the_first_host_says_whether_a_step_is_the_best(chosen, monkeypatch) -> None:
    for answer in (0, 1):
        monkeypatch.setattr(
            distributed, "broadcast_from_process_0", lambda make, size, answer=answer: (answer,)
        )
        assert chosen.is_best(5, {"f1": 0.1}) == bool(answer)


def test_a_score_that_there_is_not_is_refused_and_those_that_there_are_named(chosen) -> None:
    with pytest.raises(InputError, match=r"best_metric='f1' is no score .* one of loss, exact\."):
        chosen.is_best(3, {"loss": 1.0, "exact": 0.5})


def test_an_unfinished_checkpoint_is_never_read(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    assert checkpoints.all_steps() == [10]
    assert equal(checkpoints.restore(target), make_state(10))


def test_an_unfinished_checkpoint_is_replaced(checkpoints, target) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    (checkpoints.path(20) / "rest").write_text("of a killed save")
    checkpoints.save(make_state(20), write_metadata)
    checkpoints.wait_until_finished()
    assert equal(checkpoints.restore(target), make_state(20))
    assert not (checkpoints.path(20) / "rest").exists()


def test_what_killed_saves_left_is_cleared_and_nothing_else(checkpoints) -> None:
    (checkpoints.path(20) / "files.json").unlink()
    left = checkpoints.directory / "00000030.orbax-checkpoint-tmp" / "params"
    left.mkdir(parents=True)
    (checkpoints.directory / "notes").mkdir()
    checkpoints.delete_unfinished()
    assert {path.name for path in checkpoints.directory.iterdir()} == {"00000010", "notes"}


def test_a_save_does_not_give_way_to_a_later_one_that_is_damaged(tmp_path, target) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=1, keep_period=10)
    for step in (10, 20, 15):
        checkpoints.save(make_state(step), write_metadata)
        checkpoints.wait_until_finished()
        if step == 20:
            _truncate(pathlib.Path(checkpoints.path(20)))
    assert equal(checkpoints.restore(target), make_state(15))


def _with_window(target: TrainState, *names: str) -> TrainState:
    return target._replace(window=dict.fromkeys(names, target.window["loss"]))


def test_sums_since_the_last_log_come_back_to_the_last_bit_by_their_names(tmp_path, target) -> None:
    """Whatever is measured besides, or no longer, by the run that goes on."""
    checkpoints = Checkpointer(tmp_path)
    third = jnp.float32(1) / 3
    window = {"loss": (third, jnp.float32(7)), "dropped": (jnp.float32(1), jnp.float32(1))}
    checkpoints.save(make_state(10)._replace(window=window), write_metadata)
    checkpoints.wait_until_finished()
    found = checkpoints.restore(_with_window(target, "loss", "new")).window
    assert jax.device_get(found) == {"loss": (np.float32(1) / 3, 7), "new": (0, 0)}


def test_sums_are_found_where_older_versions_kept_them(checkpoints, target) -> None:
    """As arrays among the others, in which every name had to be one that the run has."""
    state = make_state(20)
    third = jnp.float32(1) / 3
    window = {"loss": (third, jnp.float32(7)), "dropped": (third, third)}
    old = {"step": state.step, "opt_state": state.opt_state, "window": window}
    path = checkpoints.path(20)
    shutil.rmtree(path)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "params", args=ocp.args.StandardSave(state.params))
        checkpointer.save(path / "training", args=ocp.args.StandardSave(old))
    mark_finished(path, write_metadata)
    found = checkpoints.restore(_with_window(target, "loss", "new"))
    assert jax.device_get(found.window) == {"loss": (np.float32(1) / 3, 7), "new": (0, 0)}
    assert equal(found._replace(window=state.window), state)


def test_no_intact_checkpoint_is_an_error_and_no_new_beginning(checkpoints, target) -> None:
    for step in (10, 20):
        _truncate(pathlib.Path(checkpoints.path(step)))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact"):
        checkpoints.restore(target)


def test_a_failed_save_leaves_the_earlier_ones_and_no_trace(checkpoints, target) -> None:
    def full(path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 30 .* No space left on device"):
        checkpoints.save(make_state(30), full)
        checkpoints.wait_until_finished()
    assert not checkpoints.path(30).exists()
    assert checkpoints.all_steps() == [10, 20]
    assert equal(checkpoints.restore(target), make_state(20))


def test_a_save_that_failed_in_the_background_is_told_at_the_next_step(checkpoints) -> None:
    checkpoints.save(make_state(30), lambda path: (path / "none" / "file").write_text(""))
    checkpoints.close()
    with pytest.raises(CheckpointError, match="checkpoint of step 30 could not be written"):
        checkpoints.pop_finished()
    assert checkpoints.all_steps() == [10, 20]


def test_a_finished_save_is_kept_when_another_host_is_lost_at_its_end(
    checkpoints, target, monkeypatch
) -> None:
    def lose(what: str) -> None:
        if what == "checkpoint-end":
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: a host is gone")

    monkeypatch.setattr(distributed, "sync_processes", lose)
    with pytest.raises(jax.errors.JaxRuntimeError):
        checkpoints.save(make_state(30), write_metadata)
        checkpoints.wait_until_finished()
    assert equal(checkpoints.restore(target), make_state(30))


def test_parameters_alone_can_be_loaded(checkpoints, target) -> None:
    params = load_params(find_checkpoint(checkpoints.directory.parent), target.params)
    np.testing.assert_array_equal(params["bias"], make_state(20).params["bias"])


def test_a_workdir_and_a_checkpoint_both_name_a_checkpoint(checkpoints) -> None:
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(20)
    assert find_checkpoint(checkpoints.path(10)) == checkpoints.path(10)
    _truncate(pathlib.Path(checkpoints.path(20)))
    assert find_checkpoint(checkpoints.directory.parent) == checkpoints.path(10)
    with pytest.raises(CheckpointError, match="is damaged"):
        find_checkpoint(checkpoints.path(20))


def test_what_only_training_reads_need_be_intact_for_training_alone(checkpoints, target) -> None:
    shutil.rmtree(pathlib.Path(checkpoints.path(20)) / "training")
    for named in (checkpoints.directory.parent, checkpoints.path(20)):
        assert find_checkpoint(named) == checkpoints.path(20)
    assert equal(checkpoints.restore(target), make_state(10))


def test_a_path_without_a_checkpoint_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="neither a checkpoint nor a workdir"):
        find_checkpoint(tmp_path)


def test_parameters_of_another_model_are_refused(checkpoints) -> None:
    other = make_state(0).params | {"bias": jnp.zeros(6)}
    with pytest.raises(ValueError, match=r"has bias of shape \(5,\) and .* has \(6,\)"):
        check_params(checkpoints.path(20), other)
