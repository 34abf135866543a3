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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bertjax.config.config import Config

BERTJAX = "bertjax"
EVALUATE_AT_END = ["--config.eval_every=100%", "--config.checkpoint_every=100%"]

Work = Callable[[], object]  # may return a function that waits for the end of its work


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


def load(spec: str, overrides: Mapping[str, Any]) -> "Config":
    """Return the configuration of `NAME[:OPTIONS]` with some fields replaced."""
    from bertjax.config.loading import load_config
    from bertjax.formats.loading import find_bert_config
    from bertjax.tasks import registry

    return load_config(spec, overrides, registry.data_fields(), find_bert_config)


def bertjax_command(*words: str) -> list[str]:
    """Return the command line of `bertjax WORDS`."""
    return [sys.executable, "-m", "bertjax", *words]


def set_up_process() -> None:
    """Set up this process as `bertjax` does; call it before JAX's import.

    JAX looks for no absent devices, and freed memory stays with the process.
    """
    from bertjax.cli import jax_setup
    from bertjax.mesh.allocator import keep_freed_memory

    keep_freed_memory()
    jax_setup.choose_platforms(compiles_only=False)


def worker_command(args: argparse.Namespace, name: str, *options: str) -> list[str]:
    """Return this program's own command line, as the worker `name` and with further options."""
    python = sys.executable if name.startswith(BERTJAX) else args.peer_python
    return [python, *sys.argv, "--worker", name, *options]


def child_environment() -> dict[str, str]:
    """Return the environment in which a child process can import this repository."""
    paths = str(pathlib.Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def read_reply(command: Sequence[str], **environment: str) -> Any:
    """Run a process and return the JSON of its last line."""
    process = subprocess.run(
        command, env=child_environment() | environment, stdout=subprocess.PIPE, text=True
    )
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed: see above.")
    return json.loads(process.stdout.splitlines()[-1])


def measure_cost(command: Sequence[str]) -> Cost:
    """Run a process to its end and return its cost."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env=child_environment())
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(ended - started, cpu)


def run_work(work: Work, count: int) -> None:
    """Do the work some times and wait for its end."""
    wait: object = None
    for _ in range(count):
        wait = work()
    if callable(wait):
        wait()


def median_seconds(work: Work, calls: int, rounds: int = 5, warm_up: int = 3) -> float:
    """Return the seconds of one call, the median over rounds of several calls.

    Args:
      calls: calls of a round, which waits for the end of the last one.
      warm_up: calls before the first round.
    """
    run_work(work, warm_up)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        run_work(work, calls)
        seconds.append((time.perf_counter() - started) / calls)
    return statistics.median(seconds)


def serve_measurements(
    args: argparse.Namespace,
    programs: Mapping[str, Callable[[], Work]],
    memory: Callable[[], int] = int,
) -> None:
    """In a worker process, do the work as often as each input line says, report the cost, and exit.

    Args:
      programs: worker -> function that returns the work; its own cost does not count.
      memory: returns the peak bytes in use.
    """
    if not args.worker:
        return
    if args.worker.startswith(BERTJAX):
        set_up_process()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps what libraries print out of the replies
    work = programs[args.worker]()
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        run_work(work, int(line))
        spent = time.perf_counter() - wall, time.process_time() - cpu
        replies.write(f"{json.dumps([*spent, memory()])}\n")
        replies.flush()
    sys.exit()


def take_turns(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    calls: int = 1,
    warm_up: int = 1,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> list[dict[str, Cost]]:
    """Return, for each round, the mean cost of one call of each program.

    Args:
      commands: name -> command line of a process that calls `serve_measurements`.
      calls: calls of each program per round.
      warm_up: calls of each program before the first round.
      environments: name -> further environment variables of its process.
    """
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {
        name: subprocess.Popen(  # type: ignore[call-overload]
            command, env=child_environment() | dict((environments or {}).get(name, {})), **pipe
        )
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
        return [{name: measure(name, calls) for name in commands} for _ in range(rounds)]
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()


def print_comparison(
    title: str, unit: str, count: float, rounds: Sequence[Mapping[str, Cost]]
) -> None:
    """Print a table of rates and of speedups of bertjax, medians over the rounds.

    Args:
      unit: what a rate counts, in plural.
      count: units of one call.
    """
    print(f"\n{title:28}{unit + '/s':>14}{'CPU s':>10}{'speedup of bertjax':>26}")
    for name in rounds[0]:
        wall, cpu = (statistics.median(costs[name][i] for costs in rounds) for i in (0, 1))
        ratios = [
            statistics.median(costs[name][i] / costs[BERTJAX][i] for costs in rounds)
            for i in (0, 1)
        ]
        speedup = "" if name == BERTJAX else "{:.2f} (CPU {:.2f})".format(*ratios)
        print(f"{name:28}{count / wall:14.1f}{cpu:10.2f}{speedup:>26}", flush=True)
