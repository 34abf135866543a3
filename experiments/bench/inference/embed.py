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

import itertools
import pathlib
import sys
import tempfile
from collections.abc import Callable

import numpy as np

from experiments.bench.harness import (
    BERTJAX,
    comparison_table,
    limit_cores,
    make_parser,
    peak_memory,
    serve_measurements,
    take_turns,
)

LIST, STREAM = "sentence-transformers", "the same, a stream"
BATCH_SIZE = 32


def make_bertjax_work(model: str, lines: list[str], output: pathlib.Path) -> Callable[[], object]:
    from bertjax.cli.jax_setup import skip_missing_tpu
    from bertjax.inference.feature_extraction import Embedder, find_embedding_options

    skip_missing_tpu()
    embedder = Embedder(*find_embedding_options(model))

    def work() -> None:
        output.unlink(missing_ok=True)
        embedder.write(lines, output)

    return work


def make_torch_work(
    model: str, lines: list[str], output: pathlib.Path, is_stream: bool, cores: int
) -> Callable[[], object]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    encoder = SentenceTransformer(model, device="cpu")
    size = BATCH_SIZE if is_stream else len(lines)

    def work() -> None:
        parts = [
            np.asarray(
                encoder.encode(
                    lines[first : first + size], batch_size=BATCH_SIZE, show_progress_bar=False
                )
            )
            for first in range(0, len(lines), size)
        ]
        np.savez(output, embeddings=np.concatenate(parts))

    return work


def measure_memory(model: str, lines: list[str], directory: pathlib.Path) -> None:
    """Print the peak memory of `bertjax embed` for a tenth of the lines and for all."""
    for count in (len(lines) // 10, len(lines)):
        source, output = directory / f"{count}.txt", directory / f"{count}.npz"
        source.write_text("\n".join(lines[:count]), encoding="utf-8")
        command = [sys.executable, "-m", "bertjax", "embed", "--checkpoint", model]
        peak = peak_memory([*command, "--input", str(source), "--output", str(output)])
        print(f"{count:,} lines: peak memory {peak:,.0f} MiB", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--input", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="of the worker")
    args = parser.parse_args()
    limit_cores(args.cores)
    with open(args.input, encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, args.lines)]
    work = args.checkpoint, lines, args.output
    if args.worker == BERTJAX:
        return serve_measurements(lambda: make_bertjax_work(*work))
    if args.worker:
        is_stream = args.worker == STREAM
        return serve_measurements(lambda: make_torch_work(*work, is_stream, args.cores))

    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        if args.memory:
            return measure_memory(args.checkpoint, lines, directory)
        outputs = {
            name: directory / f"{number}.npz" for number, name in enumerate((BERTJAX, LIST, STREAM))
        }
        commands = {
            name: [
                *(sys.executable if name == BERTJAX else args.peer_python, __file__),
                *("--checkpoint", args.checkpoint, "--input", str(args.input)),
                *(f"--lines={args.lines}", f"--cores={args.cores}", f"--worker={name}"),
                *("--output", str(output)),
            ]
            for name, output in outputs.items()
        }
        rounds = list(take_turns(commands, args.rounds))
        print("\n".join(comparison_table("", "lines", len(lines), rounds)))
        ours, theirs = (np.load(outputs[name])["embeddings"] for name in (BERTJAX, LIST))
        print(f"\nlargest difference of the embeddings: {np.abs(ours - theirs).max():.2g}")
    return None


if __name__ == "__main__":
    main()
