"""What a pre-trained model says of a line: its [MASK]s filled, or how it goes on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.task import HostBatch, PredictorProtocol, next_power_of_two
from data_pipelines.errors import InputError
from data_pipelines.pretraining.packing import SequenceLimits, pack
from data_pipelines.vocabulary.tokenization import Tokenizer

_TOP_K = 5  # pieces reported for each mask
_MAX_NEW_TOKENS = 32  # pieces that a line is gone on with, at most
_TOKENS_PER_SLOT = (
    8  # of a row for each place that is asked for: with fewer the row has more places
)
_MAX_BATCH_TOKENS = 8192  # of a batch, at most, so that the scores of all places fit in memory


def fill_mask(
    predictor: PredictorProtocol, located_texts: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """The answers to texts, each after its place; those that fit share a row."""
    tokenizer, most = predictor.tokenizer, predictor.config.model.max_position_embeddings
    lines = [
        _encode_masked_text(text, location, tokenizer, most) for location, text in located_texts
    ]
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in lines]
    found = _score_positions(predictor, lines, masks, _top_tokens)
    for (_, text), ids, own, guesses in zip(located_texts, lines, masks, found, strict=True):
        filled = ids.copy()
        filled[own] = [best[0][0] for best in guesses]
        yield {
            "text": text,
            "filled": tokenizer.decode(filled[1:-1].tolist()),
            "masks": [
                [{"token": tokenizer.tokens[i], "probability": p} for i, p in best]
                for best in guesses
            ],
        }


def _top_tokens(scores: np.ndarray) -> list[list[tuple[int, float]]]:
    """For each place its likeliest pieces and their probabilities, from scores [places, pieces]."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    likely = powers / powers.sum(axis=-1, keepdims=True)
    # To sort them all would take twenty times as long.
    found = np.sort(np.argpartition(-likely, _TOP_K - 1, axis=-1)[:, :_TOP_K], axis=-1)
    order = np.argsort(-np.take_along_axis(likely, found, axis=-1), axis=-1, kind="stable")
    best = np.take_along_axis(found, order, axis=-1)
    return [
        [(i, round(float(chances[i]), 6)) for i in order.tolist()]
        for chances, order in zip(likely, best, strict=True)
    ]


def _encode_masked_text(
    text: str, location: str, tokenizer: Tokenizer, max_position_embeddings: int
) -> np.ndarray:
    """The pieces of a text, int32, with the special ones."""
    parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
    if len(parts) == 1:
        raise InputError(f"{location} has no [MASK]: write one where a piece is to be found.")
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    ids.append(tokenizer.sep_id)
    if len(ids) > max_position_embeddings:
        raise InputError(
            f"{location} has {len(ids)} pieces and the model takes {max_position_embeddings}: shorten it."
        )
    return np.array(ids, np.int32)


def _score_positions(
    predictor: PredictorProtocol,
    lines: Sequence[np.ndarray],
    positions: Sequence[np.ndarray],
    reduce_scores: Callable[[np.ndarray], Any],
) -> list[Any]:
    """What is said of each line.

    Args:
      asked: of each line, which of its pieces are asked for, ascending.
      say: is given the scores of a line where it is asked, float32 [places, pieces].
    """
    laid, places = _pack_texts(lines, positions, predictor.config.model.max_position_embeddings)
    rows, length = laid["input_ids"].shape
    most, tokens = max(1, _MAX_BATCH_TOKENS // length), len(predictor.tokenizer.tokens)
    of_batch: dict[int, list[int]] = {}
    for number, (row, _) in enumerate(places):
        of_batch.setdefault(row // most, []).append(number)
    batches = (
        {name: array[first : first + most] for name, array in laid.items()}
        for first in range(0, rows, most)
    )
    found: list[Any] = [None] * len(lines)
    for batch, outputs in enumerate(predictor.run(batches)):
        for number in of_batch[batch]:
            row, slots = places[number]
            found[number] = reduce_scores(outputs["mlm_logits"][row % most, slots, :tokens])
    return found


def _pack_texts(
    lines: Sequence[np.ndarray], positions: Sequence[np.ndarray], max_position_embeddings: int
) -> tuple[HostBatch, list[tuple[int, slice]]]:
    """Lines packed into rows, and where each has what it is asked: row and slots.

    The length is a power of two, and the slots follow from it where not many places are asked for,
    so that few shapes are compiled.
    """
    lengths, counts = (np.array(list(map(len, each))) for each in (lines, positions))
    length = min(max(16, next_power_of_two(lengths.max())), max_position_embeddings)
    slots = max(next_power_of_two(counts.max()), length // _TOKENS_PER_SLOT)
    row_of = pack(lengths, counts, SequenceLimits(length, slots, length))
    rows = int(row_of.max()) + 1
    tokens = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    batch = {name: np.zeros((rows, length), np.int32) for name in tokens}
    batch["masked_lm_positions"] = np.zeros((rows, slots), np.int32)
    batch["cls_positions"] = np.zeros((rows, 1), np.int32)
    pairs, column, slot = (np.zeros(rows, np.int64) for _ in range(3))
    places = []
    for row, ids, which in zip(row_of.tolist(), lines, positions, strict=True):
        cells = slice(column[row], column[row] + len(ids))
        pairs[row] += 1
        batch["input_ids"][row, cells] = ids
        batch["example_ids"][row, cells] = pairs[row]
        batch["position_ids"][row, cells] = np.arange(len(ids))
        own = slice(slot[row], slot[row] + len(which))
        batch["masked_lm_positions"][row, own] = column[row] + which
        places.append((row, own))
        column[row], slot[row] = cells.stop, own.stop
    return batch, places


def generate(
    predictor: PredictorProtocol, located_texts: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """How texts, each after its place, go on: up to 32 pieces, or to the end of a sentence."""
    tokenizer, most = predictor.tokenizer, predictor.config.model.max_position_embeddings
    lines = [
        np.array([tokenizer.cls_id, *tokenizer.encode(text)], np.int32) for _, text in located_texts
    ]
    for (location, _), ids in zip(located_texts, lines, strict=True):
        if len(ids) >= most:
            raise InputError(
                f"{location} has {len(ids)} pieces and the model takes {most}: shorten it."
            )
    texts = [text for _, text in located_texts]
    begun = [len(ids) for ids in lines]
    unfinished = list(range(len(lines)))
    for _ in range(_MAX_NEW_TOKENS):
        if not unfinished:
            break
        some = [lines[i] for i in unfinished]
        last = [np.array([len(ids) - 1]) for ids in some]
        found = _score_positions(predictor, some, last, lambda scores: int(scores.argmax()))
        for i, best in zip(list(unfinished), found, strict=True):
            if best != tokenizer.sep_id:
                lines[i] = np.append(lines[i], np.int32(best))
            if best == tokenizer.sep_id or len(lines[i]) == most:
                unfinished.remove(i)
    for text, ids, first in zip(texts, lines, begun, strict=True):
        yield {"text": text, "generated_text": tokenizer.decode(ids[first:].tolist())}
