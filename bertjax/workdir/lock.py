"""One run a workdir: a lock file that its holder rewrites as a heartbeat.

A second run looks for a sign of life of the holder. On the same machine this is the process, so a
killed run never blocks the next one. On another machine of a shared file system or a bucket it is
the heartbeat: a lock file that does not change for `LOCK_TIMEOUT_SECONDS` is stale. A holder there
with a heartbeat may have been told to end, and still save, when its successor starts: the successor
waits `HANDOVER_SECONDS` before it gives up. Clocks of two machines are never compared.

In a bucket two runs may take a stale lock at the same instant, and a holder that was frozen or lost
its storage for that long may lose its lock. Each holder reads the file before it rewrites it: the
one whose lock is gone notices at its next heartbeat, and ends. It writes nothing before: whatever
writes or deletes files of a workdir calls `confirm` first, which reads the lock file if the last
heartbeat is old.
"""

import contextlib
import json
import logging
import os
import pathlib
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from etils import epath

from bertjax.errors import LockLostError
from bertjax.mesh import distributed
from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import (
    atomic_write_text,
    is_remote,
    locked,
    make_directory,
    remove_empty,
)
from data_pipelines.schema import check_schema

LOCK_FILE = "lock.json"
_SCHEMA = {"pid?": int, "started?": int, "host?": str, "machine?": str, "id?": str}
HEARTBEAT_SECONDS = 5.0
LOCK_TIMEOUT_SECONDS = 20.0  # several heartbeats of a living holder
_MAX_BYTES = 1 << 16  # of a lock file
_MAX_READINGS = 5  # of a lock file, until one is recent
HANDOVER_SECONDS = 60.0  # a preempted run has 30 seconds on most services
VISIBILITY_TIMEOUT_SECONDS = 60.0  # until a write reaches all processes, even over NFS
_log = logging.getLogger("bertjax")


class Clocks(NamedTuple):
    """A time by two clocks, of which one may stop and the other may be set while a machine sleeps.

    Attributes:
      monotonic: seconds of `time.monotonic`.
      unix: seconds of `time.time`.
    """

    monotonic: float
    unix: float

    @classmethod
    def now(cls) -> Self:
        """Return the present time."""
        return cls(time.monotonic(), time.time())

    def is_recent(self) -> bool:
        """Return whether no other run can have taken a lock that was seen at this time."""
        now = self.now()
        passed = now.monotonic - self.monotonic, abs(now.unix - self.unix)
        return max(passed) < LOCK_TIMEOUT_SECONDS / 2


