"""Commands of `bertjax` that an ablation consists of."""

import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

Command = Sequence[str]  # a verb and its arguments


def bertjax(*command: str) -> None:
    """Runs a verb to its end; ends with its status if it fails."""
    if status := _run(command):
        sys.exit(status)


class CommandResult(NamedTuple):
    """How commands ended, and the minutes of the processor that they took, earlier times too."""

    status: int
    minutes: float


def run_once(
    record: pathlib.Path, commands: Sequence[Command], allowed_statuses: Collection[int] = ()
) -> CommandResult:
    """Runs verbs one after the other, unless a record says that they ended.

    Where the record is of other commands, all are run: each finds what is there and goes on with
    it, or refuses it because it has other settings.

    Args:
      record: a JSON file, written once all have ended.
      excused: statuses of a verb that are a result; what comes after it is not run.
    """
    known, minutes, status = json.loads(record.read_text()) if record.exists() else ([], 0.0, 0)
    if known == [[*command] for command in commands]:
        return CommandResult(status, minutes)
    before = _processor_minutes()
    for command in commands:
        if status := _run(command):
            if status in allowed_statuses:
                break
            sys.exit(status)
    minutes += _processor_minutes() - before
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_name(f"{record.name}.{os.getpid()}.partial")  # hosts share the place
    partial.write_text(json.dumps([commands, minutes, status], indent=1))
    partial.replace(record)
    return CommandResult(status, minutes)


def override_flags(fields: Mapping[str, str]) -> list[str]:
    """The flags that set fields of a configuration."""
    return [f"--config.{name}={value}" for name, value in fields.items()]


def _run(command: Command) -> int:
    print(f"$ bertjax {shlex.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "bertjax", *command]).returncode


def _processor_minutes() -> float:
    """Of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60
