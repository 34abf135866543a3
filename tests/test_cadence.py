"""Early stopping: a run ends once its best score is some evaluations old."""

import shutil

import pytest
from pretraining_runs import losses, make_run_config

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.config import Config
from bertjax.sweeps.sweep import sweep
from bertjax.training.cadence import EarlyStopping
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError

FIELDS = {"best_metric": "mlm_perplexity", "early_stopping": 2, "eval_every": 4}


def test_patience_counts_the_evaluations_since_the_best() -> None:
    rule = EarlyStopping(Config(early_stopping=3, eval_every=10, best_metric="f1", steps=100))
    assert not any(rule.is_over(step, 20) for step in range(20, 50))
    assert all(rule.is_over(step, 20) for step in range(50, 60))
    assert rule.is_over(30, 0) and not rule.is_over(29, 0)  # no score was ever finite
    never = EarlyStopping(Config(eval_every=10, steps=100))
    assert not never.is_over(100, 0)


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
    assert "is complete: step 12 is the last" in caplog.text
    longer = make_run_config(corpus, **fields | {"early_stopping": 3})
    make_trainer(longer, tmp_path / "run").train()
    assert losses(tmp_path / "run")[-1][:2] == (16, "eval")
