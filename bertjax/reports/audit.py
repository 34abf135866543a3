"""Audit of a run: segments between its checkpoints are computed again and compared.

Whoever has the data, the code and the seed can check that the checkpoints came from them. A segment
starts from a checkpoint, or at step 0 from the seed, and must end in the next checkpoint.
"""

import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.integrity import find_damage
from bertjax.checkpointing.state_items import restore_state
from bertjax.config.config import MeshConfig
from bertjax.config.loading import load_config, read_config, read_config_dict
from bertjax.config.user_functions import find_function, import_function
from bertjax.errors import CommandError
from bertjax.mesh.feed import Feed
from bertjax.mesh.watchdog import note_progress
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import TrainState
from bertjax.tasks import registry
from bertjax.training.setup import add_teacher, open_teacher
from bertjax.training.time_budget import TimeBudget
from bertjax.workdir.workdir import describe_devices, flatten_config, logits_digest
from data_pipelines.errors import InputError

# Of the length of a segment's update, where bits may differ. Sums in another order differ in the
# last bits, and training amplifies them.
TOLERANCE = 0.05

_CONFIG_FILE = "config.json"
# The fields among `RESUMABLE_FIELDS` that change the bits of a state. Microbatches and unrolled
# layers have dropout masks of their own, and the sums of metrics since the last log are part of the
# state.
_STATE_FIELDS = (
    *("gradient_accumulation_steps", "log_every", "model.remat", "model.scan_layers"),
    *("mesh.data", "mesh.fsdp", "mesh.tensor"),
)


class AuditError(CommandError):
    """A checkpoint did not come from the one before."""


class SegmentResult(NamedTuple):
    """Comparison of a segment with the checkpoint at its end.

    Attributes:
      start: step of its first checkpoint; 0 for the initial parameters.
      end: step of its last checkpoint.
      tolerance_reason: why bits may differ; "" if they must be the same.
      is_identical: whether all bits of the state are the same.
      distance: Euclidean distance of the parameters, relative to the length of the update.
    """

    start: int
    end: int
    tolerance_reason: str
    is_identical: bool
    distance: float

    @property
    def is_accepted(self) -> bool:
        """True if the checkpoint at the end came from the one before."""
        return self.is_identical or bool(self.tolerance_reason and self.distance <= TOLERANCE)


class Audit:
    """An audit of the run in a workdir.

    Args:
      workdir: directory of the run.
      loss: the `loss` of the run, which is imported; None if the run has none, or it is imported
        already.

    Raises:
      InputError: the workdir holds no run with a segment, its data have changed, or `loss` is not
        that of the run.
      AuditError: a checkpoint is damaged.
    """

    def __init__(self, workdir: epath.PathLike, loss: str | None = None) -> None:
        self._workdir = epath.Path(workdir)
        checkpoints = Checkpointer(self._workdir / "checkpoints")
        steps = checkpoints.all_steps()
        if not steps:
            raise InputError(f"{workdir}: has no checkpoints. Name the --workdir of a trained run.")
        self._checkpoints = {step: checkpoints.path(step) for step in steps}
        for path in self._checkpoints.values():
            if damage := find_damage(path):
                raise AuditError(f"{path}: the files differ ({damage}).")
        self._newest, self._devices = steps[-1], describe_devices()
        config = read_config(self._checkpoints[self._newest] / _CONFIG_FILE, registry.data_fields())
        _import_loss(config.loss, loss)
        # The initial parameters of a run with `init` come from elsewhere.
        starts = steps if config.init else [0, *steps]
        self.segments = list(itertools.pairwise(starts))
        if not self.segments:
            raise InputError(
                f"{workdir}: has one checkpoint and was initialized from {config.init}. Keep more, "
                "with --config.keep_period."
            )
        self._trainers: dict[tuple[Any, ...], _SegmentTrainer] = {}
        self._trainer(self._newest)  # checks data, logits and teacher

    def run(self, num_segments: int) -> Iterator[SegmentResult]:
        """Yield the results of some segments, chosen at random, in the order of their steps."""
        count = min(num_segments or len(self.segments), len(self.segments))
        for start, end in sorted(random.sample(self.segments, count)):
            yield self._compare(start, end)

    def _compare(self, start: int, end: int) -> SegmentResult:
        trainer = self._trainer(end)
        first = trainer.read_state(self._checkpoints.get(start))
        before = _on_host(first.params)
        state = trainer.train(first, start, end)
        recorded = trainer.read_state(self._checkpoints[end])
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(recorded), strict=True)
        is_identical = all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
        after, expected = _on_host(state.params), _on_host(recorded.params)
        update = _distance(expected, before)
        distance = _distance(after, expected) / (update or 1.0)
        return SegmentResult(start, end, self._tolerance_reason(start, end), is_identical, distance)

    def _tolerance_reason(self, start: int, end: int) -> str:
        """Return why the bits of a segment may differ; "" if they must be the same."""
        if not all(self._is_of_these_devices(step) for step in (start, end) if step):
            return "on other devices"
        if not start:
            return ""
        # A checkpoint in between, where the change came, may have been deleted.
        before, after = self._state_fields(start), self._state_fields(end)
        changed = [name for name in after if before[name] != after[name]]
        return f"after a change of {', '.join(changed)}" if changed else ""

    def _trainer(self, end: int) -> "_SegmentTrainer":
        """Return the trainer of the segment that ends at a step; segments may share it."""
        fields = self._state_fields(end)
        if not self._is_of_these_devices(end):
            fields |= {f"mesh.{name}": size for name, size in vars(MeshConfig()).items()}
        key = tuple(fields.values())
        if key not in self._trainers:
            newest = self._checkpoints[self._newest]
            self._trainers[key] = _SegmentTrainer(self._workdir, newest, fields)
        return self._trainers[key]

    def _state_fields(self, step: int) -> dict[str, Any]:
        path = self._checkpoints[step] / _CONFIG_FILE
        fields = flatten_config(read_config(path, registry.data_fields()))
        return {name: fields[name] for name in _STATE_FIELDS}

    def _is_of_these_devices(self, step: int) -> bool:
        return _read_record(self._checkpoints[step]).get("devices") == self._devices


