"""Injected faults at named points of the program, for tests of what a kill or an error leaves.

    BERTJAX_FAULT="save.after_write:3=kill"     SIGKILL at the third time
    BERTJAX_FAULT="join=raise"                  `InjectedFaultError` at the first time

Points: `join` (before processes join), `step.before_update` (before each train step),
`save.after_write` (arrays are written, the manifest is not), `save.after_manifest` (a checkpoint is
finished, older ones are not yet deleted), `delete.after_manifest` (a deletion has begun).
"""

import contextlib
import dataclasses
import os
import re
import signal
from collections.abc import Iterator

from data_pipelines.errors import InputError

FAULT_ENV = "BERTJAX_FAULT"
POINTS = {
    "join",
    "step.before_update",
    "save.after_write",
    "save.after_manifest",
    "delete.after_manifest",
}
_SPEC = re.compile(r"([\w.]+)(?::(\d+))?=(kill|raise)")


class InjectedFaultError(Exception):
    """A fault that was asked for."""


@dataclasses.dataclass
class _Fault:
    point: str
    count: int  # passes of the point until it happens
    action: str


def _parse(spec: str) -> _Fault:
    match = _SPEC.fullmatch(spec)
    if not match or match[1] not in POINTS or match[2] == "0":
        raise InputError(
            f"{FAULT_ENV}={spec!r}: is not POINT:COUNT=kill or POINT:COUNT=raise. Use a point of "
            f"{', '.join(sorted(POINTS))} and a count from 1."
        )
    return _Fault(match[1], int(match[2] or 1), match[3])


_fault = _parse(os.environ[FAULT_ENV]) if os.environ.get(FAULT_ENV) else None


def fault_point(name: str) -> None:
    """Fail here if a fault is injected at this point; do nothing in production.

    Raises:
      InjectedFaultError: as the fault says.
    """
    if _fault is None or _fault.point != name:
        return
    _fault.count -= 1
    if _fault.count:
        return
    if _fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedFaultError(f"fault injected at {name}")


@contextlib.contextmanager
def inject_fault(spec: str) -> Iterator[None]:
    """Inject a fault, in the form of the environment variable, inside the block."""
    global _fault
    previous, _fault = _fault, _parse(spec)
    try:
        yield
    finally:
        _fault = previous
