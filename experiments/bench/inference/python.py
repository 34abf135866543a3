"""Latency of one text with a model loaded in Python.

    python -m experiments.bench.inference.python --vocab bert-base-uncased-vocab.txt

Initializes a BERT-Base (or `--model`) at random, loads it by `bertjax.load` and fills the mask of
texts of several lengths. Prints the time of the first call, which compiles, and the median and
minimum of later calls.
"""

import argparse
import statistics
import tempfile
import time

import jax
import numpy as np
from etils import epath

import bertjax
from bertjax.formats import huggingface
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import registry
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.bench import harness

LENGTHS = (16, 32, 64, 128)
CALLS = 30


def write_random_model(size: str, vocab: str, directory: str) -> None:
    """Write a random model with a masked-LM head in Hugging Face's format."""
    tokenizer = load_tokenizer(vocab)
    fields = {"model.vocab_size": len(tokenizer.tokens), "data.objective": "mlm"}
    config = harness.load(f"pretraining:model={size}", fields)
    params = jax.jit(registry.make_objective(config).init_params)(jax.random.key(0))
    model = NumpyModel(config.model, jax.tree.map(np.asarray, params), tokenizer)
    huggingface.write(model, epath.Path(directory))


def measure_call(model: bertjax.Model, text: str) -> tuple[float, float]:
    """Fill a mask and return the milliseconds, by the clock and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    model.fill_mask(text)
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--vocab", required=True, metavar="FILE")
    parser.add_argument("--model", default="base", help="size of the random model: tiny, mini, ...")
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    with tempfile.TemporaryDirectory() as directory:
        write_random_model(args.model, args.vocab, directory)
        model = bertjax.load(directory)
        word = max((token for token in model.tokenizer.tokens if token.isalpha()), key=len)
        print(f"{'tokens':>8}{'first call':>12}{'median':>10}{'minimum':>10}{'CPU':>11}   (ms)")
        for length in LENGTHS:
            text = " ".join(["[MASK]", *[word] * (length - 3)])
            first, _ = measure_call(model, text)
            wall, cpu = zip(*(measure_call(model, text) for _ in range(CALLS)), strict=True)
            median, cpu_median = statistics.median(wall), statistics.median(cpu)
            print(
                f"{length:8}{first:12.0f}{median:10.1f}{min(wall):10.1f}{cpu_median:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
