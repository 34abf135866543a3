"""Mutate files and command lines; each ends in a result or in one line, within time and memory.

    python -m experiments.bench.mutations --count 20000 --commands 300
    python -m experiments.bench.mutations --reader bertjax --first-seed 17 --count 1

Files have a few kilobytes; with each twentieth seed a megabyte. A child process reads mutations,
one after the other, and is restarted after one that ends it. A failure is another exception than
those of input, a message of more than one line or 500 characters, a signal, more than 2 s of
processor time, or 500 MB of memory more than before. Each is printed with its reader and seed; the
second command repeats it. A line for each reader has the largest time and memory. The exit status
is 1 if there are failures. 20,000 mutations take about 25 minutes on one core.
"""

import argparse
import collections
import contextlib
import faulthandler
import io
import json
import logging
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.cli.main import main as run_command
from bertjax.errors import CommandError
from data_pipelines.errors import InputError, one_line
from experiments.bench.mutations.mutate import mutate
from experiments.bench.mutations.readers import Reader, make_readers

SECONDS, MEGABYTES, ALARM = 2.0, 500, 60
_SIZES, _PERIOD = (2_000, 1 << 20), 20  # bytes of files; each such seed has the large ones
_PER_CHILD = 200  # mutations
_MAX_RESERVED = 8 << 30  # bytes of addresses, so that no mutation takes all memory of the machine
_SUBCOMMANDS = "config convert embed evaluate export inspect predict prepare report score vocab"
_OPTIONS = [
    "--checkpoint",
    "--output",
    "--input",
    "--text",
    "--config",
    "--vocab",
    "--to",
    "--field",
    "--layers",
    "--level",
    "--pooling",
    "--return-all-scores",
    "--num-shards",
    "--vocab-size",
    "--task",
    "--workers",
    "--seeds",
    "--data",
    "--predictions",
    "--config.steps",
    "--config.seed",
    "--config.task",
    "--config.batch_size",
    "--config.data.dir",
    "--topology",
]
_WORDS = (
    *("", " ", "-", ".", "..", "/dev/null", "/proc/x", "HF", "RUN", "FILE", "new", "x" * 600, "-1"),
    *("0", "1", "10000000000000000000000000", "1e9", "nan", "hf", "tf1", "cmrc", "pretraining"),
    *("pretraining:smoke", "pretraining:model=nosuch", "glue:smoke", "a:b", "{", "\x1b[31m", "é\0"),
)


class SlowError(Exception):
    """A mutation that takes more than `ALARM` seconds."""


class Outcome(NamedTuple):
    """Outcome of a call: what is wrong, "" if nothing; processor time in seconds; memory in MB."""

    problem: str
    seconds: float
    megabytes: float


def check_mutation(reader: Reader, directory: pathlib.Path, seed: int) -> Outcome:
    """Read a mutation of a file in a directory of the reader's files."""
    name = random.Random(seed).choice(sorted(reader.files))
    (directory / name).write_bytes(mutate(reader.files[name], seed))
    reader.prepare(directory)
    try:
        return _watch(lambda: reader.read(epath.Path(directory)), name)
    finally:
        for other in reader.files:
            if other == name or other.endswith("files.json"):  # which `prepare` may change
                (directory / other).write_bytes(reader.files[other])


def check_command(words: Sequence[str]) -> Outcome:
    """Run a command in this process."""
    error = io.StringIO()

    def run() -> None:
        with (
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.suppress(SystemExit),  # of argparse
        ):
            run_command(words)

    outcome = _watch(run, " ".join(words)[:200], seconds=ALARM)
    lines = [line for line in error.getvalue().splitlines() if line.startswith("bertjax: ")]
    is_long = len(lines) > 1 or any(len(line) > 700 for line in lines)
    return outcome._replace(problem=f"message: {lines}") if is_long else outcome


