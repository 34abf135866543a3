"""Masked targets: some tokens of a target become [MASK], at which a model predicts them.

This is the fine-tuning of UniLM (Dong et al. 2019, section 2.4). A target token sees the source and
the target up to itself, so that a [MASK] is predicted from the tokens before it, some of which are
masked, too. Decoding appends one [MASK] to the tokens so far.
"""

import numpy as np

from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import PackedLayout
from data_pipelines.pretraining.masking import (
    choose_masked_tokens,
    prediction_counts,
    replace_masked_tokens,
)
from data_pipelines.vocabulary.tokenization import Tokenizer

_MASK_REPLACE_PROB, _RANDOM_REPLACE_PROB = 0.8, 0.1  # of BERT and UniLM; the others are kept
_GOLDEN_RATIO = (5**0.5 - 1) / 2

Batch = dict[str, np.ndarray]


def mask_targets(
    batch: Batch, mlm_probability: float, tokenizer: Tokenizer, seed: int, step: int
) -> Batch:
    """Return a batch in which random target tokens are to be predicted at their own positions.

    Of each target max(1, round(mlm_probability * tokens)) tokens are chosen, the last [SEP] is one
    of the candidates. Of these 80% become [MASK], 10% a random token, and 10% are kept. The choice
    depends on seed, step and examples, not on the number of empty sequences.

    Args:
      batch: see `data_pipelines.finetuning.packed_examples.empty_batch`; every target token is
        predicted from the one before it.
      mlm_probability: fraction of the tokens of a target to predict.
      tokenizer: its vocabulary has the [MASK] and the random tokens.
      seed: seed of the choice.
      step: the step of the batch.
    """
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, slots] + 1
    ids, examples = (batch[name][rows, columns] for name in ("input_ids", "example_ids"))
    is_first = (np.diff(rows, prepend=-1) > 0) | (np.diff(examples, prepend=0) != 0)
    targets = np.cumsum(is_first) - 1
    # The shuffling of an epoch has the same key, with a counter from 0 on.
    philox = np.random.Philox(key=[seed, step], counter=[0, 0, 0, 1])
    draws = np.random.Generator(philox).random((3, len(ids)))
    lengths = np.bincount(targets)
    counts = prediction_counts(lengths, lengths, mlm_probability, int(lengths.max(initial=1)))
    starts = np.ones(len(ids), bool)
    chosen = choose_masked_tokens("token", counts, 2 * targets, starts, draws[0])
    rows, columns, ids = rows[chosen], columns[chosen], ids[chosen]
    inputs = replace_masked_tokens(
        ids,
        _MASK_REPLACE_PROB,
        _RANDOM_REPLACE_PROB,
        tokenizer.mask_id,
        tokenizer.text_token_ids,
        draws[1:, chosen],
    )
    slots = np.arange(len(rows)) - np.searchsorted(rows, rows)
    return _with_predictions(batch, (rows, columns), slots, ids, inputs, np.ones(len(ids)))


def cut_targets(examples: Examples) -> tuple[Examples, np.ndarray]:
    """Return examples with a part of each target, and the number of tokens of the whole target.

    The last token of a part is the one to predict. Its place among the tokens is that of its
    example in a sequence which covers all places evenly, however many examples there are. It stands
    for all tokens of the target: weighted by their number, its loss estimates theirs, each given
    the tokens before it. All tokens of a target in one sequence would need a [MASK] each, and see
    each other's.
    """
    lengths = examples.lengths - examples.prefix_lengths
    places = (np.arange(1, len(lengths) + 1) * _GOLDEN_RATIO % 1 * lengths).astype(np.int64)
    kept = examples.prefix_lengths + places + 1
    rows = [
        examples.ids[start : start + count].tolist()
        for start, count in zip(examples.starts, kept, strict=True)
    ]
    return Examples.from_rows(rows, examples.prefix_lengths.tolist(), examples.targets), lengths


def mask_last_tokens(
    batch: Batch, layout: PackedLayout, examples: Examples, weights: np.ndarray, mask_id: int
) -> Batch:
    """Return a batch in which the last token of each example is a [MASK] and to be predicted.

    Args:
      batch: the whole batch of the layout.
      layout: positions of examples.
      examples: the examples, see `cut_targets`.
      weights: weight of the prediction of each example.
      mask_id: id of [MASK].
    """
    indices = layout.indices
    cells = layout.sequence, layout.token_offset + examples.lengths[indices] - 1
    ids = batch["input_ids"][cells]
    inputs = np.full_like(ids, mask_id)
    return _with_predictions(batch, cells, layout.slot, ids, inputs, weights[indices])


def _with_predictions(
    batch: Batch,
    cells: tuple[np.ndarray, np.ndarray],
    slots: np.ndarray,
    ids: np.ndarray,
    inputs: np.ndarray,
    weights: np.ndarray,
) -> Batch:
    """Return a batch with other tokens to predict.

    Args:
      batch: the batch.
      cells: sequences and positions of the N tokens.
      slots: prediction slot of each in its sequence.
      ids: the tokens, int32 [N].
      inputs: what the encoder reads in their places.
      weights: their weights.
    """
    rows, columns = cells
    changed = {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][cells] = inputs
    values = {"positions": columns, "ids": ids, "weights": weights}
    for name, array in values.items():
        changed[f"masked_lm_{name}"] = np.zeros_like(batch[f"masked_lm_{name}"])
        changed[f"masked_lm_{name}"][rows, slots] = array
    return batch | changed
