"""Retention of checkpoints: the newest, multiples of `keep_period` and the best."""

import errno
import json
import math
import pathlib
import threading

import pytest
from checkpoint_states import equal, flip_bit, make_state, save, state_target, truncate
from etils import epath

from bertjax.checkpointing import integrity, retention
from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.lookup import find_checkpoint, find_unverified_checkpoint
from bertjax.checkpointing.retention import BestMetric, write_scores
from bertjax.mesh import distributed
from data_pipelines.errors import InputError
from data_pipelines.schema import read_json_object


@pytest.fixture
def target():
    return state_target()


@pytest.mark.seconds
def test_retention_keeps_the_newest_and_multiples_of_keep_period(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=2, keep_period=20)
    save(checkpoints, *range(5, 51, 5))
    assert checkpoints.all_steps() == [20, 40, 45, 50]


@pytest.mark.seconds
def test_retention_keeps_the_first_checkpoint_after_each_multiple(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path, 1, keep_period=1.0, progress_at=lambda step: step / 10)
    save(checkpoints, *range(4, 45, 4))
    assert checkpoints.all_steps() == [12, 20, 32, 40, 44]


def evaluate(checkpoints: Checkpointer, step: int, scores: dict[str, float]) -> None:
    """Save as a run does after an evaluation; without scores a checkpoint is due anyway."""

    name, greater_is_better = checkpoints.best_metric
    config = {"best_metric": name, "greater_is_better": greater_is_better}

    def write_metadata(path) -> None:
        (path / "config.json").write_text(json.dumps(config))
        if scores:
            write_scores(path, scores)

    if not scores or checkpoints.is_best(step, scores):
        checkpoints.save(make_state(step), write_metadata)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "greater_is_better", "values", "best"),
    [
        ("accuracy", None, [0.5, 0.7, 0.9, 0.8, 0.6], 3),
        ("accuracy", None, [0.9, 0.9, 0.1, math.inf, math.nan], 1),  # the first of equals
        ("dev/loss", None, [0.5, 0.7, 0.2, 0.8, 0.6], 3),
        ("mlm_perplexity", None, [math.nan, 9, 8, 7, 6], 5),
        ("mse", None, [math.inf, 3, -math.inf, 4, 5], 2),
        ("regret", False, [0.5, 0.7, 0.2, 0.8, 0.6], 3),
        ("regret", None, [0.5, 0.7, 0.2, 0.8, 0.6], 4),
        ("profit_and_loss", True, [0.5, 0.7, 0.2, 0.8, 0.6], 4),
    ],
)
def test_retention_keeps_the_best_for_use_and_the_newest_to_resume(
    name: str, greater_is_better: bool | None, values: list[float], best: int, tmp_path, target
) -> None:
    metric = BestMetric(name, greater_is_better)
    for step, value in enumerate(values, 1):
        # A new object for each evaluation: its state is in the files.
        evaluate(
            checkpoints := Checkpointer(tmp_path / "checkpoints", 1, 0, metric), step, {name: value}
        )
        checkpoints.wait_until_finished()
    evaluate(checkpoints, 6, {})
    checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [best, 6]
    assert (
        find_checkpoint(tmp_path) == find_unverified_checkpoint(tmp_path) == checkpoints.path(best)
    )
    assert equal(checkpoints.restore(target), make_state(6))


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        *(
            (name, -1)
            for name in ("loss", "dev/mlm_loss", "word_error_rate", "dev/wer", "char_cer")
        ),
        *((name, -1) for name in ("mlm_perplexity", "rmse", "mae", "my_error", "edit_distance")),
        *((name, 1) for name in ("f1", "accuracy", "dev/exact", "power", "answer", "loss_free")),
    ],
)
def test_best_metric_knows_whether_less_is_better_by_the_name(name, sign) -> None:
    assert BestMetric(name).comparable({name: 0.5}) == sign * 0.5
    for greater_is_better in (True, False):  # whatever the name
        score = BestMetric(name, greater_is_better).comparable({name: 0.5})
        assert score == (0.5 if greater_is_better else -0.5)


