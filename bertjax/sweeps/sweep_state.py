"""Results of a sweep so far: the outcome of each finished run, its configuration and its data.

SWEEP/parallel_runs/NAME/done.json holds them for the runs that were trained in parallel. Until it
exists, an error can be fixed by any change of the configuration.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.mesh import distributed
from bertjax.sweeps.grid import Trial
from bertjax.tasks.task import Task
from bertjax.workdir.workdir import (
    PARALLEL_RUNS_DIR,
    RESUMABLE_FIELDS,
    config_difference,
    logits_digest,
)
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object, read_json_value

BEST_DIR = "best"  # the directory of the best run's checkpoint
PROPOSALS_FILE = "proposals.json"  # in the workdir of a search
DONE_FILE = "done.json"  # in a directory of parallel runs: their outcomes

# Fields that may change when a sweep is resumed. These two decide the scores and the best run.
_RANKING_FIELDS = {"eval_batches", "best_metric", "greater_is_better", "metrics"}
_RESUMABLE_FIELDS = RESUMABLE_FIELDS - _RANKING_FIELDS
# Of an entry; its other keys are the outcome.
_RUN_KEYS = ("index", "config", "data_fingerprint", "logits_digest", "curve")


class SweepState:
    """Finished runs of the sweep in a workdir.

    Args:
      workdir: directory of the sweep.
      confirm: called before each write and deletion; raises LockLostError if another sweep has
        taken the workdir.

    Raises:
      InputError: the workdir holds a single run.
    """

    def __init__(self, workdir: epath.Path, confirm: Callable[[], None] = lambda: None) -> None:
        self.workdir, self.confirm = workdir, confirm
        if (workdir / "run.json").exists():
            raise InputError(f"{workdir}: holds a run, not a sweep. Use another --workdir.")
        if (workdir / BEST_DIR).exists() and not (workdir / PARALLEL_RUNS_DIR).exists():
            raise InputError(
                f"{workdir}: has a directory {BEST_DIR} that is of no sweep, and which one would "
                "replace. Use another --workdir."
            )
        entries: dict[str, dict[str, Any]] = {}
        for path in self._parallel_dirs():
            if (path / DONE_FILE).exists():
                entries |= _read_entries(path / DONE_FILE)
        # In the order in which they ended: the first of equal runs is the best.
        self._entries = dict(sorted(entries.items(), key=lambda item: item[1]["index"]))

    def read_proposals(self) -> list[list[str]]:
        """Return the names of the runs that a search has proposed, by round, in their order."""
        path = self.workdir / PROPOSALS_FILE
        return read_json_value(path, [[str]], "Use another --workdir.") if path.exists() else []

    def write_proposals(self, rounds: Sequence[Sequence[Trial]]) -> None:
        """Write the names for `read_proposals`, on process 0."""
        if distributed.is_process_0():
            self.confirm()
            names = [[trial.name for trial in trials] for trials in rounds]
            write_json(self.workdir / PROPOSALS_FILE, names)

    def check_trials(self, trials: Sequence[Trial]) -> None:
        """Check that all finished runs belong to the sweep; it may have more runs than before.

        Args:
          trials: all runs of the sweep, finished or not.

        Raises:
          InputError: the workdir holds results of other runs or configurations.
        """
        if lost := self._entries.keys() - {trial.name for trial in trials}:
            raise InputError(
                f"{self.workdir}: holds a sweep of other runs, {min(lost)!r} among them. Use "
                "another --workdir, or the grid and seeds of that sweep; more may be added."
            )
        for trial in trials:
            if trial.name in self._entries:
                self._check_config(trial)

    def _check_config(self, trial: Trial) -> None:
        before = self._entries[trial.name]["config"]
        if difference := config_difference(before, trial.config, _RESUMABLE_FIELDS):
            name, recorded, value = difference
            raise InputError(
                f"{name}={value!r}: {self.workdir} holds a sweep whose run {trial.name!r} has "
                f"{name}={recorded!r}. Use another --workdir, or the configuration of that sweep."
            )

    def check_data(self, trials: Sequence[Trial], task: Task) -> None:
        """Raise InputError if runs were trained on other data than those of the task."""
        for trial in trials:
            entry = self._entries.get(trial.name)
            if entry and entry["data_fingerprint"] != task.data_fingerprint:
                raise InputError(
                    f"data.dir={trial.config.data['dir']}: {self.workdir} holds a sweep on other "
                    "data. Use another --workdir, or the data of that sweep."
                )
            if entry and entry.get("logits_digest") != logits_digest(task):
                raise InputError(
                    f"distill.logits={trial.config.distill.logits}: {self.workdir} holds a sweep "
                    "with other logits. Use another --workdir, or the file of that sweep."
                )

    @property
    def curves(self) -> list[dict[float, float]]:
        """Comparable score by progress of each run that ended well, of a search that prunes."""
        return [
            {float(key): -math.inf if score is None else score for key, score in curve.items()}
            for entry in self._entries.values()
            if (curve := entry.get("curve")) and not (entry["failed"] or "pruned_at" in entry)
        ]

    @property
    def pruned(self) -> dict[str, float]:
        """Fraction of its steps at which each pruned run ended."""
        return {
            name: max(map(float, entry["curve"]))
            for name, entry in self._entries.items()
            if "pruned_at" in entry
        }

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Outcomes of the finished runs by their names."""
        return {
            name: {key: value for key, value in entry.items() if key not in _RUN_KEYS}
            for name, entry in self._entries.items()
        }

    def parallel_dir(self, trials: Sequence[Trial], num_parallel: int) -> epath.Path:
        """Return the directory of parallel runs, which exists if they were interrupted.

        Its name ends with a digest of the runs: a state of other runs, or of more, cannot be
        resumed. The number before it, of runs that had ended, sorts the directories for readers.

        Args:
          trials: the runs.
          num_parallel: number of runs in the state, including the copies that fill it.
        """
        names = "\n".join([str(num_parallel), *(trial.name for trial in trials)])
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        for path in self._parallel_dirs():
            if path.name.endswith(f"-{digest}"):
                return path
        return self.workdir / PARALLEL_RUNS_DIR / f"{len(self._entries):05d}-{digest}"

    def record(
        self,
        directory: epath.Path,
        trials: Sequence[Trial],
        task: Task,
        outcomes: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Record the outcomes of parallel runs, which are the same on all processes.

        Args:
          directory: directory of the parallel runs.
          trials: the runs.
          task: their data.
          outcomes: `scores` and `failed` of each run by its name.
        """
        entries = {
            trial.name: {
                **outcomes[trial.name],
                "index": index,
                "config": trial.config.to_dict(),
                "data_fingerprint": task.data_fingerprint,
                "logits_digest": logits_digest(task),
            }
            for index, trial in enumerate(trials, len(self._entries))
        }
        if distributed.is_process_0():
            self.confirm()
            write_json(directory / DONE_FILE, entries)
        self._entries |= entries

    def remove_unfinished(self) -> None:
        """Delete parallel runs that were interrupted and trained elsewhere, and old states."""
        self.confirm()
        for path in self._parallel_dirs():
            if not (path / DONE_FILE).exists():
                path.rmtree()
            elif (states := path / "checkpoints").exists():  # a killed process left them
                states.rmtree()

    def _parallel_dirs(self) -> list[epath.Path]:
        parent = self.workdir / PARALLEL_RUNS_DIR
        return sorted(parent.iterdir()) if parent.exists() else []


def _read_entries(path: epath.Path) -> dict[str, dict[str, Any]]:
    entry = {"index": int, "config": {str: object}}
    entry |= {"data_fingerprint": str, "logits_digest?": str}
    entry |= {"failed": bool, "scores": {str: (float, None)}}
    entry |= {"pruned_at?": int, "curve?": {str: (float, None)}}
    return read_json_object(path, {str: entry}, "Use another --workdir.")


def write_json(path: epath.Path, content: Any) -> None:
    """Write a JSON file atomically."""
    atomic_write_text(path, json.dumps(content, indent=1, allow_nan=False))