def _watch(call: Callable[[], object], name: str, seconds: float = SECONDS) -> Outcome:
    def stop(number: int, frame: FrameType | None) -> None:
        raise SlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(ALARM)
    faulthandler.dump_traceback_later(2 * ALARM, exit=True)  # Python's handler waits for C code
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    memory, start, problem = _peak_mb(), time.process_time(), ""
    try:
        if not _is_finite(call()):
            problem = "a number that is not finite"
    except (InputError, CommandError) as error:
        if len(str(error)) > 500 or not str(error).isprintable():
            problem = f"message of {len(str(error))} characters"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/site-packages/" not in frame.filename][-1]
        place = f"{pathlib.Path(ours.filename).name}:{ours.lineno}"
        problem = f"{type(error).__name__} at {place}: {error}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    used, grown = time.process_time() - start, _peak_mb() - memory
    if used > seconds:
        problem = problem or f"{used:.1f} s"
    if grown > MEGABYTES:
        problem = problem or f"{grown:.0f} MB"
    return Outcome(one_line(f"{name}: {problem}"[:300]) if problem else "", used, grown)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _is_finite(value: object) -> bool:
    """Return whether all numbers in lists, dictionaries and arrays are finite."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float | np.floating) or bool(np.isfinite(value))


def run_in_children(
    count: int,
    first: int,
    check: Callable[[int], Outcome],
    begin: Callable[[], object] = lambda: None,
) -> tuple[list[tuple[int, str]], str]:
    """Run checks in children, one after the other.

    Args:
      count: number of checks.
      first: number of the first check.
      check: takes the number of a check.
      begin: called first in each child.

    Returns:
      Number and problem of the failed checks, and the largest time and memory as a text.
    """
    failures, number, largest = [], first, (0.0, 0.0)
    while number < first + count:
        end = min(number + _PER_CHILD, first + count)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            begin()
            address_space = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            limit = address_space * resource.getpagesize() + _MAX_RESERVED
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            for i in range(number, end):
                os.write(writer, (json.dumps([i, *check(i)]) + "\n").encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            done = [(json.loads(line)) for line in lines]
        _, status = os.waitpid(child, 0)
        failures += [(i, problem) for i, problem, _, _ in done if problem]
        for _, _, *used in done:
            largest = max(largest[0], used[0]), max(largest[1], used[1])
        number += len(done)
        if status:
            failures.append((number, f"the process ended with status {status}"))
            number += 1
    return failures, f"at most {largest[0]:.2f} s, {largest[1]:.0f} MB"


def main() -> int:
    """Run the campaign and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="mutations (%(default)s)")
    parser.add_argument("--commands", type=int, default=0, help="command lines (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed (%(default)s)")
    parser.add_argument("--reader", help="the only reader (all)")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    total: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        small, large = (make_readers(root / str(size), size) for size in _SIZES)
        names = [args.reader] if args.reader else list(small)
        count = -(-args.count // len(names))
        for name in names:
            start = time.monotonic()
            cases = [
                (readers[name], root / f"mutated{i}") for i, readers in enumerate((small, large))
            ]
            failures, largest = _run_mutations(count, args.first_seed, cases)
            total.update(mutations=count, failures=len(failures))
            seconds = time.monotonic() - start
            print(f"{name}: {len(failures)} of {count} in {seconds:.0f} s; {largest}", flush=True)
            for seed, problem in failures[:20]:
                print(f"  seed {seed}: {problem}", flush=True)
        total.update(_run_commands(args.commands, root / str(_SIZES[0]), args.first_seed))
    print(dict(total))
    return total["failures"] > 0


def _run_mutations(
    count: int, first: int, cases: Sequence[tuple[Reader, pathlib.Path]]
) -> tuple[list[tuple[int, str]], str]:
    """Run the mutations of one reader, in a directory of small files and one of large files."""

    def begin() -> None:
        for reader, directory in cases:
            shutil.rmtree(directory, ignore_errors=True)
            if reader.base:
                shutil.copytree(reader.base, directory)
            for file, content in reader.files.items():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                (directory / file).write_bytes(content)
            reader.read(epath.Path(directory))  # imports take time, and intact files are read

    def check(seed: int) -> Outcome:
        return check_mutation(*cases[seed % _PERIOD == 0], seed)

    return run_in_children(count, first, check, begin)


def _run_commands(count: int, root: pathlib.Path, first: int) -> dict[str, int]:
    places = {"HF": root / "hf", "RUN": root / "bertjax", "FILE": root / "text.txt"}
    os.chdir(root)

    def words(seed: int) -> list[str]:
        draw = random.Random(seed)
        line = [draw.choice(_SUBCOMMANDS.split())]
        for _ in range(draw.randrange(7)):
            word = draw.choice(_WORDS)
            value = str(places.get(word, word))
            option = draw.choice(_OPTIONS)
            line += [f"{option}={value}"] if draw.random() < 0.5 else [option, value]
        return line

    failures, largest = run_in_children(count, first, lambda seed: check_command(words(seed)))
    print(f"commands: {len(failures)} of {count}; {largest}")
    for seed, problem in failures:
        print(f"  command {seed}: {problem}: {' '.join(words(seed))[:300]!r}", flush=True)
    return {"commands": count, "failures": len(failures)}


if __name__ == "__main__":
    sys.exit(main())
