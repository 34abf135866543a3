"""How fast one core makes masked, packed batches, and how full they are.

    python -m experiments.bench.batches --corpus DIR DIR

Each DIR is what `bertjax prepare` wrote, or several with "+" between them. The process keeps to one
core. A rate counts all that happens
after the corpus is opened: pairs, packing, masking, arrays. The seconds to step 1,000,000 include
opening it. Rows are read in order, an epoch at most, for about `--seconds` each time.
"""

import argparse
import itertools
import os
import time
from collections.abc import Iterable

import numpy as np

from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions


def measure(batches: Iterable[dict[str, np.ndarray]], seconds: float) -> dict[str, float]:
    """Reads batches for some seconds, and counts."""
    rows = nonpad_fraction = cells = pairs = random = chosen = 0.0
    count = 0
    began, worked = time.perf_counter(), time.process_time()
    for batch in batches:
        count += 1
        rows += len(batch["input_ids"])
        nonpad_fraction += np.count_nonzero(batch["example_ids"])
        cells += batch["example_ids"].size
        pairs += batch["next_sentence_weights"].sum()
        random += batch["next_sentence_labels"].sum()
        chosen += batch["masked_lm_weights"].sum()
        if time.perf_counter() - began > seconds:
            break
    rate = rows / (time.perf_counter() - began)
    return {
        "rate": rate,
        "cpu_seconds": (time.process_time() - worked) / count,
        "nonpad_fraction": nonpad_fraction / cells,
        "pairs": pairs / rows,
        "random": random / pairs,
        "chosen": chosen / nonpad_fraction,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, nargs="+", metavar="DIR")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--masking", default="token", help="token, whole_word or span")
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    head = True
    for corpus, max_seq_length in itertools.product(arguments.corpus, (128, 512)):
        options = PretrainingOptions(
            max_seq_length, arguments.batch_size, masking=arguments.masking, workers=1
        )
        began = time.perf_counter()
        PretrainingData(corpus, options).batch(1_000_000)
        start_up = time.perf_counter() - began

        data = PretrainingData(corpus, options)
        steps = range(1, data.sequences_per_epoch // arguments.batch_size)
        found = measure(map(data.batch, steps), arguments.seconds)

        dataset = iter(PretrainingData(corpus, options).dataset().as_numpy_iterator())
        next(dataset)  # TensorFlow's own start is not what is measured
        by_tf = measure(itertools.islice(dataset, len(steps)), arguments.seconds)

        table = {
            "shards": f"{sum(len(each.shard_infos) for each in data.corpora.values()):,}",
            "streams": f"{data.num_streams}",
            "length": f"{max_seq_length}",
            "rows/s": f"{found['rate']:,.0f}",
            "processor ms a batch": f"{1000 * found['cpu_seconds']:.1f}",
            "by tf.data": f"{by_tf['rate']:,.0f}",
            "real pieces": f"{found['nonpad_fraction']:.2%}",
            "pairs/row": f"{found['pairs']:.2f}",
            "random B": f"{found['random']:.1%}",
            "pieces chosen": f"{found['chosen']:.1%}",
            "seconds to step 1,000,000": f"{start_up:.2f}",
        }
        if head:
            print("  ".join(table))
            head = False
        print("  ".join(value.rjust(len(name)) for name, value in table.items()))


if __name__ == "__main__":
    main()