def test_find_checkpoint_returns_the_newest_without_best_metric(tmp_path) -> None:
    checkpoints = Checkpointer(tmp_path / "checkpoints", max_to_keep=2)
    for step in (1, 2):
        checkpoints.save(
            make_state(step), lambda path, step=step: write_scores(path, {"f1": -step})
        )
    assert not checkpoints.is_best(3, {"f1": 100.0})
    checkpoints.wait_until_finished()
    assert find_checkpoint(tmp_path) == checkpoints.path(2)


def test_best_checkpoint_survives_a_storage_that_does_not_answer(tmp_path, monkeypatch) -> None:
    checkpoints = Checkpointer(tmp_path / "checkpoints", 1, 0, BestMetric("f1"))
    for step, scores in ((1, {"f1": 0.9}), (2, {}), (3, {})):
        evaluate(checkpoints, step, scores)
        checkpoints.wait_until_finished()
    assert checkpoints.all_steps() == [1, 3]
    calls: list[str] = []

    def fail_at_first(path: epath.Path, *options: object) -> dict:
        calls.append(str(path))
        if len(calls) % 2:
            try:
                raise OSError(errno.EIO, "Input/output error")
            except OSError:
                raise InputError("cannot be read") from None
        return read_json_object(path, *options)

    monkeypatch.setattr(integrity, "_RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(retention, "read_json_object", fail_at_first)
    assert not checkpoints.is_best(4, {"f1": 0.7})
    checkpoints.delete_old(3)
    assert calls and checkpoints.all_steps() == [1, 3]


@pytest.fixture
def with_best(tmp_path) -> Checkpointer:
    """Checkpoints of steps 1 and 2; the first is the best."""
    checkpoints = Checkpointer(tmp_path / "checkpoints", best_metric=BestMetric("f1"))
    evaluate(checkpoints, 1, {"f1": 0.5})
    evaluate(checkpoints, 2, {})
    checkpoints.wait_until_finished()
    return checkpoints


def test_find_checkpoint_logs_a_damaged_best_and_returns_the_newest(with_best, caplog) -> None:
    assert find_checkpoint(with_best.directory.parent) == with_best.path(1)
    flip_bit(pathlib.Path(with_best.path(1)))
    assert find_checkpoint(with_best.directory.parent) == with_best.path(2)
    assert "00000001 is damaged" in caplog.text


@pytest.mark.seconds
def test_is_best_compares_with_earlier_steps_only(with_best) -> None:
    """Later ones are damaged if a run resumes from an earlier one."""
    evaluate(with_best, 9, {"f1": 0.9})
    assert with_best.is_best(5, {"f1": 0.6})
    assert not with_best.is_best(5, {"f1": 0.5})


@pytest.mark.seconds
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


def test_check_best_metric_rejects_an_unknown_score_and_lists_the_scores(with_best) -> None:
    with_best.check_best_metric({"loss": 1.0, "f1": 0.5})
    with pytest.raises(
        InputError, match=r"best_metric='f1': is not a score .* one of loss, exact\."
    ):
        with_best.check_best_metric({"loss": 1.0, "exact": 0.5})


def test_scores_without_best_metric_are_never_the_best(with_best, caplog) -> None:
    assert not with_best.is_best(3, {"loss": 1.0})
    assert caplog.messages == ["step 3: best_metric=f1 is not among the scores."]


@pytest.mark.seconds
def test_retention_ignores_a_later_damaged_checkpoint(tmp_path, target) -> None:
    checkpoints = Checkpointer(tmp_path, max_to_keep=1, keep_period=10)
    for step in (10, 20, 15):
        save(checkpoints, step)
        if step == 20:
            truncate(pathlib.Path(checkpoints.path(20)))
    assert equal(checkpoints.restore(target), make_state(15))
