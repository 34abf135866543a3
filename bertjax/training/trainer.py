"""The training loop of pre-training, of every fine-tuning task and of sweeps.

A run that is resumed from its newest checkpoint computes the same bits as one without interruption.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import jax
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.divergence import DivergenceCheck
from bertjax.checkpointing.lookup import find_unverified_checkpoint, has_checkpoint
from bertjax.checkpointing.retention import BestMetric
from bertjax.config.config import Config
from bertjax.errors import StoppedError
from bertjax.faults import fault_point
from bertjax.mesh import distributed
from bertjax.mesh.feed import Feed
from bertjax.mesh.signals import stop_signals
from bertjax.mesh.watchdog import note_progress
from bertjax.steps.parallel_runs import AnyStepFunctions
from bertjax.steps.replay import Replay
from bertjax.steps.step_functions import StepFunctions, TrainSteps
from bertjax.steps.train_step import Sums, TrainState
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import Evaluation, Task
from bertjax.training.cadence import Cadence, EarlyStopping
from bertjax.training.evaluator import check_best_metric, check_tokenizer
from bertjax.training.initialization import PretrainedModel, open_recorded
from bertjax.training.memory_budget import MemoryBudget
from bertjax.training.metric_writers import MetricWriters, StepLogger
from bertjax.training.run_summary import summarize_result, summarize_run
from bertjax.training.terminal import log_on_process_0
from bertjax.training.throughput import Profiler, ThroughputMeter
from bertjax.training.time_budget import BUDGET_FILE, TimeBudget
from bertjax.training.trackers import MLFLOW_ID_FILE, WANDB_ID_FILE, Tracker
from bertjax.workdir.goodput import GOODPUT_FILE, GoodputClock
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.model_history import write_model_record
from bertjax.workdir.model_records import RECORD_FILES
from bertjax.workdir.run_record import write_checkpoint_metadata
from bertjax.workdir.workdir import check_processes, check_workdir, claim_workdir

# Of a run that is rejected before its first checkpoint: another one would continue them.
_REJECTED_FILES = (GOODPUT_FILE, BUDGET_FILE, WANDB_ID_FILE, MLFLOW_ID_FILE)
_log = logging.getLogger("bertjax")


class Runs(Protocol):
    """Data, metrics and scores of the runs that one trainer trains.

    Metrics and scores are dictionaries by the name of a run. The name "" stands for the trainer as
    a whole: the only run, or the mean over several.

    Attributes:
      num_runs: number of runs that the state holds.
      standalone: whether the trainer stops at a loss that is not finite, and logs its result.
    """

    num_runs: int
    standalone: bool

    def train_batches(self, start: int) -> Iterable[HostBatch]:
        """Return this process's part of the batches from step `start` on."""

    def fetch(self, sums: Sums) -> Sums:
        """Return the metric sums of a train step on the host."""

    def read_metrics(self, sums: Sums, position: float) -> dict[str, dict[str, float]]:
        """Return the means of metric sums, and the learning rate at a position of the schedule."""

    def compile_evaluator(self) -> Callable[[int, Any], Mapping[str, Evaluation]]:
        """Return a function from a step and its parameters to evaluations, none without eval sets.

        It is called once for a step.
        """

    def are_pruned(self, step: int) -> bool:
        """Return whether the evaluations up to a step end the training."""


