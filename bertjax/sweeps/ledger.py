"""What a sweep has done: what became of each of its runs, by which settings and on which data.

DIR/waves/NAME/done.json has it for the runs that were trained at once. Until then nothing holds a
sweep to what it was told, so that a refusal can be mended.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.mesh import distributed
from bertjax.sweeps.grid import Trial
from bertjax.tasks.task import Task
from bertjax.workdir.workdir import PARALLEL_RUNS_DIR, RESUMABLE_FIELDS, config_difference
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

DONE_FILE = "done.json"  # of a wave: what became of its runs

# What may differ when a sweep goes on: not what scores are of, nor which run is the best.
_RESUMABLE_FIELDS = RESUMABLE_FIELDS - {"eval_batches", "best_metric"}
_RUN_KEYS = ("config", "data_fingerprint")  # of an entry; the rest is what came of the run


class SweepState:
    """What is done of the sweep of a workdir, to which runs may be added: more seeds, for example.

    Args:
      trials: all runs of the sweep, done or not.
    Raises:
      InputError: the workdir holds a run, results of other runs, or of these with other settings.
    """

    def __init__(self, workdir: epath.Path, trials: Sequence[Trial]) -> None:
        self.workdir = workdir
        if (workdir / "run.json").exists():
            raise InputError(f"{workdir} holds a run and no sweep: use another --workdir.")
        self._entries: dict[str, dict[str, Any]] = {}
        for path in self._parallel_dirs():
            if (path / DONE_FILE).exists():
                self._entries |= _read(path / DONE_FILE)
        if lost := self._entries.keys() - {trial.name for trial in trials}:
            raise InputError(
                f"{workdir} holds a sweep of other runs, {min(lost)!r} among them: use another "
                "--workdir, or its grid and seeds, to which more may be added."
            )
        for trial in trials:
            if trial.name in self._entries:
                self._compare(trial)

    def _compare(self, trial: Trial) -> None:
        if outcomes := config_difference(
            self._entries[trial.name]["config"], trial.config, _RESUMABLE_FIELDS
        ):
            name, before, now = outcomes
            raise InputError(
                f"{self.workdir} holds a sweep whose run {trial.name!r} has {name}={before!r}, and "
                f"here it has {now!r}: use another --workdir, or that sweep's configuration."
            )

    def check_data(self, trials: Sequence[Trial], task: Task) -> None:
        """Raises InputError where runs were trained on other data than a task's."""
        for trial in trials:
            known = self._entries.get(trial.name)
            if known and known["data_fingerprint"] != task.data_fingerprint:
                raise InputError(
                    f"{self.workdir} holds a sweep on other data than {trial.config.data['dir']}: "
                    "use another --workdir, or that sweep's data."
                )

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """What became of the runs that are done, by their names."""
        return {
            name: {key: value for key, value in entry.items() if key not in _RUN_KEYS}
            for name, entry in self._entries.items()
        }

    def wave(self, trials: Sequence[Trial], together: int) -> epath.Path:
        """Where runs are trained at once.

        A directory of their own: a state of other runs, or of more, is none to go on from.

        Args:
          together: runs that the state has, copies that fill it up with them.
        """
        names = "\n".join([str(together), *(trial.name for trial in trials)])
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return self.workdir / PARALLEL_RUNS_DIR / f"{len(self._entries):05d}-{digest}"

    def record(
        self,
        wave: epath.Path,
        trials: Sequence[Trial],
        task: Task,
        outcomes: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Notes what became of a wave's runs; all hosts have the same to note.

        Args:
          found: of each run by its name the `scores`, and whether it has `failed`.
        """
        entries = {
            trial.name: {
                **outcomes[trial.name],
                "config": trial.config.to_dict(),
                "data_fingerprint": task.data_fingerprint,
            }
            for trial in trials
        }
        if distributed.is_process_0():
            write(wave / DONE_FILE, entries)
        self._entries |= entries

    def remove_unfinished(self) -> None:
        """Deletes what waves left that came to no end, because others trained their runs."""
        for path in self._parallel_dirs():
            if not (path / DONE_FILE).exists():
                path.rmtree()

    def _parallel_dirs(self) -> list[epath.Path]:
        waves = self.workdir / PARALLEL_RUNS_DIR
        return sorted(waves.iterdir()) if waves.exists() else []


def _read(path: epath.Path) -> dict[str, dict[str, Any]]:
    try:
        outcomes: dict[str, dict[str, Any]] = json.loads(path.read_text())
        for entry in outcomes.values():
            [entry[name] for name in (*_RUN_KEYS, "scores", "failed")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not what this version of bertjax writes of a sweep: use another --workdir."
        ) from error
    return outcomes


def write(path: epath.Path, content: Any) -> None:
    """Write JSON atomically."""
    atomic_write_text(path, json.dumps(content, indent=1, allow_nan=False))
