"""Batches of pairs of source and target, packed."""

from collections.abc import Sequence

import numpy as np

from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import PackedShape, build_batch, pack_eval_batches

CLS, SEP = 2, 3
SHAPE = PackedShape(tokens=24, examples=4, predictions=10)


def make_batch(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], sequences: int, shape: PackedShape = SHAPE
) -> dict[str, np.ndarray]:
    """Return the batch of pairs of token ids, packed into as many sequences at most."""
    rows = [[CLS, *source, SEP, *target, SEP] for source, target in pairs]
    examples = Examples.from_rows(rows, [len(source) + 2 for source, _ in pairs], {})
    (layout,) = pack_eval_batches(examples, shape, sequences)
    return build_batch(examples, layout, sequences, shape)


def by_target(batch: dict[str, np.ndarray], values: np.ndarray) -> dict[tuple, np.ndarray]:
    """Return the values of each example's slots, by the token ids that they predict."""
    parts = {}
    for row, slots in enumerate(batch["masked_lm_positions"]):
        for example in range(1, batch["example_ids"][row].max() + 1):
            is_own = (batch["example_ids"][row, slots] == example) & (slots > 0)
            parts[tuple(batch["masked_lm_ids"][row, is_own].tolist())] = values[row, is_own]
    return parts
