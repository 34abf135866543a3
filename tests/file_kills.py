"""Kills of a process at its operations on files: one for each operation and role of a file.

Python's audit events come before the operations. So a kill at an event leaves what the operations
before it did. A file that is opened to be written is created empty first: this is the kill between
open and write. Arrays of checkpoints are left out: Orbax writes them in C++, in directories that a
rename or the manifest finishes.
"""

import json
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

Operation = tuple[str, str]  # name of the operation, role of the file

_RENAMES = {"os.rename": "rename", "os.link": "link"}
_REMOVALS = {"os.remove": "remove", "os.rmdir": "rmdir", "os.mkdir": "mkdir"}
OF_ORBAX = re.compile(r"ocdbt|/(params|training)(/|\.|$)|orbax|_METADATA|_sharding")


def role_of(path: object, root: str) -> str | None:
    """Return the path below the root without its numbers; None if it is elsewhere."""
    name = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes) else ""
    if not name.startswith(root + os.sep):
        return None
    return re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{12,}", "X", name.removeprefix(root + os.sep)))


def watch(root: str, act: Callable[[Operation, str], None]) -> None:
    """Call a function before each operation of this process on a file below the root."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(c in mode for c in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
            name = "open" if writes else ""
        else:
            name = _RENAMES.get(event, "") or _REMOVALS.get(event, "")
            path = arguments[1] if event in _RENAMES else arguments[0] if name else ""
        role = role_of(path, root) if name else None
        if role is not None and not OF_ORBAX.search(f"/{role}"):
            act((name, role), os.fsdecode(path))

    sys.addaudithook(hook)


def record(root: pathlib.Path, log: pathlib.Path) -> None:
    """Write the operations of this process below the root into a file, a JSON line each."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    watch(
        str(root),
        lambda operation, _: os.write(descriptor, f"{json.dumps(operation)}\n".encode()) and None,
    )


def kill_at(root: pathlib.Path, wanted: Operation) -> None:
    """Kill this process at the first such operation below the root."""

    def act(operation: Operation, path: str) -> None:
        if operation != wanted:
            return
        if operation[0] == "open" and not os.path.exists(path):
            # Not through Python's hook, which would call itself.
            os.mknod(path)
        os.kill(os.getpid(), signal.SIGKILL)

    watch(str(root), act)


def distinct_operations(log: pathlib.Path) -> list[Operation]:
    """Return the operations in a file of `record`, each once."""
    lines = (json.loads(line) for line in log.read_text().splitlines())
    return [*dict.fromkeys((name, role) for name, role in lines)]
