"""The one train loop, for pre-training and every task.

Run again with the same arguments, it goes on from the last finished checkpoint, and gives to the
last bit what it would have given without the interruption.
"""

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.lookup import find_unverified_checkpoint, has_checkpoint
from bertjax.config.config import Config
from bertjax.errors import EXIT_DIVERGED, EXIT_RESTART, RunError
from bertjax.faults import fault_point
from bertjax.mesh import distributed
from bertjax.mesh.feed import Feed
from bertjax.mesh.signals import stop_signals
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.histograms import compute_histograms
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.schedules import Plan, learning_rate_schedule
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import Sums, TrainState, means
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, HostBatch, Task
from bertjax.training import run_summary
from bertjax.training.cadence import Cadence
from bertjax.training.evaluator import check_tokenizer, make_evaluator
from bertjax.training.initialization import PretrainedModel, begin, write_init_record
from bertjax.training.memory_budget import MemoryBudget
from bertjax.training.metric_writers import Metrics, MetricsCallback, MetricWriters
from bertjax.training.throughput import Profiler, ThroughputMeter
from bertjax.training.time_budget import TimeBudget
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.run_record import write_checkpoint_metadata
from bertjax.workdir.workdir import check_workdir, claim_workdir
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

_EARLY_STEPS = {1, 11}  # steps of a process that are shown where metrics are logged more seldom
_MAX_SILENCE_SECONDS = (
    60.0  # after which one is shown all the same, where hosts need not agree on it
)


class Diverged(RunError):
    """The loss or the gradient is no longer a finite number."""

    status = EXIT_DIVERGED


class Stopped(RunError):
    """A stop signal arrived; the state was saved."""

    status = EXIT_RESTART


