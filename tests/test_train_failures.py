"""Training runs that fail, are rejected, or get a signal during the last save."""

import signal

import numpy as np
import pytest
from pretraining_runs import make_run_config, params_of

import bertjax.training.trainer as train_module
from bertjax.checkpointing.checkpointer import CheckpointError
from bertjax.tasks import registry
from bertjax.training.setup import make_trainer
from bertjax.training.trainer import DivergedError
from data_pipelines.errors import InputError


@pytest.mark.slow
def test_unknown_best_metric_is_rejected_at_the_first_evaluation(corpus, tmp_path) -> None:
    with pytest.raises(
        InputError, match=r"best_metric='f1': is not a score .* Use one of loss, .*"
    ):
        make_trainer(make_run_config(corpus, best_metric="f1"), tmp_path).train()
    assert (tmp_path / "checkpoints" / "00000006" / "scores.json").exists()
    make_trainer(make_run_config(corpus, best_metric="loss"), tmp_path).train()


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
        corpus, optimizer__learning_rate=1e30, optimizer__warmup=6, optimizer__max_grad_norm=1e30
    )
    with pytest.raises(DivergedError, match=r"at step .*: lower optimizer\.learning_rate"):
        make_trainer(config, tmp_path).train()
    for leaf in params_of(tmp_path, config) if (tmp_path / "checkpoints").exists() else []:
        assert np.isfinite(leaf).all()


def test_workdir_of_a_sweep_is_rejected(corpus, tmp_path) -> None:
    (tmp_path / "parallel_runs").mkdir()
    with pytest.raises(
        InputError, match=r"holds a sweep\. Use another --workdir, or resume it with"
    ):
        make_trainer(make_run_config(corpus), tmp_path)
