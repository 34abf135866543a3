"""The loss of knowing how often each piece occurs and nothing else, on the masked held-out pieces.

    python -m experiments.bench.unigram_entropy --config FILE[:ARG] [--config.FIELD=VALUE ...]

A model that learnt language is below this; one that learnt frequencies alone comes down to it.
Frequencies are those of the held-out pieces themselves, the hardest baseline of this kind.
"""

import argparse

import numpy as np

from bertjax.cli.config_args import parse_overrides
from bertjax.config.loading import load_config
from bertjax.tasks import registry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    args, rest = parser.parse_known_args()
    config = load_config(args.config, parse_overrides(rest), registry.data_fields())
    counts = np.zeros(config.model.vocab_size)
    (held_out,) = registry.find_task(config.task)(config).eval_sets()
    for batch in held_out.batches():
        np.add.at(counts, batch["masked_lm_ids"], batch["masked_lm_weights"])
    shares = counts[counts > 0] / counts.sum()
    entropy = -(shares * np.log(shares)).sum()
    print(f"{counts.sum():,.0f} masked pieces, unigram entropy {entropy:.4f} nats")


if __name__ == "__main__":
    main()
