"""What a sweep has done: what became of each of its runs, by which settings and on which data.

DIR/waves/NAME/done.json has it for the runs that were trained at once. Until then nothing holds a
sweep to what it was told, so that a refusal can be mended.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.mesh import hosts
from bertjax.sweeps.grid import Trial
from bertjax.tasks.task import Task
from bertjax.workdir.workdir import FREE, WAVES, config_difference
from data_pipelines.errors import InputError

DONE_FILE = "done.json"  # of a wave: what became of its runs

# What may differ when a sweep goes on: not what scores are of, nor which run is the best.
_FREE = FREE - {"eval_batches", "keep_best"}
_TRAINED = ("config", "data_fingerprint")  # of an entry; the rest is what came of the run


class Ledger:
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
        for path in self._waves():
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
        if found := config_difference(self._entries[trial.name]["config"], trial.config, _FREE):
            name, before, now = found
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
            name: {key: value for key, value in entry.items() if key not in _TRAINED}
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
        return self.workdir / WAVES / f"{len(self._entries):05d}-{digest}"

    def note(
        self,
        wave: epath.Path,
        trials: Sequence[Trial],
        task: Task,
        found: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Notes what became of a wave's runs; all hosts have the same to note.

        Args:
          found: of each run by its name the `scores`, and whether it has `failed`.
        """
        entries = {
            trial.name: {
                **found[trial.name],
                "config": trial.config.to_dict(),
                "data_fingerprint": task.data_fingerprint,
            }
            for trial in trials
        }
        if hosts.is_first():
            write(wave / DONE_FILE, entries)
        self._entries |= entries

    def clear(self) -> None:
        """Deletes what waves left that came to no end, because others trained their runs."""
        for path in self._waves():
            if not (path / DONE_FILE).exists():
                path.rmtree()

    def _waves(self) -> list[epath.Path]:
        waves = self.workdir / WAVES
        return sorted(waves.iterdir()) if waves.exists() else []


def _read(path: epath.Path) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text())
        for entry in found.values():
            [entry[name] for name in (*_TRAINED, "scores", "failed")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not what this version of bertjax writes of a sweep: use another --workdir."
        ) from error
    return found


def write(path: epath.Path, content: Any) -> None:
    """Writes JSON, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False))
    partial.replace(path)
