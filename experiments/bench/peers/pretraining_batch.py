"""Random pre-training batch, for measurements of the train step."""

from typing import Any

import numpy as np

VOCAB_SIZE = 30522
_MASK_ID, _FIRST_TOKEN_ID = 103, 1000


def make_batch(batch_size: int, length: int, num_predictions: int) -> dict[str, np.ndarray]:
    """Return full sequences of random tokens, one sentence pair each: close to packed ones."""
    draw = np.random.Generator(np.random.Philox(key=0)).random
    token_range = VOCAB_SIZE - _FIRST_TOKEN_ID
    input_ids = (_FIRST_TOKEN_ID + np.floor(draw((batch_size, length)) * token_range)).astype("i4")
    masked = 1 + np.sort(np.argsort(draw((batch_size, length - 1)))[:, :num_predictions])
    masked_ids = np.take_along_axis(input_ids, masked, 1)
    np.put_along_axis(input_ids, masked, _MASK_ID, 1)
    position_ids = np.tile(np.arange(length, dtype=np.int32), (batch_size, 1))
    return {
        "input_ids": input_ids,
        "token_type_ids": (position_ids >= length // 2).astype(np.int32),
        "example_ids": np.ones((batch_size, length), np.int32),
        "position_ids": position_ids,
        "masked_lm_positions": masked.astype(np.int32),
        "masked_lm_ids": masked_ids,
        "masked_lm_weights": np.ones((batch_size, num_predictions), np.float32),
        "cls_positions": np.zeros((batch_size, 1), np.int32),
        "next_sentence_labels": (draw((batch_size, 1)) < 0.5).astype(np.int32),
        "next_sentence_weights": np.ones((batch_size, 1), np.float32),
    }


def to_transformers(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the arguments of `transformers.BertForPreTraining`, without a mask."""
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"][:, 0],
    }
