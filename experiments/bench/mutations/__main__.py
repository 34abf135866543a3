"""Mutate files and command lines; each ends in a result or in one line, within time and memory.

    python -m experiments.bench.mutations --count 20000 --commands 300
    python -m experiments.bench.mutations --reader bertjax --first-seed 17 --count 1

A child process reads mutations, one after the other, and is restarted after one that ends it. A
failure is another exception than those of input, a message of more than one line or 500
characters, a signal, more than 2 s of processor time, or 500 MB of memory more than before. Each
is printed with its reader and seed; the second command repeats it. The exit status is 1 if there
are some. 20,000 mutations take about 15 minutes on one core.
"""

import argparse
import collections
import contextlib
import io
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
from collections.abc import Callable, Sequence
from types import FrameType

from etils import epath

from bertjax.cli.main import main as run_command
from bertjax.errors import CommandError
from data_pipelines.errors import InputError
from experiments.bench.mutations.mutate import mutate
from experiments.bench.mutations.readers import Reader, make_readers

SECONDS, MEGABYTES, ALARM = 2.0, 500, 15
_PER_CHILD = 200  # mutations
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


def check_mutation(reader: Reader, directory: pathlib.Path, seed: int) -> str:
    """Read a mutation; return what is wrong, "" if nothing."""
    name = random.Random(seed).choice(sorted(reader.files))
    path = directory / name
    path.write_bytes(mutate(reader.files[name], seed))
    reader.prepare(directory)
    try:
        return _watch(lambda: reader.read(epath.Path(directory)), name)
    finally:
        for other in {name, *({"files.json"} & reader.files.keys())}:
            (directory / other).write_bytes(reader.files[other])


def check_command(words: Sequence[str]) -> str:
    """Run a command in this process; return what is wrong, "" if nothing."""
    error = io.StringIO()

    def run() -> None:
        with (
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.suppress(SystemExit),  # of argparse
        ):
            run_command(words)

    problem = _watch(run, " ".join(words)[:200], seconds=ALARM)
    lines = [line for line in error.getvalue().splitlines() if line.startswith("bertjax: ")]
    is_long = len(lines) > 1 or any(len(line) > 700 for line in lines)
    return problem or (f"message: {lines}" if is_long else "")


def _watch(call: Callable[[], object], name: str, seconds: float = SECONDS) -> str:
    def stop(number: int, frame: FrameType | None) -> None:
        raise SlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(ALARM)
    memory, start = _peak_mb(), time.process_time()
    try:
        call()
    except (InputError, CommandError) as error:
        if len(str(error)) > 500 or not str(error).isprintable():
            return f"{name}: message of {len(str(error))} characters"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/site-packages/" not in frame.filename][-1]
        place = f"{pathlib.Path(ours.filename).name}:{ours.lineno}"
        return f"{name}: {type(error).__name__} at {place}: {error}"[:300]
    finally:
        signal.alarm(0)
    if (used := time.process_time() - start) > seconds:
        return f"{name}: {used:.1f} s"
    if (grown := _peak_mb() - memory) > MEGABYTES:
        return f"{name}: {grown:.0f} MB"
    return ""


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_in_children(count: int, first: int, check: Callable[[int], str]) -> list[tuple[int, str]]:
    """Return number and problem of the failed checks among `count` from `first` on."""
    failures, number = [], first
    while number < first + count:
        end = min(number + _PER_CHILD, first + count)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for i in range(number, end):
                os.write(writer, f"{i}\t{check(i)}\n".replace("\0", "").encode("utf-8", "replace"))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, errors="replace") as lines:
            done = [line.rstrip("\n").partition("\t") for line in lines]
        _, status = os.waitpid(child, 0)
        failures += [(int(i), problem) for i, _, problem in done if i.isdecimal() and problem]
        number += len(done)
        if status:
            failures.append((number, f"the process ended with status {status}"))
            number += 1
    return failures


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
        readers = make_readers(root)
        names = [args.reader] if args.reader else list(readers)
        for name in names:
            reader, directory = readers[name], root / "mutated"
            shutil.rmtree(directory, ignore_errors=True)
            if reader.base:
                shutil.copytree(reader.base, directory)
            for file, content in reader.files.items():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                (directory / file).write_bytes(content)
            count = -(-args.count // len(names))

            def check(
                seed: int, reader: Reader = reader, directory: pathlib.Path = directory
            ) -> str:
                return check_mutation(reader, directory, seed)

            start = time.monotonic()
            failures = run_in_children(count, args.first_seed, check)
            total.update(mutations=count, failures=len(failures))
            print(
                f"{name}: {len(failures)} of {count} in {time.monotonic() - start:.0f} s",
                flush=True,
            )
            for seed, problem in failures[:20]:
                print(f"  seed {seed}: {problem}", flush=True)
        total.update(_run_commands(args.commands, root, args.first_seed))
    print(dict(total))
    return total["failures"] > 0


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

    failures = run_in_children(count, first, lambda seed: check_command(words(seed)))
    for seed, problem in failures:
        print(f"  command {seed}: {problem}: {' '.join(words(seed))[:300]!r}", flush=True)
    return {"commands": count, "failures": len(failures)}


if __name__ == "__main__":
    sys.exit(main())