class WorkdirLock:
    """A context manager that holds a workdir. Process 0 holds it for all processes.

    A directory that it creates is deleted at the end if it is empty.

    Args:
      workdir: the directory.
      option: the argument that names it, for errors.

    Attributes:
      workdir: the directory.

    Raises:
      InputError: another run holds the workdir, it is not writable, or a process does not see it.
    """

    def __init__(self, workdir: epath.Path, option: str = "--workdir") -> None:
        self.workdir, self._path, self._option = workdir, workdir / LOCK_FILE, option
        self._created: list[epath.Path] = []
        self._lost = threading.Event()
        self._released = threading.Event()
        self._last_seen: Clocks | None = None  # when the lock was known to be held

    def __enter__(self) -> Self:
        self._lost.clear()
        self._released.clear()
        self._last_seen = None
        error: InputError | None = None

        def acquire() -> list[int]:
            nonlocal error
            try:
                self._acquire()
            except InputError as refusal:
                error = refusal
                remove_empty(self._created)
            except Exception as failure:  # each storage library has its own
                reason = (str(failure).splitlines() or [type(failure).__name__])[0]
                error = InputError(
                    f"{self.workdir}: not writable ({reason}). Use another {self._option}, or one "
                    "that this account may write to."
                )
            return [error is None, 0 if error else _mark(self._holder)]

        acquired, mark = distributed.broadcast_from_process_0(acquire, 2)
        if not acquired:
            raise error or InputError(f"{self.workdir}: see the error of process 0.")
        if blind := distributed.failing_processes(self._sees_lock(mark)):
            self._release()
            raise InputError(
                f"{self.workdir}: not the same directory on all processes: process {blind[0]} "
                "does not see what process 0 wrote. Use a shared directory or one in a bucket."
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def check(self) -> None:
        """Raise LockLostError if a heartbeat has found that another run has taken the workdir."""
        if self._lost.is_set():
            raise LockLostError(
                f"{self.workdir}: taken by another run after {LOCK_TIMEOUT_SECONDS:.0f} s without "
                "a heartbeat of this one. Leave it to that run, or stop that run and start again."
            )

    def confirm(self) -> None:
        """Raise LockLostError if another run has taken the workdir, before a write or a deletion.

        The error of a storage that is out of reach is raised as it is.
        """
        is_old = self._last_seen is not None and not self._last_seen.is_recent()
        if is_old and not self._lost.is_set() and not self._is_held():
            self._lost.set()
        self.check()

    def _acquire(self) -> None:
        self._created = make_directory(self.workdir)
        self._holder: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _process_start_time(os.getpid()),
            "machine": _machine_id(),
            "id": uuid.uuid4().hex,
            "heartbeats": 0,
        }
        fix = f"Use another {self._option}."
        problem = f"{self.workdir}: another run has just started there. {fix}"
        start = self.workdir / f"{LOCK_FILE}.start"
        with contextlib.nullcontext() if is_remote(start) else locked(start, problem):
            holder = _read(self._path)
            if holder is not None:
                self._wait_until_stale(holder)
            _write(self._path, json.dumps(self._holder))
            self._last_seen = Clocks.now()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _wait_until_stale(self, holder: dict[str, Any]) -> None:
        """Return when the holder is known to be dead; raise InputError when it is alive."""
        if holder.get("machine") == _machine_id():
            start = _process_start_time(holder.get("pid", 0))
            if start is not None and start == holder.get("started"):
                self._raise_in_use(holder)
        else:
            _log.info(
                "%s was last used by process %s on %s: waiting %.0f s for a heartbeat.",
                *(self.workdir, holder.get("pid"), holder.get("host"), LOCK_TIMEOUT_SECONDS),
            )
            began = last_beat = time.monotonic()
            while time.monotonic() < last_beat + LOCK_TIMEOUT_SECONDS:
                time.sleep(min(1.0, HEARTBEAT_SECONDS))
                current = _read(self._path)
                if current is None:  # released
                    return
                if current == holder:
                    continue
                if last_beat == began:
                    _log.info(
                        "%s: its process %s has a heartbeat: waiting %.0f s for its end.",
                        *(self.workdir, current.get("pid"), HANDOVER_SECONDS),
                    )
                holder, last_beat = current, time.monotonic()
                if last_beat > began + HANDOVER_SECONDS:
                    self._raise_in_use(holder)
        self._path.unlink(missing_ok=True)

    def _raise_in_use(self, holder: dict[str, Any]) -> None:
        raise InputError(
            f"{self.workdir}: in use by process {holder.get('pid')} on {holder.get('host')}. Wait "
            f"until it ends, stop it, or use another {self._option}."
        )

    def _sees_lock(self, mark: int) -> bool:
        """Return whether this process finds the lock of process 0 in the workdir."""
        end = time.monotonic() + VISIBILITY_TIMEOUT_SECONDS
        while _mark(_read(self._path) or {}) != mark:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            try:
                if not self._is_held():
                    return self._lost.set()
                self._holder["heartbeats"] += 1
                _write(self._path, json.dumps(self._holder))
            except Exception as error:
                _log.warning("%s: the heartbeat failed (%s).", self._path, error)

    def _release(self) -> None:
        if distributed.is_process_0():
            self._released.set()
            self._thread.join()
            with contextlib.suppress(Exception):  # a lock left behind is stale soon
                if self._is_held():
                    self._path.unlink()
            remove_empty(self._created)

    def _is_held(self) -> bool:
        """Return whether the lock file is that of this process.

        Raises:
          OSError: the storage is out of reach, or so slow that the answer would be old.
        """
        for _ in range(_MAX_READINGS):
            start = Clocks.now()
            holder = _read(self._path) or {}
            # The answer to a heartbeat may have been lost, so their number does not count.
            if holder | {"heartbeats": 0} != self._holder | {"heartbeats": 0}:
                return False
            if start.is_recent():  # the process was not frozen since
                self._last_seen = start
                return True
        raise OSError(f"reading takes more than {LOCK_TIMEOUT_SECONDS / 2:.0f} s")


def _read(path: epath.Path) -> dict[str, Any] | None:
    """Return the holder in a lock file; None without a file, {} if the file is damaged.

    Raises:
      OSError: the storage is out of reach; libraries of buckets have other errors.
    """
    try:
        if not is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):
            return {}
        if not path.exists():
            return None
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:  # `exists` of a local path takes any error for this one
        return None
    try:
        holder: dict[str, Any] = parse_json(content.decode())
        check_schema("", holder, _SCHEMA, "")
    except ValueError:  # its holder was killed while it wrote
        return {}
    return holder


def _write(path: epath.Path, text: str) -> None:
    """Write a lock file: readers see the old content or the new."""
    if is_remote(path):  # where every write does so
        path.write_text(text)
    else:
        atomic_write_text(path, text)


def _mark(holder: Mapping[str, Any]) -> int:
    """Return 31 bits of a holder's id; 0 without one."""
    digits = holder.get("id", "")[:8]
    return int(digits, 16) >> 1 if re.fullmatch("[0-9a-f]{8}", digits) else 0


def _machine_id() -> str:
    """Return an id of this machine since its boot, and of the process ids visible here."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux: every lock counts as one of another machine
        return uuid.uuid4().hex


def _process_start_time(pid: int) -> int | None:
    """Return when a process of this machine started, in clock ticks; None if it does not run."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
