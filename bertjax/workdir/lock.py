"""One run a workdir: whoever works in it holds a lease and renews it for as long as it lives.

The lease is a file that names its holder, and it is only ever written where it is still the one
that was read, which local disks and buckets can promise. Who finds one looks for a sign of life. On
the same machine that is the process itself, so that a killed run hinders the next one not at all.
Elsewhere it is a renewal, waited for so long that a living holder would have made several; no clock
is compared with that of another machine. A holder that was cut off from its storage for as long may
lose the lease: it notices at its next renewal, and ends.
"""

import contextlib
import json
import logging
import os
import pathlib
import socket
import threading
import time
import uuid
import zlib
from types import TracebackType
from typing import Any, Self

import tensorstore as ts
from etils import epath

from bertjax.errors import RunError
from bertjax.mesh import distributed
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

LOCK_FILE = "lease.json"
RENEW_SECONDS = 5.0
VISIBILITY_TIMEOUT_SECONDS = 60.0  # after which what one host wrote is seen by all, over NFS too
LOCK_TIMEOUT_SECONDS = 20.0  # a holder elsewhere that renewed nothing for so long is dead
_log = logging.getLogger("bertjax")


class LockLost(RunError):
    """Another run has taken the workdir."""


class WorkdirLock:
    """Holds a workdir while it is entered. Of several hosts the first one does it for all.

    Raises:
      InputError: another run holds it, it may not be written to, or not all hosts see it.
    """

    def __init__(self, workdir: epath.Path) -> None:
        self._workdir = workdir
        self._lost = threading.Event()
        self._released = threading.Event()

    def __enter__(self) -> Self:
        refusal: InputError | None = None

        def take() -> list[int]:
            nonlocal refusal
            try:
                self._acquire()
            except InputError as error:
                refusal = error
            except (OSError, ValueError) as error:  # TensorStore's own
                reason = str(error).splitlines()[0]
                refusal = InputError(
                    f"{self._workdir} cannot be written to ({reason}): use another --workdir, or "
                    "one that this account may write to."
                )
            return [refusal is None, 0 if refusal else _checksum(self._text)]

        taken, mark = distributed.broadcast_from_process_0(take, 2)
        if not taken:
            raise refusal or InputError(f"{self._workdir}: see what the first host says.")
        if blind := distributed.failing_processes(self._sees_lock(mark)):
            self._release()
            raise InputError(
                f"{self._workdir} is not the same on all hosts, host {blind[0]} does not see what "
                "host 0 wrote there: name a directory that they share, or one in a bucket."
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def _release(self) -> None:
        if distributed.is_process_0():
            self._released.set()
            self._thread.join()
            with contextlib.suppress(Exception):  # what is left behind hinders nobody for long
                self._store.write(LOCK_FILE, None, if_equal=self._generation).result()

    def check(self) -> None:
        """Raises LockLost where another run has taken the workdir."""
        if self._lost.is_set():
            raise LockLost(
                f"{self._workdir} was taken by another run while this one gave no sign of life for "
                f"{LOCK_TIMEOUT_SECONDS:.0f} s: leave it to that one, or stop that and run this again."
            )

    def _sees_lock(self, mark: int) -> bool:
        """Whether this host finds the first one's lease in the workdir."""
        store, end = _open_store(self._workdir), time.monotonic() + VISIBILITY_TIMEOUT_SECONDS
        while _checksum(store.read(LOCK_FILE).result().value) != mark:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _acquire(self) -> None:
        self._workdir.mkdir(parents=True, exist_ok=True)
        self._store = _open_store(self._workdir)
        me = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _process_start_time(os.getpid()),
        }
        self._text = json.dumps(me | {"machine": _machine_id(), "id": uuid.uuid4().hex}).encode()
        found = self._store.read(LOCK_FILE).result()
        if found.state == "value":
            found = self._check_stale(found)
        if not self._write(found.stamp.generation):
            raise InputError(
                f"{self._workdir} was taken by another run this very moment: use another --workdir."
            )
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _check_stale(self, found: Any) -> Any:
        """Raises InputError where the holder lives; else what is to be replaced."""
        holder = json.loads(found.value)
        if holder["machine"] == _machine_id():
            if _process_start_time(holder["pid"]) == holder["started"]:
                self._raise_in_use(found)
            return found
        _log.info(
            "%s was last used by process %d on %s: waiting %.0f s for a sign of life.",
            *(self._workdir, holder["pid"], holder["host"], LOCK_TIMEOUT_SECONDS),
        )
        end = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while time.monotonic() < end:
            time.sleep(min(1.0, RENEW_SECONDS))
            now = self._store.read(LOCK_FILE).result()
            if now.state != "value":  # it has just ended
                return now
            if now.stamp.generation != found.stamp.generation:
                self._raise_in_use(now)
        return found

    def _raise_in_use(self, found: Any) -> None:
        holder = json.loads(found.value)
        raise InputError(
            f"{self._workdir} is in use by process {holder['pid']} on {holder['host']}: wait for "
            "its end, stop it, or use another --workdir."
        )

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                held = self._write(self._generation)
            except Exception as error:
                _log.warning("the lease of %s could not be renewed (%s).", self._workdir, error)
            else:
                if not held:
                    return self._lost.set()

    def _write(self, generation: bytes) -> bool:
        """Writes the file if it is still that one, and whether it is ours then."""
        stamp = self._store.write(LOCK_FILE, self._text, if_equal=generation).result()
        if not stamp.generation:  # another's, or ours and the answer was lost on its way
            found = self._store.read(LOCK_FILE).result()
            if found.value != self._text:
                return False
            stamp = found.stamp
        self._generation = stamp.generation
        return True


def _open_store(directory: epath.Path) -> Any:
    """The files of a local directory or of one in a bucket, for reading and conditional writing."""
    if is_remote(directory):
        bucket, _, path = str(directory).removeprefix("gs://").partition("/")
        return ts.KvStore.open({"driver": "gcs", "bucket": bucket, "path": f"{path}/"}).result()
    return ts.KvStore.open({"driver": "file", "path": f"{directory.resolve()}/"}).result()


def _checksum(text: bytes) -> int:
    """Of what is in the file of a lease, 31 bits."""
    return zlib.crc32(text) >> 1


def _machine_id() -> str:
    """This machine until it starts anew, and within it the processes that are seen from here."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux: every lease is one from elsewhere
        return uuid.uuid4().hex


def _process_start_time(pid: int) -> int | None:
    """When a process of this machine began, in ticks of its clock; None when there is none."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