class Trainer:
    """Trains in a workdir: restores, then trains, logs, evaluates and saves.

    The constructor rejects what can be rejected before compilation, and changes nothing.

    Args:
      config: resolved configuration.
      workdir: directory of the run.
      task: the task with its data.
      step_functions: the compiled functions.
      runs: the one run (`bertjax.training.setup.SingleRun`) or the parallel runs of a sweep.
      init_record_dir: directory that records initial model and teacher; the workdir by default.
      teacher: the model that the step functions learn from; None without distillation.
      trackers: further receivers of the metrics.
      start_time: Unix time at which the command started, for `goodput`; now by default.

    Raises:
      InputError: configuration, data, `init` and workdir do not fit each other.
    """

    def __init__(
        self,
        config: Config,
        workdir: epath.PathLike,
        task: Task,
        step_functions: AnyStepFunctions,
        runs: Runs,
        *,
        init_record_dir: epath.Path | None = None,
        teacher: PretrainedModel | None = None,
        trackers: Sequence[Tracker] = (),
        start_time: float | None = None,
    ) -> None:
        check_processes(config, task)
        self.config, self.workdir, self.task = config, epath.Path(workdir), task
        self.step_functions, self._runs, self._trackers = step_functions, runs, trackers
        self._train_steps = TrainSteps(step_functions, config.rampup.batch_sizes[-1])
        self._replay = Replay(config.replay_every, step_functions)
        self._memory_budget = MemoryBudget(config, task.objective, step_functions, runs.num_runs)
        self._memory_budget.check_state()
        sum_names = step_functions.state_shapes.metric_sums
        self._is_score_known = check_best_metric(config, task, sum_names)
        self._pretrained: PretrainedModel | None = None
        self._teacher, self._init_record_dir = teacher, init_record_dir or self.workdir
        if config.init and not has_checkpoint(self.workdir):
            self._pretrained = open_recorded("init", config.init, self._init_record_dir)
            self._pretrained.select_layers(config.init_layers)
            self._pretrained.extend_positions(config.init_positions, config.model)
            check_tokenizer(task, self._pretrained.tokenizer, self._pretrained.path)
            self._pretrained.check_compatible(config.model, step_functions.init_shapes, task.labels)
        check_workdir(self.workdir, config, task)
        self._budget: TimeBudget | None = None
        self._lock = WorkdirLock(self.workdir)
        start_time, active = start_time or time.time(), distributed.is_process_0()
        self._goodput = GoodputClock(self.workdir, start_time, self._lock.confirm, active=active)
        self._early_stopping = EarlyStopping(config)
        keep_seconds = config.interval_seconds("keep_period")
        self.checkpointer = Checkpointer(
            self.workdir / "checkpoints",
            config.max_to_keep,
            int(config.keep_period) if keep_seconds is None else keep_seconds,
            BestMetric(config.best_metric, config.greater_is_better),
            float if keep_seconds is None else self._elapsed_seconds,
            self._lock.confirm,
        )
        self._divergence = DivergenceCheck(self.checkpointer, runs.standalone)

    def train(self) -> None:
        """Train from the newest checkpoint in the workdir, or from step 0, to the last step.

        Raises:
          InputError: another process trains in the workdir, or a step exceeds the device memory.
          LockLostError: another process has taken the workdir since.
          CheckpointError: a checkpoint cannot be written or read.
          CorruptionError: a replay of a step found a device that computes wrong numbers.
          DivergedError: the loss is not finite; the last good checkpoint is intact.
          OutOfMemoryError: the devices have less memory than they reported, or report none.
          StoppedError: SIGTERM or SIGINT arrived; the state was saved.
        """
        try:
            records = [self._init_record_dir / name for name in RECORD_FILES.values()]
            records += [self.workdir / name for name in _REJECTED_FILES]
            with self._lock, claim_workdir(self._lock, self.config, self.task, records):
                self._goodput.read_earlier()
                if distributed.is_process_0():
                    self.checkpointer.delete_unfinished()
                if not self.step_functions.is_compiled:
                    log_on_process_0(self._summarize())
                state = self._restore_or_init()
                if seconds := self.config.budget_seconds:
                    self._budget = TimeBudget(self.workdir, seconds, self._lock.confirm)
                if distributed.is_process_0() and int(state.step):
                    self.checkpointer.delete_old(int(state.step))  # as a killed process would have
                start = int(state.step)
                if self.config.early_stopping:  # else no scores are read
                    self._early_stopping.resume(self.workdir, start, self.checkpointer.best_step())
                is_last = self._is_last(start)
                if start and (is_last or self._ends_early(start)):
                    end = "the last" if is_last else "the end, as the scores no longer compete"
                    _log.info("%s is complete: step %d is %s.", self.workdir, start, end)
                else:
                    try:
                        self._loop(state)
                    finally:
                        self._goodput.write()
                if self._runs.standalone:
                    checkpoint = find_unverified_checkpoint(self.workdir)
                    log_on_process_0(summarize_result(self.workdir, checkpoint, self.task))
        except jax.errors.JaxRuntimeError as error:
            if (explained := self._memory_budget.explain(error)) is None:
                raise
            raise explained from error

    def _loop(self, state: TrainState) -> None:
        """Train every remaining step; log, evaluate and save when each is due."""
        config, first, objective = self.config, int(state.step), self.step_functions.objective
        goodput = self._goodput
        goodput.switch("compilation")
        mesh, sharding = self.step_functions.mesh, self.step_functions.batch_sharding
        active, confirm = distributed.is_process_0(), self._lock.confirm
        writers = MetricWriters(
            self.workdir, config, first, self._trackers, active=active, confirm=confirm
        )
        with (
            writers,
            contextlib.closing(Feed(self._runs.train_batches(first), sharding)) as feed,
            Profiler(config.profile_steps(), self.workdir / "profile") as profiler,
            contextlib.closing(self.checkpointer),
        ):
            self._compile(first)
            constants = self.step_functions.train_constants()
            evaluate = self._runs.compile_evaluator()
            self._memory_budget.check_evaluation()
            self._find_best_metric(functools.partial(evaluate, first), state)
            distributed.sync_processes("compiled")  # processes compile at different speeds
            meter = ThroughputMeter(objective, config, mesh, feed, first, self._runs.num_runs)
            log = StepLogger(writers, meter, self._read_metrics, config, first)
            saving, evaluating = Cadence(config, "checkpoint_every"), Cadence(config, "eval_every")
            previous: Sums = {}
            if self._budget:
                self._budget.start_clock(first)
            goodput.switch("steps")
            with stop_signals() as stop:
                for step, batch in enumerate(feed, first + 1):
                    self._lock.check()
                    self._report_saved(writers)
                    profiler.before(step - 1, state)
                    train_step = self._compiled_step(step, meter)
                    at_step = self._at_step(constants, step)
                    self._replay.check(step, state, batch, at_step)
                    fault_point("step.before_update")
                    state, metric_sums = train_step(state, batch, at_step)
                    profiler.after(step, state)
                    feed.in_flight = metric_sums
                    self._finish_log(log, step)  # the devices compute the new step meanwhile
                    # At most two steps are in flight: more would only delay a stop signal.
                    jax.block_until_ready(previous)
                    note_progress()
                    goodput.end_step(step, feed.wait_seconds)
                    previous = metric_sums
                    last, stopping = self._is_last(step), stop(step)
                    log.add(step, metric_sums, last)
                    evaluates = evaluating.is_due(step) or last
                    saves = saving.is_due(step) or last or stopping
                    if not (evaluates or saves):
                        continue
                    self._finish_log(log, step)
                    self._check_losses(step, self._read_metrics(step, metric_sums)[""])
                    with meter.pause(), goodput.measure("saving"):
                        self._divergence.check_state(step, (state.params, state.opt_state))
                        with goodput.measure("evaluation"):
                            evaluations = evaluate(step, state.params) if evaluates else {}
                            writers.write_evaluations(step, evaluations, state.params)
                        is_best, scores = False, evaluations[""].scores if evaluations else {}
                        if evaluations:
                            self._divergence.check_values(step, scores)
                            is_best = self.checkpointer.is_best(step, scores)
                            self._early_stopping.add(is_best)
                        ends_early = evaluates and not last and self._ends_early(step)
                        if is_best or saves or ends_early:
                            self._save(writers, state, evaluations.get(""))
                    if ends_early:
                        writers.print_line("ended early: the scores no longer compete.")
                    if last or ends_early:  # the batches of a run with a time budget never end
                        break
                    if advice := meter.advice():
                        writers.print_line(advice)
                    if stopping:
                        self.checkpointer.wait_until_finished()
                        raise StoppedError(f"stopped at step {step}: run it again to resume.")
                goodput.switch("saving")
                self.checkpointer.wait_until_finished()  # no signal may end the last save
            self._report_saved(writers)

    def _summarize(self) -> str:
        step = max(self.checkpointer.all_steps(), default=0)
        return summarize_run(
            self.config, self.task, self.step_functions, self.workdir, step, self._runs.num_runs
        )

    def _restore_or_init(self) -> TrainState:
        state = self.checkpointer.restore(self.step_functions.state_shapes)
        if state is not None:
            _log.info("resuming from step %d in %s.", int(state.step), self.workdir)
            return state
        if self._teacher:
            write_model_record("distill.teacher", self._teacher, self._init_record_dir)
        pretrained, self._pretrained = self._pretrained, None  # its arrays would stay in memory
        if pretrained is None:
            return self.step_functions.init(None)
        shapes, layers = self.step_functions.init_shapes, self.config.reinit_layers
        params = pretrained.load_init_params(shapes, layers)
        write_model_record("init", pretrained, self._init_record_dir)
        return self.step_functions.init(params)

    def _compile(self, step: int) -> None:
        """Compile the train step that follows `step` updates, and that of the full batch."""
        compiles, start = not self.step_functions.is_compiled, time.perf_counter()
        if compiles:
            attention = self.task.objective.attention_implementation(self.step_functions.mesh)
            name = attention.name if attention else "none"
            log_on_process_0(f"attention: {name}; compiling ...")
        rampup = self.config.rampup
        for batch_size in (rampup.batch_size_at(step), rampup.batch_sizes[-1]):
            self._train_steps.compile(batch_size)
            # Fine-tuning counts examples, of which several share a sequence.
            is_full = batch_size == rampup.batch_sizes[-1]
            sequences = self.step_functions.objective.batch_size if is_full else batch_size
            self._replay.compile(sequences)
        memory = self._memory_budget.check_step()  # of the full batch
        if compiles:
            seconds = time.perf_counter() - start
            log_on_process_0(f"compiled in {seconds:.0f} s; a step takes {memory}.")

    def _find_best_metric(
        self, evaluate: Callable[[Any], Mapping[str, Evaluation]], state: TrainState
    ) -> None:
        """Evaluate before the first step if nothing else shows whether `best_metric` is a score.

        Raises:
          InputError: it is none.
        """
        if self._is_score_known or self.checkpointer.best_step():
            return
        log_on_process_0(f"evaluating, to find the score best_metric={self.config.best_metric}.")
        with self._goodput.measure("evaluation"):
            self.checkpointer.check_best_metric(evaluate(state.params)[""].scores)

    def _compiled_step(self, step: int, meter: ThroughputMeter) -> jax.stages.Compiled:
        """Return the compiled function of a step; a ramp-up compiles several batch sizes."""
        batch_size = self.config.rampup.batch_size_at(step - 1)
        if self._train_steps.is_compiled(batch_size):
            return self._train_steps.compile(batch_size)
        with meter.pause(periodic=False), self._goodput.measure("compilation"):
            return self._train_steps.compile(batch_size)

    def _at_step(self, constants: Any, step: int) -> Any:
        """Return the constants of a step, which hold its progress in a time budget."""
        if self._budget is None:
            return constants
        assert isinstance(self.step_functions, StepFunctions)
        return self.step_functions.with_progress(constants, self._budget.progress(step - 1))

    def _is_last(self, step: int) -> bool:
        return self._budget.is_over(step) if self._budget else step == self.config.total_steps

    def _ends_early(self, step: int) -> bool:
        return self._early_stopping.is_over or self._runs.are_pruned(step)

    def _elapsed_seconds(self, step: int) -> float:
        """Return the part of the time budget that was used after a step, in seconds."""
        assert self._budget and self.config.budget_seconds
        return self._budget.progress(step) * self.config.budget_seconds

    def _read_metrics(self, step: int, metric_sums: Sums) -> dict[str, dict[str, float]]:
        """Wait for a step; return its metrics by run."""
        position = self._budget.progress(step - 1) if self._budget else step - 1
        metrics = self._runs.read_metrics(metric_sums, position)
        examples = self.config.rampup.sequences_before(step)
        metrics[""]["epoch"] = examples / self.task.examples_per_epoch
        metrics[""] |= self._goodput.fractions()
        if self._budget:
            metrics[""]["progress"] = self._budget.progress(step)
        return metrics

    def _finish_log(self, log: StepLogger, step: int) -> None:
        """Log the metrics that are due; `step` is the last one that was dispatched."""
        if (logged := log.flush()) is None:
            return
        self._check_losses(*logged)
        if self._budget:
            self._budget.update(step)

    def _check_losses(self, step: int, metrics: Mapping[str, float]) -> None:
        self._divergence.check_values(step, {n: metrics[n] for n in ("loss", "grad_norm")})

    def _save(
        self, writers: MetricWriters, state: TrainState, evaluation: Evaluation | None
    ) -> None:
        """Start a checkpoint, after everything that was logged before it is on disk."""
        writers.flush()
        step = int(state.step)

        def write_metadata(path: epath.Path) -> None:
            write_checkpoint_metadata(path, self.config, self.task, step, evaluation)

        state = state._replace(metric_sums=self._runs.fetch(state.metric_sums))
        self.checkpointer.save(state, write_metadata)

    def _report_saved(self, writers: MetricWriters) -> None:
        """Print which checkpoints are new; raise CheckpointError where one has failed."""
        for path in self.checkpointer.pop_finished():
            writers.print_line(f"saved {path}")
