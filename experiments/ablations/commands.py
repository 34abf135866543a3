"""Commands of `bertjax` that an ablation consists of."""

import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

Command = Sequence[str]  # a verb and its arguments


def bertjax(*command: str) -> None:
    """Runs a verb to its end; ends with its status if it fails."""
    if status := _run(command):
        sys.exit(status)


def run_once(
    record: pathlib.Path, commands: Sequence[Command], excused: Callable[[], bool] = lambda: False
) -> float:
    """Runs verbs one after the other, unless a record says that they ended.

    Where the record is of other commands, all are run: each finds what is there and goes on with
    it, or refuses it because it has other settings.

    Args:
      record: a JSON file, written once all have ended.
      excused: whether the one that failed did so in a way that is a result.
    Returns:
      Minutes of the processor that they took, those of earlier times with them.
    """
    known, minutes = json.loads(record.read_text()) if record.exists() else ([], 0.0)
    if known == [[*command] for command in commands]:
        return float(minutes)
    before = _processor_minutes()
    for command in commands:
        if status := _run(command):
            if excused():
                break
            sys.exit(status)
    minutes += _processor_minutes() - before
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_name(f"{record.name}.{os.getpid()}.partial")  # hosts share the place
    partial.write_text(json.dumps([commands, minutes], indent=1))
    partial.replace(record)
    return float(minutes)


def overrides(fields: Mapping[str, str]) -> list[str]:
    """The flags that set fields of a configuration."""
    return [f"--config.{name}={value}" for name, value in fields.items()]


def _run(command: Command) -> int:
    print(f"$ bertjax {shlex.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "bertjax", *command]).returncode


def _processor_minutes() -> float:
    """Of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60
