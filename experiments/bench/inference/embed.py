"""Embeddings of texts, compared with sentence-transformers on the same cores.

    python -m experiments.bench.inference.embed --peer-python PYTHON --checkpoint MODEL \
      --input lines.txt [--lines N] [--rounds N]

MODEL is a directory of sentence-transformers. bertjax writes the embeddings of all lines to a file
as `bertjax embed` does. The peer is `SentenceTransformer.encode` with batches of 32: once of the
whole list, which it sorts by length, and once of a stream, 32 lines at a time. Programs take turns
in processes that have done the work once; ratios are medians over the rounds. The embeddings are
compared. With --memory the peak memory of `bertjax embed` is measured instead, for a tenth of the
lines and for all. PYTHON is an interpreter with sentence-transformers (extra [bench]).
"""

import functools
import itertools
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Work

LIST, STREAM = "sentence-transformers", "the same, a stream"
BATCH_SIZE = 32


def make_bertjax_work(model: str, lines: Sequence[str], output: pathlib.Path) -> Work:
    from bertjax.inference.feature_extraction import Embedder, find_embedding_options

    embedder = Embedder(*find_embedding_options(model))

    def work() -> None:
        output.unlink(missing_ok=True)
        embedder.write(lines, output)

    return work


def make_torch_work(
    model: str, lines: Sequence[str], output: pathlib.Path, size: int, cores: int
) -> Work:
    """Return a function that embeds `size` lines at a time."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    encoder = SentenceTransformer(model, device="cpu")
    encode = functools.partial(encoder.encode, batch_size=BATCH_SIZE, show_progress_bar=False)

    def work() -> None:
        parts = [encode(lines[first : first + size]) for first in range(0, len(lines), size)]
        np.savez(output, embeddings=np.concatenate(parts))

    return work


def peak_memory(command: Sequence[str]) -> float:
    """Run a process and return the peak resident MiB of it and its children, sampled at 100 Hz."""
    import psutil

    process = psutil.Popen(command, env=harness.child_environment(), stdout=subprocess.DEVNULL)
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


def measure_memory(model: str, lines: Sequence[str], directory: pathlib.Path) -> None:
    """Print the peak memory of `bertjax embed` for a tenth of the lines and for all."""
    for count in (len(lines) // 10, len(lines)):
        source, output = directory / f"{count}.txt", directory / f"{count}.npz"
        source.write_text("\n".join(lines[:count]), encoding="utf-8")
        paths = ["--checkpoint", model, "--input", str(source), "--output", str(output)]
        peak = peak_memory(harness.bertjax_command("embed", *paths))
        print(f"{count:,} lines: peak memory {peak:,.0f} MiB", flush=True)


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--input", type=local_path, required=True, metavar="FILE")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--output", type=local_path, metavar="FILE", help="of the worker")
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    with open(args.input, encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, args.lines)]
    work = args.checkpoint, lines, args.output
    programs = {
        BERTJAX: functools.partial(make_bertjax_work, *work),
        LIST: functools.partial(make_torch_work, *work, len(lines), args.cores),
        STREAM: functools.partial(make_torch_work, *work, BATCH_SIZE, args.cores),
    }
    harness.serve_measurements(args, programs)

    with tempfile.TemporaryDirectory() as directory:
        if args.memory:
            measure_memory(args.checkpoint, lines, pathlib.Path(directory))
            return
        outputs = {name: f"{directory}/{number}.npz" for number, name in enumerate(programs)}
        commands = {
            name: harness.worker_command(args, name, "--output", outputs[name]) for name in programs
        }
        rounds = harness.take_turns(commands, args.rounds)
        harness.print_comparison("", "lines", len(lines), rounds)
        ours, theirs = (np.load(outputs[name])["embeddings"] for name in (BERTJAX, LIST))
        print(f"\nlargest difference of the embeddings: {np.abs(ours - theirs).max():.2g}")


if __name__ == "__main__":
    main()
