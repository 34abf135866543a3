"""Loss of a model that knows only token frequencies, on the masked tokens of the eval split.

    python -m experiments.bench.unigram_entropy --config FILE[:ARG] [--config.FIELD=VALUE ...]

A model that learns language falls below this loss; one that learns frequencies alone comes down to
it. Frequencies are those of the masked tokens themselves, the hardest baseline of this kind.
"""

import argparse

import numpy as np

from bertjax.cli.config_args import parse_overrides
from bertjax.tasks import registry
from experiments.bench import harness


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--config", required=True)
    args, rest = parser.parse_known_args()
    config = harness.load(args.config, parse_overrides(rest))
    counts = np.zeros(config.model.vocab_size)
    (eval_set,) = registry.find_task(config.task)(config).eval_sets()
    for batch in eval_set.batches():
        np.add.at(counts, batch["masked_lm_ids"], batch["masked_lm_weights"])
    frequencies = counts[counts > 0] / counts.sum()
    entropy = -(frequencies * np.log(frequencies)).sum()
    print(f"{counts.sum():,.0f} masked tokens, unigram entropy {entropy:.4f} nats")


if __name__ == "__main__":
    main()