class _SegmentTrainer:
    """Training of segments with one configuration.

    Args:
      workdir: directory of the run.
      newest: newest checkpoint; its configuration names the data.
      fields: fields of the segments, by their dotted names, which replace those of `newest`.

    Raises:
      AuditError: the data or the stored logits are not those of the run.
    """

    def __init__(self, workdir: epath.Path, newest: epath.Path, fields: Mapping[str, Any]) -> None:
        self._workdir, record = workdir, _read_record(newest)
        raw = read_config_dict(newest / _CONFIG_FILE)
        config = load_config(raw, fields, registry.data_fields())
        source = dataclasses.replace(config, init=str(newest))
        self._task = registry.find_task(config.task)(source)
        self._config = dataclasses.replace(self._task.config, init=config.init).resolve(
            self._task.examples_per_epoch
        )
        if record["data_fingerprint"] != self._task.data_fingerprint:
            raise AuditError(f"data.dir={config.data['dir']}: not the data of this run.")
        self._task.prepare(self._config.total_steps)
        if record.get("logits_digest") != logits_digest(self._task):
            raise AuditError(f"distill.logits={config.distill.logits}: not the file of this run.")
        teacher = open_teacher(self._config, self._task, workdir)
        objective = add_teacher(self._config, self._task.objective, teacher)
        self._step_functions = StepFunctions(self._config, objective)
        self._compiled: dict[int, jax.stages.Compiled] = {}

    def read_state(self, checkpoint: epath.Path | None) -> TrainState:
        """Return the state in a checkpoint; that of step 0 without one."""
        if checkpoint is None:
            return self._step_functions.init(None)
        return restore_state(checkpoint, self._step_functions.state_shapes)

    def train(self, state: TrainState, start: int, end: int) -> TrainState:
        """Return the state after step `end`.

        Args:
          state: state after step `start`, which is donated.
          start: number of updates of the state.
          end: number of updates of the result.
        """
        config, functions = self._config, self._step_functions
        constants, seconds = functions.train_constants(), config.budget_seconds
        budget = TimeBudget(self._workdir, seconds) if seconds else None
        batches = self._task.train_batches(start, config.total_steps)
        with contextlib.closing(Feed(batches, functions.batch_sharding)) as feed:
            for step, batch in enumerate(feed, start + 1):
                train_step = self._train_step(config.rampup.batch_size_at(step - 1))
                values = constants
                if budget:
                    values = functions.with_progress(constants, budget.progress(step - 1))
                state, sums = train_step(state, batch, values)
                jax.block_until_ready(sums)
                note_progress()
                if step == end:
                    return state
        raise AuditError(f"step {end}: the data end before it.")

    def _train_step(self, batch_size: int) -> jax.stages.Compiled:
        if batch_size not in self._compiled:
            is_full = batch_size == self._config.rampup.batch_sizes[-1]
            compiled = self._step_functions.compile_train_step(None if is_full else batch_size)
            self._compiled[batch_size] = compiled
        return self._compiled[batch_size]


def _read_record(checkpoint: epath.Path) -> dict[str, Any]:
    """Return the run.json of a checkpoint."""
    record: dict[str, Any] = json.loads((checkpoint / "run.json").read_text())
    return record


def _import_loss(recorded: str, named: str | None) -> None:
    """Import the loss of a run if the user names it; a checkpoint must not choose the code.

    Raises:
      InputError: the user names another one, or does not name it.
    """
    if named is not None and named != recorded:
        raise InputError(
            f"--config.loss={named}: the run has loss={recorded!r}. "
            + (f"Write --config.loss={recorded}." if recorded else "Leave it out.")
        )
    if named:
        import_function("loss", named)
    elif recorded:
        find_function("loss", recorded)


def _on_host(params: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]


def _distance(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    squares = (np.square(a - b).sum() for a, b in zip(first, second, strict=True))
    return float(np.sqrt(sum(squares)))