class Trainer:
    """Training in a workdir: all that can be refused is refused here, before anything compiles.

    Args:
      on_metrics: called with each line that metrics.jsonl gets, where that is written; what it
        raises ends the run as a fault of ours would.

    Class attributes:
      runs: how many are trained at once.

    Raises:
      InputError: the configuration, the data, `init` or the workdir do not
        fit; nothing was changed.
    """

    runs = 1

    def __init__(
        self, config: Config, workdir: epath.PathLike, on_metrics: MetricsCallback | None = None
    ) -> None:
        self.workdir, self._on_metrics = epath.Path(workdir), on_metrics
        begun = has_checkpoint(self.workdir)
        # What a run began with may be gone once it has a checkpoint, which has all that it gave.
        source = dataclasses.replace(config, init=str(self.workdir)) if begun else config
        self.task = self._load_task(source)
        config = dataclasses.replace(self.task.config, init=config.init)
        self.config = config = config.resolve(self.task.examples_per_epoch)
        self.steps = config.total_steps
        self.programs = self._plan()
        check_batch_sizes(config, self.task.objective, self.programs.mesh, train=True)
        self._memory_budget = MemoryBudget(config, self.task.objective, self.programs, self.runs)
        self._memory_budget.check_state()
        if config.best_metric and not self.task.eval_sets():
            raise InputError(
                f"best_metric={config.best_metric!r} needs evaluations and {config.data['dir']} has no "
                "held-out data: leave it out, or prepare the data with --eval-fraction."
            )
        self._pretrained: PretrainedModel | None = None
        if config.init and not begun:
            self._pretrained = begin(config.init, self._init_record_dir())
            check_tokenizer(self.task, self._pretrained.tokenizer, self._pretrained.path)
            self._pretrained.check(config.model, self.programs.init_shapes, self.task.labels)
        check_workdir(self.workdir, config, self.task)
        milestones = config.interval_seconds("keep_period")
        self.checkpoints = Checkpointer(
            self.workdir / "checkpoints",
            config.max_to_keep,
            int(config.keep_period) if milestones is None else milestones,
            config.best_metric,
            float if milestones is None else self._elapsed_seconds,
        )

    def _init_record_dir(self) -> epath.Path:
        """Where it is noted what this run began with."""
        return self.workdir

    def _load_task(self, config: Config) -> Task:
        """The task with its data, of which this host has its share."""
        return registry.find(config.task)(config, jax.process_count(), jax.process_index())

    def _plan(self) -> AnyStepFunctions:
        """What is to be compiled, once the number of steps is known."""
        self.task.prepare(self.steps)
        return StepFunctions(self.config, self.task.objective)

    def train(self) -> None:
        """Trains from the newest checkpoint in the workdir, or step 0, to the last step.

        Raises:
          InputError: another run is at work in the workdir, or a step does not fit the devices.
          CheckpointError: a checkpoint could not be written or read.
          Diverged: the loss is not finite; the last good checkpoint is intact.
          OutOfMemory: the devices had less room than they told, or do not tell.
          Stopped: SIGTERM or SIGINT arrived; the state was saved.
        """
        try:
            with WorkdirLock(self.workdir) as lock:
                claim_workdir(self.workdir, self.config, self.task)
                if self._pretrained:
                    write_init_record(self._pretrained, self._init_record_dir())
                if distributed.is_process_0():
                    self.checkpoints.delete_unfinished()
                self._train(lock)
        except jax.errors.JaxRuntimeError as error:
            if (short := self._memory_budget.explain(error)) is None:
                raise
            raise short from error

    def _train(self, lock: WorkdirLock) -> None:
        if not self.programs.is_compiled:  # of a wave of runs like the one before
            self._log_on_process_0(self._summarize_run)
        state = self._restore_or_init()
        first = int(state.step)
        seconds = self.config.budget_seconds
        self._budget = TimeBudget(self.workdir, seconds) if seconds is not None else None
        if first and self._is_last(first):
            _log.info("%s is trained to its last step, %d.", self.workdir, first)
            self._log_result()
            return
        with (
            MetricWriters(
                self.workdir,
                self.steps,
                start_step=first,
                active=distributed.is_process_0(),
                tell=self._on_metrics,
            ) as writers,
            contextlib.closing(Feed(self._batches(first), self.programs.batch_sharding)) as feed,
            Profiler(self.config.profile_steps(), self.workdir / "profile") as profiler,
            contextlib.closing(self.checkpoints),
        ):
            self._loop(state, writers, feed, profiler, lock)
        self._log_result()

    def _restore_or_init(self) -> TrainState:
        state = self.checkpoints.restore(self.programs.state_shapes)
        if state is not None:
            _log.info("going on from step %d in %s.", int(state.step), self.workdir)
            return state
        start, self._pretrained = self._pretrained, None  # whose arrays would stay in memory
        layers = self.config.reinit_layers
        return self.programs.init(start.given(self.programs.init_shapes, layers) if start else None)

    def _loop(
        self,
        state: TrainState,
        writers: MetricWriters,
        feed: Feed,
        profiler: Profiler,
        lock: WorkdirLock,
    ) -> None:
        """Runs every step that is left; logs, evaluates and saves when each is due."""
        config, first = self.config, int(state.step)
        rampup, budget = config.rampup, self._budget
        train_step = self._compile_first_step(first)
        constants = fixed = self.programs.constants()
        evaluate = self._evaluator()
        self._memory_budget.check_evaluation()
        distributed.sync_processes("compiled")  # each at its own pace
        meter = ThroughputMeter(
            self.task.objective, config, self.programs.mesh, feed, first, self.runs
        )
        saving, evaluating = (Cadence(config, f"{name}_every") for name in ("checkpoint", "eval"))
        # The clock is read after the second one, too, for a first plan.
        soon = _EARLY_STEPS | ({2} if budget else set())
        soon = {count for count in soon if count < int(config.log_every)}
        plan: Plan | None = None
        if budget:
            budget.begin(first)
        pending: tuple[int, Sums, bool] | None = None
        before: Sums = {}
        shown, alone = time.monotonic(), jax.process_count() == 1

        def log_pending(done: int) -> None:
            nonlocal pending, shown
            if pending is not None:
                step, window, kept = pending
                pending, shown = None, time.monotonic()
                values = self._means(window)
                rates = meter.read(step, values)
                values |= self._progress(step)
                if kept:
                    self._write(writers, step, "train", values | rates)
                    self._check_finite(step, values)
                else:
                    writers.print_metrics(
                        step, "train", values | (rates if step > first + 1 else {})
                    )
                if budget:
                    budget.update(done)

        with stop_signals() as stop:
            for step, batch in enumerate(feed, first + 1):
                lock.check()
                self._report_saved(writers)
                profiler.before(step - 1, state)
                if rampup.batch_size_at(step - 1) != rampup.batch_size_at(max(step - 2, first)):
                    with meter.pause(periodic=False):
                        train_step = self._train_step(step - 1)
                if budget and plan != budget.plan(step - 1):
                    plan = budget.plan(step - 1)
                    assert isinstance(self.programs, StepFunctions)
                    constants = self.programs.planned(fixed, plan)
                fault_point("step.before_update")
                state, window = train_step(state, batch, constants)
                profiler.after(step, state)
                feed.in_flight = window
                log_pending(step)  # the devices are at work on the new step meanwhile
                # More steps ahead would keep them no busier, and a stop signal waiting.
                jax.block_until_ready(before)
                before = window
                last, stopping = self._is_last(step), stop(step)
                logged = last or step % int(config.log_every) == 0
                late = alone and time.monotonic() - shown > _MAX_SILENCE_SECONDS
                if logged or late or step - first in soon:
                    pending = (step, window, logged)
                evaluates = evaluating.due(step) or last
                saves = saving.due(step) or last or stopping
                if not (evaluates or saves):
                    continue
                log_pending(step)
                # Waits for the steps that the devices are still at, whose time counts.
                self._check_finite(step, self._means(window))
                with meter.pause():
                    evaluation = evaluate([state.params]) if evaluates else None
                    if evaluation:
                        self._write(writers, step, "eval", evaluation.scores)
                        self._write_summaries(writers, state, evaluation)
                    if self._is_best(writers, state, evaluation) or saves:
                        self._save(writers, state, evaluation)
                if last:  # which batches that the clock ends know nothing of
                    break
                if advice := meter.advice():
                    writers.print_line(advice)
                if stopping:
                    self.checkpoints.wait_until_finished()
                    raise Stopped(f"stopped at step {step}: run the same command to go on.")
            self.checkpoints.wait_until_finished()  # a signal that comes now must not end the last save
        self._report_saved(writers)

    def _is_best(
        self, writers: MetricWriters, state: TrainState, evaluation: Evaluation | None
    ) -> bool:
        """Whether a state is to be saved for its scores.

        Raises:
          InputError: `best_metric` is none of them; the state was saved all the same.
        """
        try:
            return evaluation is not None and self.checkpoints.is_best(
                int(state.step), evaluation.scores
            )
        except InputError:
            self._save(writers, state, evaluation)
            self.checkpoints.wait_until_finished()
            raise

    def _save(
        self, writers: MetricWriters, state: TrainState, evaluation: Evaluation | None
    ) -> None:
        writers.flush()
        write_metadata = functools.partial(self._write_metadata, int(state.step), evaluation)
        self.checkpoints.save(self._checkpoint_state(state), write_metadata)

    def _log_on_process_0(self, message: Callable[[], str]) -> None:
        """Says it once, however many hosts there are."""
        if distributed.is_process_0():
            _log.info("%s", message())

    def _summarize_run(self) -> str:
        step = max(self.checkpoints.all_steps(), default=0)
        return run_summary.opening(
            self.config, self.task, self.programs, self.workdir, step, self.runs
        )

    def _log_result(self) -> None:
        """Says where the result is and what to do with it."""
        self._log_on_process_0(
            lambda: run_summary.closing(
                self.workdir, find_unverified_checkpoint(self.workdir), self.task
            )
        )

    def _report_saved(self, writers: MetricWriters) -> None:
        """Says which checkpoints are new; raises CheckpointError where one has failed."""
        for path in self.checkpoints.pop_finished():
            writers.print_line(f"saved {path}")

    def _compile_first_step(self, first: int) -> jax.stages.Compiled:
        """The program of the first step, and what there is to say of it."""
        known = self.programs.is_compiled
        if not known:
            self._log_on_process_0(
                lambda: (
                    f"attention: {self.task.objective.attention_implementation(self.programs.mesh)}; compiling ..."
                )
            )
        began = time.perf_counter()
        program = self._train_step(first)
        self._full_batch_step  # noqa: B018 - what fits is known of the largest batch
        seconds, takes = time.perf_counter() - began, self._memory_budget.check_step()
        if not known:
            self._log_on_process_0(lambda: f"compiled in {seconds:.0f} s; a step takes {takes}.")
        return program

    def _batches(self, start: int) -> Iterable[HostBatch]:
        """This host's rows of the batches of all steps from `start` on."""
        return self.task.train_batches(start, self.steps)

    def _train_step(self, step: int) -> jax.stages.Compiled:
        """The program of the step after `step` others."""
        rampup = self.config.rampup
        rows = rampup.batch_size_at(step)
        return (
            self._full_batch_step
            if rows == rampup.batch_sizes[-1]
            else self.programs.compile_train_step(rows)
        )

    @functools.cached_property
    def _full_batch_step(self) -> jax.stages.Compiled:
        """The program of the last step, which has the most rows."""
        return self.programs.compile_train_step()

    def _elapsed_seconds(self, step: int) -> float:
        """Of a run that the clock ends, after a step."""
        assert self._budget and self.config.budget_seconds
        return self._budget.share(step) * self.config.budget_seconds

    def _is_last(self, step: int) -> bool:
        return self._budget.is_over(step) if self._budget else step == self.steps

    def _progress(self, step: int) -> dict[str, float]:
        """How far the run is after a step, and the rate of that step."""
        budget, before = self._budget, step - 1
        schedule = learning_rate_schedule(self.config.optimizer_config())
        rate = schedule(budget.plan(before).at(before) if budget else before)
        epoch = self.config.rampup.sequences_before(step) / self.task.examples_per_epoch
        share = {"budget": budget.share(step)} if budget else {}
        return {"learning_rate": float(rate), "epoch": epoch} | share

    def _means(self, window: Sums) -> dict[str, float]:
        return means(jax.device_get(window))

    def _evaluator(self) -> Callable[[list[Any]], Evaluation | None]:
        assert isinstance(self.programs, StepFunctions)
        return make_evaluator(self.task, self.programs)

    def _write(self, writers: MetricWriters, step: int, split: str, values: Metrics) -> None:
        writers.write(step, split, values)

    def _write_summaries(
        self, writers: MetricWriters, state: TrainState, evaluation: Evaluation
    ) -> None:
        """Has TensorBoard show what the configuration asks for."""
        wanted = self.config.tensorboard_summaries
        spread = compute_histograms(state.params) if "parameters" in wanted else {}
        if wanted:
            examples = evaluation.examples if "examples" in wanted else ()
            writers.write_summaries(int(state.step), examples, spread)

    def _checkpoint_state(self, state: TrainState) -> TrainState:
        """The state as a checkpoint takes it."""
        return state

    def _check_finite(self, step: int, values: dict[str, float]) -> None:
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                self.checkpoints.wait_until_finished()
                saved = self.checkpoints.all_steps()
                good = f"step {saved[-1]} is the last good checkpoint" if saved else "none is saved"
                raise Diverged(
                    f"{name} is {values[name]} at step {step}, {good}: lower "
                    "optimizer.learning_rate or lengthen optimizer.warmup in a new workdir."
                )

    def _write_metadata(self, step: int, evaluation: Evaluation | None, path: epath.Path) -> None:
        """Writes what opens the checkpoint besides its arrays."""
        write_checkpoint_metadata(path, self.config, self.task, step, evaluation)
