"""Training runs that fail, are rejected, or get a signal during the last save."""

import json
import logging
import math
import signal

import numpy as np
import pytest
from pretraining_runs import make_run_config, params_of

import bertjax.training.trainer as train_module
from bertjax.checkpointing.checkpointer import CheckpointError
from bertjax.config.user_functions import import_function
from bertjax.errors import DivergedError
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingEvalSet
from bertjax.tasks.task import Evaluation
from bertjax.training.memory_budget import MemoryBudget
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError


def test_unknown_best_metric_is_rejected_at_the_start_and_leaves_nothing(corpus, tmp_path) -> None:
    with pytest.raises(
        InputError, match=r"best_metric='f1': is not a score .* Use one of loss, .*mlm_perplexity"
    ):
        make_trainer(make_run_config(corpus, best_metric="f1"), tmp_path)
    assert not list(tmp_path.iterdir())


def count_evaluations(evaluation: Evaluation) -> dict[str, float]:
    return {"evaluations": 1.0}


@pytest.mark.slow
def test_unknown_best_metric_of_unnamed_scores_is_rejected_before_the_first_step(
    corpus, tmp_path, caplog
) -> None:
    name = f"{__name__}:count_evaluations"
    import_function("metrics", name)

    def train(best_metric: str) -> None:
        make_trainer(
            make_run_config(corpus, metrics=name, best_metric=best_metric), tmp_path
        ).train()

    with pytest.raises(
        InputError,
        match=r"best_metric='evaluation': is not a score .* Use one of .*, evaluations\.",
    ):
        train("evaluation")
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "run.json").exists()
    caplog.set_level(logging.INFO, "bertjax")
    train("evaluations")
    assert "evaluating, to find the score best_metric=evaluations." in caplog.messages
    (scores,) = (tmp_path / "checkpoints").glob("*06/scores.json")
    assert json.loads(scores.read_text())["evaluations"] == 1


def test_best_metric_needs_an_eval_split(corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(registry.find_task("pretraining"), "eval_sets", lambda task: [])
    with pytest.raises(InputError, match=r"best_metric='loss': .* has no eval split"):
        make_trainer(make_run_config(corpus, best_metric="loss"), tmp_path)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.slow
def test_signal_during_the_last_save_does_not_end_it(corpus, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(make_run_config(corpus, checkpoint_every=12), tmp_path)
    wait_until_finished, signals = trainer.checkpointer.wait_until_finished, []

    def wait() -> None:
        if not signals:
            signals.append(signal.raise_signal(signal.SIGTERM))
        wait_until_finished()

    monkeypatch.setattr(trainer.checkpointer, "wait_until_finished", wait)
    trainer.train()
    assert signals and trainer.checkpointer.all_steps() == [12]


@pytest.mark.slow
def test_failed_save_ends_the_run_at_the_next_step(corpus, tmp_path, monkeypatch) -> None:
    steps = []

    def before(self, step: int, state: object) -> None:
        steps.append(step)
        trainer.checkpointer.close()  # waits for the save and ignores its error

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(train_module.Profiler, "before", before)
    trainer = make_trainer(make_run_config(corpus), tmp_path)
    monkeypatch.setattr(train_module, "write_checkpoint_metadata", fail)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 4 .*No space left on device"):
        trainer.train()
    assert max(steps) < 7  # and not when the next one is due
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.slow
def test_nan_loss_ends_the_run_and_keeps_the_last_good_checkpoint(corpus, tmp_path) -> None:
    config = make_run_config(
        corpus,
        checkpoint_every=1,
        optimizer__learning_rate=1e30,
        optimizer__warmup=6,
        optimizer__max_grad_norm=1e30,
    )
    with pytest.raises(DivergedError, match=r"at step .*: lower optimizer\.learning_rate"):
        make_trainer(config, tmp_path).train()
    assert all(np.isfinite(leaf).all() for leaf in params_of(tmp_path, config))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 12])
def test_infinite_parameters_are_never_saved(corpus, tmp_path, steps) -> None:
    """The loss and the gradient of the step that makes them infinite are finite."""
    config = make_run_config(
        corpus, steps=steps, optimizer__learning_rate=1e39, optimizer__warmup=0, checkpoint_every=1
    )
    with pytest.raises(DivergedError, match=r"encoder/.*=nan at step 1, none is saved: lower"):
        make_trainer(config, tmp_path).train()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.slow
def test_state_with_scores_that_are_not_finite_is_not_saved(corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        PretrainingEvalSet, "evaluation", lambda *_: Evaluation({"mlm_perplexity": math.inf})
    )
    with pytest.raises(DivergedError, match=r"mlm_perplexity=inf at step 6, the last good .* 4:"):
        make_trainer(make_run_config(corpus), tmp_path).train()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000004"]


@pytest.mark.slow
def test_run_that_is_rejected_before_its_first_checkpoint_leaves_nothing(
    corpus, tmp_path, monkeypatch
) -> None:
    def reject(budget: MemoryBudget) -> None:
        raise InputError("batch_size=9: a step takes too much memory.")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryBudget, "check_step", reject)
        with pytest.raises(InputError, match="too much memory"):
            make_trainer(make_run_config(corpus), tmp_path / "new" / "run").train()
    assert not (tmp_path / "new").exists()


@pytest.mark.seconds
def test_rejected_run_leaves_no_clock_and_no_tracker_for_the_next(
    corpus, tmp_path, monkeypatch
) -> None:
    def reject(trainer: train_module.Trainer, state: object) -> None:
        for name in ("budget.json", "goodput.json", "wandb.json", "mlflow.json"):
            (trainer.workdir / name).write_text("[]")
        raise InputError("batch_size=9: a step takes too much memory.")

    monkeypatch.setattr(train_module.Trainer, "_loop", reject)
    monkeypatch.setattr(train_module.GoodputClock, "write", lambda clock: None)
    with pytest.raises(InputError, match="too much memory"):
        make_trainer(make_run_config(corpus), tmp_path / "run").train()
    assert not (tmp_path / "run").exists()


def test_workdir_of_a_sweep_is_rejected(corpus, tmp_path) -> None:
    (tmp_path / "parallel_runs").mkdir()
    with pytest.raises(
        InputError, match=r"holds a sweep\. Use another --workdir, or resume it with"
    ):
        make_trainer(make_run_config(corpus), tmp_path)
