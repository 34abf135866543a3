"""Contestants in processes of their own, and what they cost.

Those that take turns share alike in what else the machine does.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds: by the clock, and of processor time, summed over the cores; bytes, where told."""

    wall: float
    cpu_seconds: float
    memory: int = 0


def child_environment() -> dict[str, str]:
    """In which a contestant finds this project."""
    return os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}


def measure_cost(command: Sequence[str]) -> Cost:
    """Of a process that runs to its end, its output shown."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env=child_environment())
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(ended - started, cpu_seconds)


def serve_measurements(
    make: Callable[[], Callable[[], object]], memory: Callable[[], int] = int
) -> None:
    """In a contestant: works as many times as each line of its input says, and tells the cost.

    Args:
      make: gives the function that does the work once; what it takes is not counted.
      memory: the most bytes that were in use.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    work = make()
    for line in sys.stdin:
        wall, cpu_seconds = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            work()
        spent = time.perf_counter() - wall, time.process_time() - cpu_seconds
        answers.write(f"{json.dumps([*spent, memory()])}\n")
        answers.flush()


def take_turns(
    commands: Mapping[str, Sequence[str]], rounds: int, times: int, warm_up: int
) -> Iterator[dict[str, Cost]]:
    """The mean cost of working once, of each contestant, round by round.

    Args:
      commands: name -> the command line of a process that serves.
      times, warm_up: how often each works in a round, and before the first one.
    """
    workers = {
        name: subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        for name, command in commands.items()
    }

    def ask(name: str, times: int) -> Cost:
        worker = workers[name]
        assert worker.stdin and worker.stdout
        worker.stdin.write(f"{times}\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        if not answer:
            sys.exit(f"{name} failed: does {commands[name][0]} have torch and transformers?")
        wall, cpu_seconds, memory = json.loads(answer)
        return Cost(wall / times, cpu_seconds / times, memory)

    try:
        for name in commands:
            if warm_up:
                ask(name, warm_up)
        for _ in range(rounds):
            yield {name: ask(name, times) for name in commands}
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
