"""Rate at which one core makes masked, packed batches, and how full they are.

    python -m experiments.bench.batches --corpus DIR DIR

Each DIR is a corpus, or several joined by "+". A rate covers all that happens after the corpus is
opened: pairing, packing, masking, arrays. tf.data and a thread pool, the two ways to make batches
ahead of time, take turns. The seconds to step 1,000,000 include opening the corpus.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterable

import numpy as np

from data_pipelines.parallel import thread_map
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions
from experiments.bench.harness import limit_cores

_ROUNDS = 5


def measure(batches: Iterable[dict[str, np.ndarray]], seconds: float) -> dict[str, float]:
    """Read batches for some seconds and return rates and fractions."""
    rows = []
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        ids, labels = batch["example_ids"], batch["next_sentence_labels"]
        pairs = batch["next_sentence_weights"].sum()
        rows.append((len(ids), np.count_nonzero(ids), ids.size, pairs, labels.sum()))
        if time.perf_counter() - wall > seconds:
            break
    sequences, nonpad, tokens, pairs, random = map(sum, zip(*rows, strict=True))
    return {
        "rate": sequences / (time.perf_counter() - wall),
        "cpu_seconds": (time.process_time() - cpu) / len(rows),
        "nonpad": nonpad / tokens,
        "pairs": pairs / sequences,
        "random": random / pairs,
    }


def measure_corpus(corpus: str, options: PretrainingOptions, seconds: float) -> dict[str, str]:
    """Return the columns of one line of the table."""
    began = time.perf_counter()
    PretrainingData(corpus, options).batch(1_000_000)
    seek_seconds = time.perf_counter() - began

    data = PretrainingData(corpus, options)
    steps = range(1, data.sequences_per_epoch // options.batch_size)
    if len(steps) < 2:
        sys.exit(f"{corpus}: too few sequences for batches of {options.batch_size}. Add text.")
    figures = measure(map(data.batch, steps), seconds)

    ahead = measure_ahead(corpus, options, seconds, len(steps))
    return {
        "shards": f"{sum(len(part.shard_infos) for part in data.corpora.values()):,}",
        "tokens a sequence": f"{options.max_seq_length}",
        "sequences/s": f"{figures['rate']:,.0f}",
        "CPU ms a batch": f"{1000 * figures['cpu_seconds']:.1f}",
        **{f"with {name}": f"{rate:,.0f}" for name, rate in ahead.items()},
        "non-padding": f"{figures['nonpad']:.2%}",
        "pairs a sequence": f"{figures['pairs']:.2f}",
        "random B": f"{figures['random']:.1%}",
        "seconds to step 1,000,000": f"{seek_seconds:.2f}",
    }


def measure_ahead(
    corpus: str, options: PretrainingOptions, seconds: float, steps: int
) -> dict[str, float]:
    """Return the median rate of each way to make batches ahead of time."""
    rates: dict[str, list[float]] = {"tf.data": [], "threads": []}
    for name in [*rates] * _ROUNDS:
        data = PretrainingData(corpus, options)
        batches = (
            data.dataset().as_numpy_iterator()
            if name == "tf.data"
            else thread_map(data.batch, itertools.count(), options.threads)
        )
        next(batches)  # TensorFlow's start-up is not measured
        rates[name].append(measure(itertools.islice(batches, steps), seconds / _ROUNDS)["rate"])
        del batches
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", required=True, nargs="+", metavar="DIR")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    limit_cores(1)
    for number, (corpus, length) in enumerate(itertools.product(args.corpus, (128, 512))):
        options = PretrainingOptions(length, args.batch_size, workers=1)
        columns = measure_corpus(corpus, options, args.seconds)
        if number == 0:
            print("  ".join(columns))
        print("  ".join(value.rjust(len(name)) for name, value in columns.items()), flush=True)


if __name__ == "__main__":
    main()
