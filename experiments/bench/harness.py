"""Harness of the benchmarks: measured programs run in their own processes and take turns.

Programs that take turns share whatever else the machine does, so their ratio can be trusted.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

BERTJAX = "bertjax"


class Cost(NamedTuple):
    """Cost of one call.

    Attributes:
      wall: seconds by the clock.
      cpu: CPU seconds, summed over the cores.
      memory: peak bytes in use; 0 where unknown.
    """

    wall: float
    cpu: float
    memory: int = 0


def make_parser(doc: str | None, rounds: int = 3, cores: int = 2) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks that compare programs."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--cores", type=int, default=cores)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def limit_cores(count: int) -> None:
    """Keep this process and those it starts to the first `count` cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def child_environment() -> dict[str, str]:
    """Return the environment in which a child process can import this repository."""
    return os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}


def measure_cost(command: Sequence[str]) -> Cost:
    """Run a process to its end and return its cost."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env=child_environment())
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(ended - started, cpu)


def peak_memory(command: Sequence[str]) -> float:
    """Run a process and return the peak resident MiB of it and its children, sampled at 100 Hz."""
    import psutil

    process = psutil.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        total = 0
        for member in [process, *process.children(recursive=True)]:
            try:
                total += member.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, total)
        time.sleep(0.01)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed.")
    return peak / 2**20


def serve_measurements(
    make: Callable[[], Callable[[], object]], memory: Callable[[], int] = int
) -> None:
    """In a worker process: call a function as often as each input line says, and report the cost.

    Args:
      make: returns the function; its own cost does not count.
      memory: returns the peak bytes in use.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what libraries print out of the replies
    work = make()
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            work()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        replies.write(f"{json.dumps([*spent, memory()])}\n")
        replies.flush()


def take_turns(
    commands: Mapping[str, Sequence[str]], rounds: int, calls: int = 1, warm_up: int = 1
) -> Iterator[dict[str, Cost]]:
    """Yield, for each round, the mean cost of one call of each program.

    Args:
      commands: name -> command line of a process that calls `serve_measurements`.
      calls: calls of each program per round.
      warm_up: calls of each program before the first round.
    """
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {
        name: subprocess.Popen(command, env=child_environment(), **pipe)  # type: ignore[call-overload]
        for name, command in commands.items()
    }

    def measure(name: str, count: int) -> Cost:
        worker = workers[name]
        worker.stdin.write(f"{count}\n")
        worker.stdin.flush()
        reply = worker.stdout.readline()
        if not reply:
            sys.exit(f"{name} failed: does {commands[name][0]} have torch and transformers?")
        wall, cpu, memory = json.loads(reply)
        return Cost(wall / count, cpu / count, memory)

    try:
        if warm_up:
            for name in commands:
                measure(name, warm_up)
        for _ in range(rounds):
            yield {name: measure(name, calls) for name in commands}
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def comparison_table(
    title: str, unit: str, count: float, rounds: Sequence[Mapping[str, Cost]]
) -> Iterator[str]:
    """Yield the lines of a table of rates and of speedups of bertjax, medians over the rounds.

    Args:
      unit: what a rate counts, in plural.
      count: units of one call.
    """
    yield f"\n{title:26}{unit + '/s':>14}{'CPU s':>10}{'speedup of bertjax':>26}"
    for name in rounds[0]:
        wall, cpu = (statistics.median(costs[name][i] for costs in rounds) for i in (0, 1))
        ratios = [
            statistics.median(costs[name][i] / costs[BERTJAX][i] for costs in rounds)
            for i in (0, 1)
        ]
        speedup = "" if name == BERTJAX else "{:.2f} (CPU {:.2f})".format(*ratios)
        yield f"{name:26}{count / wall:14.1f}{cpu:10.2f}{speedup:>26}"
