"""Running the `bertjax` commands of an ablation."""

import json
import pathlib
import resource
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from data_pipelines.paths import atomic_write_text

Command = Sequence[str]  # a subcommand and its arguments


def run_bertjax(*command: str) -> None:
    """Run a subcommand; exit with its status if it fails."""
    if status := _run(command):
        sys.exit(status)


class CommandResult(NamedTuple):
    """Exit status of commands, and the CPU minutes of all their attempts."""

    status: int
    minutes: float


def run_once(
    record: pathlib.Path, commands: Sequence[Command], allowed_statuses: Collection[int] = ()
) -> CommandResult:
    """Run subcommands one after the other, unless a record shows that they have ended.

    If the record lists other commands, all are run: each resumes its workdir, or rejects it
    because of other settings.

    Args:
      record: JSON file, written once all commands have ended.
      commands: the subcommands.
      allowed_statuses: exit statuses that are a result; later commands are then skipped.
    """
    recorded, minutes, status = json.loads(record.read_text()) if record.exists() else ([], 0.0, 0)
    if recorded == [[*command] for command in commands]:
        return CommandResult(status, minutes)
    before = _cpu_minutes()
    for command in commands:
        if status := _run(command):
            if status in allowed_statuses:
                break
            sys.exit(status)
    minutes += _cpu_minutes() - before
    record.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(record, json.dumps([commands, minutes, status], indent=1))
    return CommandResult(status, minutes)


def override_flags(fields: Mapping[str, str]) -> list[str]:
    """Return the flags that set fields of a configuration."""
    return [f"--config.{name}={value}" for name, value in fields.items()]


def _run(command: Command) -> int:
    print(f"$ bertjax {shlex.join(command)}", flush=True)
    return subprocess.run([sys.executable, "-m", "bertjax", *command]).returncode


def _cpu_minutes() -> float:
    """Return the CPU minutes of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60
