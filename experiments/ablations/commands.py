"""Running the `bertjax` commands of an ablation."""

import argparse
import json
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection, Mapping, Sequence

from bertjax.errors import EXIT_RESTART
from data_pipelines.errors import InputError
from data_pipelines.paths import check_expanded, is_remote


def local_path(text: str) -> pathlib.Path:
    """Return a path of the local file system, as a type of `argparse`.

    Raises:
      argparse.ArgumentTypeError: it is one of a bucket, or has an unexpanded `~`.
    """
    if is_remote(text):
        raise argparse.ArgumentTypeError(f"{text}: not local. Name one that is mounted here.")
    try:
        check_expanded(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return pathlib.Path(text)


def check_seeds(seeds: int) -> None:
    """Exit unless `--seeds` asks for a run."""
    if seeds < 1:
        sys.exit(f"--seeds {seeds}: no run. Train with one or more.")


def run_bertjax(*command: str, allowed_statuses: Collection[int] = ()) -> int:
    """Run a subcommand and return its exit status; exit if it is neither 0 nor allowed."""
    print(f"$ bertjax {shlex.join(command)}", flush=True)
    status = run_process([sys.executable, "-m", "bertjax", *command])
    if status and status not in allowed_statuses:
        sys.exit(status)
    return status


def run_process(command: Sequence[str]) -> int:
    """Run a process and return its exit status, as a shell does.

    SIGTERM is passed on, so that a training saves its state and no process is left. A terminal
    sends SIGINT to the process itself.
    """
    started: list[subprocess.Popen[bytes]] = []
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True
        for child in started:
            if number == signal.SIGTERM:
                child.terminate()

    # First, so that no signal is lost. A process started from a handler, unlike an ignored signal,
    # inherits the default.
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        with subprocess.Popen(command) as child:
            started.append(child)
            if stopped:
                child.terminate()
            status = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if stopped and not status:  # it had ended
        return EXIT_RESTART
    return status if status >= 0 else 128 - status


def run_once(
    record: pathlib.Path, commands: Sequence[Sequence[str]], allowed_statuses: Collection[int] = ()
) -> tuple[int, float]:
    """Run subcommands one after the other, unless a record shows that they have ended.

    If the record lists other commands, all are run: each resumes its workdir, or rejects it
    because of other settings.

    Args:
      record: JSON file, written once all commands have ended.
      commands: the subcommands with their arguments.
      allowed_statuses: exit statuses that are a result; later commands are then skipped.

    Returns:
      The last exit status, and the CPU minutes of all attempts.
    """
    recorded, minutes, status = json.loads(record.read_text()) if record.exists() else ([], 0.0, 0)
    if recorded == [[*command] for command in commands]:
        return status, minutes
    minutes -= _cpu_minutes()
    for command in commands:
        if status := run_bertjax(*command, allowed_statuses=allowed_statuses):
            break
    minutes += _cpu_minutes()
    record.parent.mkdir(parents=True, exist_ok=True)
    write_shared(record, json.dumps([commands, minutes, status], indent=1))
    return status, minutes


def write_shared(path: pathlib.Path, text: str) -> None:
    """Write a file that other processes write at the same time; one of them wins."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def override_flags(fields: Mapping[str, object]) -> list[str]:
    """Return the flags that set fields of a configuration."""
    return [f"--config.{name}={value}" for name, value in fields.items()]


def _cpu_minutes() -> float:
    """Return the CPU minutes of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60
