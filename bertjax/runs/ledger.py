"""What a sweep is and has done: its runs with their settings, and what became of each.

DIR/trials.json has the configuration and the data of every run, written before it is trained;
DIR/waves/NAME/done.json what became of runs that were trained at once.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from etils import epath

from bertjax.mesh import hosts
from bertjax.runs import workdirs
from bertjax.runs.grid import Trial
from bertjax.tasks.contract import Task
from data_pipelines.errors import InputError

WAVES = "waves"  # the directory of runs that are trained at once
DONE_FILE = "done.json"  # of a wave: what became of its runs

# What may differ when a sweep goes on: not what scores are of, nor which run is the best.
_FREE = workdirs.FREE - {"eval_batches", "keep_best"}


class Ledger:
    """That of a workdir, which becomes this sweep's where it is nobody's yet.

    Runs may be added to a sweep, more seeds for example.

    Raises:
      InputError: the workdir holds a run, other runs, or these with other settings.
    """

    def __init__(self, workdir: epath.Path, trials: Sequence[Trial]) -> None:
        self.workdir = workdir
        self._path = workdir / "trials.json"
        if (workdir / "run.json").exists():
            raise InputError(f"{workdir} holds a run and no sweep: use another --workdir.")
        self._known: dict[str, dict[str, Any]] = self._read()
        if lost := self._known.keys() - {trial.name for trial in trials}:
            raise InputError(
                f"{workdir} holds a sweep of other runs, {min(lost)!r} among them: use another "
                "--workdir, or its grid and seeds, to which more may be added."
            )
        for trial in trials:
            if trial.name in self._known:
                self._compare(trial)

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.exists():
            return {}
        try:
            found: dict[str, dict[str, Any]] = json.loads(self._path.read_text())
            for entry in found.values():
                entry["config"], entry["data_fingerprint"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"{self._path} is not what this version of bertjax writes of a sweep: use another "
                "--workdir."
            ) from error
        return found

    def _compare(self, trial: Trial) -> None:
        if found := workdirs.difference(self._known[trial.name]["config"], trial.config, _FREE):
            name, before, now = found
            raise InputError(
                f"{self.workdir} holds a sweep whose run {trial.name!r} has {name}={before!r}, and "
                f"here it has {now!r}: use another --workdir, or that sweep's configuration."
            )

    def claim(self, trials: Sequence[Trial], task: Task) -> None:
        """Writes down that runs are to be trained on the data of a task.

        Raises:
          InputError: they were, on others.
        """
        for trial in trials:
            known = self._known.get(trial.name)
            if known and known["data_fingerprint"] != task.data_fingerprint:
                raise InputError(
                    f"{self.workdir} holds a sweep on other data than {trial.config.data['dir']}: "
                    "use another --workdir, or that sweep's data."
                )
            self._known[trial.name] = {
                "config": trial.config.to_dict(),
                "data_fingerprint": task.data_fingerprint,
            }
        if hosts.is_first():
            self.workdir.mkdir(parents=True, exist_ok=True)
            write(self._path, self._known)
        hosts.wait_for_all("sweep")

    def results(self) -> dict[str, dict[str, Any]]:
        """What became of the runs that are done, by their names."""
        found: dict[str, dict[str, Any]] = {}
        for path in self._waves():
            if (path / DONE_FILE).exists():
                found |= json.loads((path / DONE_FILE).read_text())
        return found

    def wave(self, trials: Sequence[Trial], together: int, done: int) -> epath.Path:
        """Where runs are trained at once, after so many others.

        A directory of their own: a state of other runs, or of more, is none to go on from.
        """
        names = "\n".join([str(together), *(trial.name for trial in trials)])
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        return self.workdir / WAVES / f"{done:05d}-{digest}"

    def clear(self) -> None:
        """Deletes what waves left that came to no end, because others trained their runs."""
        for path in self._waves():
            if not (path / DONE_FILE).exists():
                path.rmtree()

    def _waves(self) -> list[epath.Path]:
        waves = self.workdir / WAVES
        return sorted(waves.iterdir()) if waves.exists() else []


def write(path: epath.Path, content: Any) -> None:
    """Writes JSON, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1, allow_nan=False))
    partial.replace(path)
