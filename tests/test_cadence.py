"""Early stopping: a run ends once its best score is some evaluations old."""

import shutil

import pytest
from etils import epath
from pretraining_runs import losses, make_run_config

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.config import Config
from bertjax.sweeps.sweep import sweep
from bertjax.training.cadence import EarlyStopping
from bertjax.training.metrics_file import encode_line, metrics_path
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError

FIELDS = {"best_metric": "mlm_perplexity", "early_stopping": 2, "eval_every": 4}


def ends(rule: EarlyStopping, *evaluations: bool) -> list[bool]:
    """Return whether the run ends after each evaluation, which is the best one so far or not."""
    results = []
    for is_best in evaluations:
        rule.add(is_best)
        results.append(rule.is_over)
    return results


def test_patience_counts_the_evaluations_since_the_best() -> None:
    config = Config(early_stopping=3, eval_every=10, best_metric="f1", steps=100)
    scores = (True, False, False, True, False, False, False)
    assert ends(EarlyStopping(config), *scores) == [False] * 6 + [True]
    assert ends(EarlyStopping(config), False, False, False)[-1]  # no score was ever finite
    assert not any(ends(EarlyStopping(Config(eval_every=10, steps=100)), *[False] * 9))


@pytest.fixture
def evaluated(tmp_path) -> epath.Path:
    """A workdir whose run was evaluated at steps 100, 200, ..., 500 and trained a little longer."""
    lines = [encode_line(step, "eval", {"f1": 0.5}) for step in range(100, 600, 100)]
    metrics_path(tmp_path).write_bytes(b"".join([*lines, encode_line(510, "train", {"loss": 1})]))
    return epath.Path(tmp_path)


@pytest.mark.parametrize("eval_every", [10, 100, 1000])
def test_resumed_run_counts_evaluations_whatever_their_interval_was(evaluated, eval_every) -> None:
    config = Config(early_stopping=3, eval_every=eval_every, best_metric="f1", steps=9000)
    for best_step, missing in ((200, 0), (300, 1), (400, 2), (500, 3)):
        rule = EarlyStopping(config)
        rule.resume(evaluated, 510, best_step)
        assert rule.is_over == (not missing)
        assert ends(rule, *[False] * missing) == [False] * (missing - 1) + [True] * (missing > 0)
    rule = EarlyStopping(config)
    rule.resume(evaluated, 450, 200)  # the evaluation of step 500 is repeated
    assert ends(rule, False) == [True] and not EarlyStopping(config).is_over


def test_resumed_run_without_a_best_checkpoint_is_not_over(evaluated) -> None:
    """`best_metric` may have changed to a score that no checkpoint has."""
    rule = EarlyStopping(Config(early_stopping=2, eval_every=100, best_metric="f1", steps=9000))
    rule.resume(evaluated, 510, 0)
    assert not rule.is_over and ends(rule, False, False) == [False, True]


def test_resumed_run_without_metrics_counts_from_its_checkpoint(tmp_path) -> None:
    rule = EarlyStopping(Config(early_stopping=1, eval_every=100, best_metric="f1", steps=9000))
    rule.resume(epath.Path(tmp_path), 500, 100)
    assert not rule.is_over


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_metric": ""}, "early_stopping=2: there is no score to improve. Set best_metric"),
        ({"eval_every": "2 minutes"}, "eval_every='2 minutes': early_stopping counts evaluations"),
    ],
)
def test_early_stopping_rejects_what_it_cannot_count(fields, message) -> None:
    with pytest.raises(InputError, match=message):
        EarlyStopping(Config(**FIELDS | fields))


def test_early_stopping_is_not_negative_and_not_for_sweeps(tmp_path) -> None:
    with pytest.raises(InputError, match="early_stopping=-1: is too small"):
        Config(early_stopping=-1)
    with pytest.raises(InputError, match="early_stopping=2: a sweep trains several runs in one"):
        sweep([], Config(**FIELDS), tmp_path)


@pytest.mark.slow
def test_run_ends_early_and_a_resumed_one_at_the_same_step(corpus, tmp_path, caplog) -> None:
    # The learning rate is so low that no evaluation is better than the first one.
    fields = FIELDS | {"optimizer__learning_rate": 1e-30, "steps": 40, "checkpoint_every": 8}
    config = make_run_config(corpus, **fields)
    caplog.set_level("INFO", "bertjax")
    make_trainer(config, tmp_path / "run").train()
    assert losses(tmp_path / "run")[-1][:2] == (12, "eval")
    checkpoints = Checkpointer(tmp_path / "run" / "checkpoints")
    assert checkpoints.all_steps() == [4, 8, 12]  # the best, one that is due, the last
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "00000012")
    make_trainer(config, tmp_path / "killed").train()
    assert losses(tmp_path / "killed") == losses(tmp_path / "run")
    caplog.clear()
    make_trainer(config, tmp_path / "run").train()
    assert "is complete: step 12 is the end, as the scores no longer" in caplog.text
    longer = make_run_config(corpus, **fields | {"early_stopping": 3})
    make_trainer(longer, tmp_path / "run").train()
    assert losses(tmp_path / "run")[-1][:2] == (16, "eval")
    more_often = make_run_config(corpus, **fields | {"early_stopping": 4, "eval_every": 2})
    make_trainer(more_often, tmp_path / "run").train()
    assert losses(tmp_path / "run")[-1][:2] == (18, "eval")
