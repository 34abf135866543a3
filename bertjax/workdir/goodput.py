"""Division of a run's wall time, over all restarts: WORKDIR/goodput.json.

The file has one entry for each process that trained in the workdir. Process 0 replaces it every few
seconds, so a killed process loses the last seconds, which count as downtime. If it cannot, such as
while a bucket is out of reach, the run continues and it tries again. Work that is repeated after a
restart is lost work: steps up to the last one that was recorded before, and the data, evaluations
and checkpoints among them.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from etils import epath

from bertjax.errors import LockLostError
from data_pipelines.paths import atomic_write_text, is_remote

GOODPUT_FILE = "goodput.json"
# In the order of a report. Startup is the time of imports, of reading data and of restoring.
PARTS = ("steps", "data", "evaluation", "saving", "compilation", "startup", "lost_work", "downtime")
_log = logging.getLogger("bertjax")
_REPEATABLE = ("steps", "data", "evaluation", "saving")
_WRITE_SECONDS, _REMOTE_WRITE_SECONDS = 5.0, 60.0


@dataclasses.dataclass
class Session:
    """Time of one process that trained in the workdir.

    Attributes:
      start: Unix time in seconds.
      end: Unix time of the last record; `seconds` add up to end - start.
      last_step: number of updates at the end.
      seconds: seconds by part, without downtime.
    """

    start: float
    end: float
    last_step: int
    seconds: dict[str, float]


class GoodputClock:
    """Clock of a session; the time always belongs to one part, at first to startup.

    Args:
      workdir: directory of the run.
      start: Unix time at which the session started.
      confirm: called before the file is written; raises LockLostError if it is that of another run.
      active: False on every process but one: nothing is written.
    """

    def __init__(
        self,
        workdir: epath.Path,
        start: float,
        confirm: Callable[[], None] = lambda: None,
        *,
        active: bool = True,
    ) -> None:
        self._path, self._active, self._confirm = workdir / GOODPUT_FILE, active, confirm
        self._write_seconds = _REMOTE_WRITE_SECONDS if is_remote(workdir) else _WRITE_SECONDS
        self._earlier, self._frontier = list[Session](), 0
        now = time.time()
        self._session = Session(min(start, now), now, 0, dict.fromkeys(PARTS[:-1], 0.0))
        self._session.seconds["startup"] = now - self._session.start
        self._part, self._repeats = "startup", False
        self._last = self._last_write = time.monotonic()
        self._failed = False
        self._data_seconds = 0.0

    def read_earlier(self) -> None:
        """Read the sessions before this one; called once the workdir is that of this run.

        A predecessor writes its last one until it releases the workdir.
        """
        self._earlier = read_sessions(self._path.parent) if self._active else []
        self._frontier = max((session.last_step for session in self._earlier), default=0)

    def switch(self, part: str) -> str:
        """Count the time from now on as that of a part; return the part before."""
        now = time.monotonic()
        self._add(self._part, now - self._last)
        self._last, before, self._part = now, self._part, part
        return before

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time of the block as that of a part."""
        before = self.switch(part)
        yield
        self.switch(before)

    def end_step(self, step: int, data_seconds: float) -> None:
        """Note the end of a step.

        Args:
          step: number of updates.
          data_seconds: seconds that the devices have waited for data in this session.
        """
        self._repeats, self._session.last_step = step <= self._frontier, step
        self.switch(self._part)
        waited = data_seconds - self._data_seconds
        self._add("data", waited)
        self._add(self._part, -waited)
        self._data_seconds = data_seconds
        if self._last - self._last_write > self._write_seconds:
            self.write()

    def fractions(self) -> dict[str, float]:
        """Return metrics: `goodput`, the fraction of steps, and NAME_fraction of other parts."""
        self.switch(self._part)
        totals = total_seconds([*self._earlier, self._session])
        whole = sum(totals.values()) or 1.0
        names = {part: f"{part}_fraction" for part in PARTS} | {"steps": "goodput"}
        return {names[part]: seconds / whole for part, seconds in totals.items()}

    def write(self) -> None:
        """Replace the file, unless it is that of another run; log the first of some failures."""
        self.switch(self._part)
        self._last_write = self._last
        if not self._active:
            return
        sessions = [dataclasses.asdict(s) for s in [*self._earlier, self._session]]
        try:
            self._confirm()
            atomic_write_text(self._path, json.dumps(sessions))
            self._failed = False
        except LockLostError:  # which ends the run at its next step
            return
        except Exception as error:  # of any kind: TensorFlow's errors of a bucket are no OSErrors
            if not self._failed:
                _log.warning("%s: not written: %s. The run continues.", self._path, error)
            self._failed = True

    def _add(self, part: str, seconds: float) -> None:
        is_lost = self._repeats and part in _REPEATABLE
        self._session.seconds["lost_work" if is_lost else part] += seconds
        self._session.end = self._session.start + sum(self._session.seconds.values())


def total_seconds(sessions: Sequence[Session]) -> dict[str, float]:
    """Return the seconds of each part, downtime between sessions included."""
    totals = {part: sum(s.seconds.get(part, 0.0) for s in sessions) for part in PARTS}
    # Clocks of two machines may differ.
    gaps = (after.start - before.end for before, after in itertools.pairwise(sessions))
    return totals | {"downtime": sum(max(gap, 0.0) for gap in gaps)}


def read_sessions(workdir: epath.Path) -> list[Session]:
    """Return the sessions of a run, oldest first; none without a file, or with a damaged one."""
    path = workdir / GOODPUT_FILE
    if not path.exists():
        return []
    try:
        return [_parse(entry) for entry in json.loads(path.read_text())]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("%s: not a file that a run wrote (%s); earlier time is unknown.", path, error)
        return []


def _parse(entry: Mapping[str, object]) -> Session:
    start, end, last_step, seconds = (entry[f.name] for f in dataclasses.fields(Session))
    values = {str(part): float(value) for part, value in dict(seconds).items()}  # type: ignore[call-overload]
    return Session(float(start), float(end), int(last_step), values)  # type: ignore[arg-type, call-overload]


def process_start_time() -> float:
    """Return the Unix time at which this process started; that of this call outside of Linux."""
    try:
        stat = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(pathlib.Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - int(stat[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError):
        return time.time()
