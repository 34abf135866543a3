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
    rows = real = cells = pairs = random = chosen = 0.0
    count = 0
    began, worked = time.perf_counter(), time.process_time()
    for batch in batches:
        count += 1
        rows += len(batch["token_ids"])
        real += np.count_nonzero(batch["pack_ids"])
        cells += batch["pack_ids"].size
        pairs += batch["nsp_weights"].sum()
        random += batch["nsp_labels"].sum()
        chosen += batch["mlm_weights"].sum()
        if time.perf_counter() - began > seconds:
            break
    rate = rows / (time.perf_counter() - began)
    return {
        "rate": rate,
        "processor": (time.process_time() - worked) / count,
        "real": real / cells,
        "pairs": pairs / rows,
        "random": random / pairs,
        "chosen": chosen / real,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", required=True, nargs="+", metavar="DIR")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--masking", default="piece", help="piece, word or span")
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    head = True
    for corpus, seq_len in itertools.product(arguments.corpus, (128, 512)):
        options = PretrainingOptions(
            seq_len, arguments.batch_size, masking=arguments.masking, workers=1
        )
        began = time.perf_counter()
        PretrainingData(corpus, options).batch(1_000_000)
        start_up = time.perf_counter() - began

        data = PretrainingData(corpus, options)
        steps = range(1, data.rows_per_epoch // arguments.batch_size)
        found = measure(map(data.batch, steps), arguments.seconds)

        dataset = iter(PretrainingData(corpus, options).dataset().as_numpy_iterator())
        next(dataset)  # TensorFlow's own start is not what is measured
        by_tf = measure(itertools.islice(dataset, len(steps)), arguments.seconds)

        table = {
            "shards": f"{sum(len(each.infos) for each in data.corpora.values()):,}",
            "streams": f"{data.streams}",
            "length": f"{seq_len}",
            "rows/s": f"{found['rate']:,.0f}",
            "processor ms a batch": f"{1000 * found['processor']:.1f}",
            "by tf.data": f"{by_tf['rate']:,.0f}",
            "real pieces": f"{found['real']:.2%}",
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
