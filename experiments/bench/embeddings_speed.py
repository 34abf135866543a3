"""How fast lines become vectors, beside sentence-transformers on the same cores.

    python -m experiments.bench.embeddings_speed --peer-python PYTHON --checkpoint MODEL \
      --input lines.txt [--lines N] [--rounds N]

MODEL is a directory of sentence-transformers. bertjax writes the vectors of all lines to a file as
`bertjax embed` does; the peer is `SentenceTransformer.encode` with its batches of 32, once of
the whole list, which it sorts by length, and once of a stream, 32 lines at a time as they come.
Each works in a process of its own that has done it once before; contestants take turns, and ratios
are medians over the rounds. The vectors are compared. With --memory the peak of memory of whole
`bertjax embed` processes is told, of a tenth of the lines and of all. PYTHON needs sentence-
transformers (extra [bench]); it may be the interpreter of another environment.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from experiments.bench.alternating_runs import (
    Cost,
    child_environment,
    serve_measurements,
    take_turns,
)

OURS, LIST, STREAM = "bertjax", "sentence-transformers", "the same, a stream"
BATCH = 32


def bertjax_work(model: str, lines: list[str], output: pathlib.Path) -> Callable[[], object]:
    from bertjax.cli.jax_setup import skip_missing_tpu
    from bertjax.inference.feature_extraction import Embedder, find_embedding_options

    skip_missing_tpu()
    embedder = Embedder(*find_embedding_options(model))

    def work() -> None:
        output.unlink(missing_ok=True)
        embedder.write(lines, output)

    return work


def peer_work(
    model: str, lines: list[str], output: pathlib.Path, streams: bool, cores: int
) -> Callable[[], object]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    peer = SentenceTransformer(model, device="cpu")

    def encode(some: list[str]) -> np.ndarray:
        return np.asarray(peer.encode(some, batch_size=BATCH, show_progress_bar=False))

    def work() -> None:
        parts = range(0, len(lines), BATCH) if streams else [0]
        size = BATCH if streams else len(lines)
        found = np.concatenate([encode(lines[first : first + size]) for first in parts])
        np.savez(output, vectors=found)

    return work


def peak_memory(model: str, source: pathlib.Path, output: pathlib.Path) -> float:
    """MiB that a whole process of `bertjax embed` has at most."""
    program = (
        "import subprocess, sys, resource; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    verb = [sys.executable, "-m", "bertjax", "features", "--checkpoint", model]
    command = [*verb, "--input", str(source), "--output", str(output)]
    found = subprocess.run(
        [sys.executable, "-c", program, *command],
        check=True,
        env=child_environment(),
        stdout=subprocess.PIPE,
    )
    return int(found.stdout.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--input", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--work", choices=[OURS, LIST, STREAM], help=argparse.SUPPRESS)
    parser.add_argument("--output", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with open(args.input, encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, args.lines)]
    given = args.checkpoint, lines, args.output
    if args.work == OURS:
        return serve_measurements(lambda: bertjax_work(*given))
    if args.work:
        return serve_measurements(lambda: peer_work(*given, args.work == STREAM, args.cores))

    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        if args.memory:
            for count in (len(lines) // 10, len(lines)):
                (folder / "in.txt").write_text("\n".join(lines[:count]), encoding="utf-8")
                found = peak_memory(args.checkpoint, folder / "in.txt", folder / f"{count}.npz")
                print(f"{count:,} lines: at most {found:,.0f} MiB", flush=True)
            return None
        outputs = {name: folder / f"{i}.npz" for i, name in enumerate((OURS, LIST, STREAM))}
        commands = {
            name: [
                *(sys.executable if name == OURS else args.peer_python, __file__),
                *("--checkpoint", args.checkpoint, "--input", str(args.input)),
                *(f"--lines={args.lines}", f"--cores={args.cores}", f"--work={name}"),
                *("--output", str(output)),
            ]
            for name, output in outputs.items()
        }
        rounds: list[dict[str, Cost]] = list(take_turns(commands, args.rounds, 1, warm_up=1))
        print(f"{'':24}{'lines/s':>10}{'processor s':>13}{'bertjax is faster by':>30}")
        for name in commands:
            wall, cpu_seconds = (
                statistics.median(each[name][i] for each in rounds) for i in (0, 1)
            )
            ratios = (
                statistics.median(each[name][i] / each[OURS][i] for each in rounds) for i in (0, 1)
            )
            times = "" if name == OURS else "{:.2f} ({:.2f} processor)".format(*ratios)
            print(f"{name:24}{len(lines) / wall:10.1f}{cpu_seconds:13.2f}{times:>30}")
        ours, theirs = (np.load(outputs[name])["vectors"] for name in (OURS, LIST))
        print(f"\nvectors differ by {np.abs(ours - theirs).max():.2g} at most")
    return None


if __name__ == "__main__":
    main()
