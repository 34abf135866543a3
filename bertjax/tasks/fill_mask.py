"""What a pre-trained model says of a line: its [MASK]s filled, or how it goes on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.task import HostBatch, Opened, bucket
from data_pipelines.errors import InputError
from data_pipelines.pretraining.packing import RowShape, pack
from data_pipelines.vocabulary.tokenization import Tokenizer

_BEST = 5  # pieces reported for each mask
_NEW = 32  # pieces that a line is gone on with, at most
_PIECES = 8  # of a row for each place that is asked for: with fewer the row has more places
_CELLS = 8192  # of a batch, at most, so that the scores of all places fit in memory


def fill(opened: Opened, placed: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """The answers to texts, each after its place; those that fit share a row."""
    tokenizer, most = opened.tokenizer, opened.config.model.max_positions
    lines = [_masked(text, place, tokenizer, most) for place, text in placed]
    masks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in lines]
    found = _ask(opened, lines, masks, _likeliest)
    for (_, text), ids, own, guesses in zip(placed, lines, masks, found, strict=True):
        filled = ids.copy()
        filled[own] = [best[0][0] for best in guesses]
        yield {
            "text": text,
            "filled": tokenizer.decode(filled[1:-1].tolist()),
            "masks": [
                [{"piece": tokenizer.pieces[i], "probability": p} for i, p in best]
                for best in guesses
            ],
        }


def _likeliest(scores: np.ndarray) -> list[list[tuple[int, float]]]:
    """For each place its likeliest pieces and their probabilities, from scores [places, pieces]."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    likely = powers / powers.sum(axis=-1, keepdims=True)
    # To sort them all would take twenty times as long.
    found = np.sort(np.argpartition(-likely, _BEST - 1, axis=-1)[:, :_BEST], axis=-1)
    order = np.argsort(-np.take_along_axis(likely, found, axis=-1), axis=-1, kind="stable")
    best = np.take_along_axis(found, order, axis=-1)
    return [
        [(i, round(float(chances[i]), 6)) for i in order.tolist()]
        for chances, order in zip(likely, best, strict=True)
    ]


def _masked(text: str, place: str, tokenizer: Tokenizer, max_positions: int) -> np.ndarray:
    """The pieces of a text, int32, with the special ones."""
    parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
    if len(parts) == 1:
        raise InputError(f"{place} has no [MASK]: write one where a piece is to be found.")
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    ids.append(tokenizer.sep_id)
    if len(ids) > max_positions:
        raise InputError(
            f"{place} has {len(ids)} pieces and the model takes {max_positions}: shorten it."
        )
    return np.array(ids, np.int32)


def _ask(
    opened: Opened,
    lines: Sequence[np.ndarray],
    asked: Sequence[np.ndarray],
    say: Callable[[np.ndarray], Any],
) -> list[Any]:
    """What is said of each line.

    Args:
      asked: of each line, which of its pieces are asked for, ascending.
      say: is given the scores of a line where it is asked, float32 [places, pieces].
    """
    laid, places = _lay(lines, asked, opened.config.model.max_positions)
    rows, length = laid["token_ids"].shape
    most, pieces = max(1, _CELLS // length), len(opened.tokenizer.pieces)
    of_batch: dict[int, list[int]] = {}
    for number, (row, _) in enumerate(places):
        of_batch.setdefault(row // most, []).append(number)
    batches = (
        {name: array[first : first + most] for name, array in laid.items()}
        for first in range(0, rows, most)
    )
    found: list[Any] = [None] * len(lines)
    for batch, outputs in enumerate(opened.run(batches)):
        for number in of_batch[batch]:
            row, slots = places[number]
            found[number] = say(outputs["mlm_logits"][row % most, slots, :pieces])
    return found


def _lay(
    lines: Sequence[np.ndarray], asked: Sequence[np.ndarray], max_positions: int
) -> tuple[HostBatch, list[tuple[int, slice]]]:
    """Lines packed into rows, and where each has what it is asked: row and slots.

    The length is a power of two, and the slots follow from it where not many places are asked for,
    so that few shapes are compiled.
    """
    lengths, counts = (np.array(list(map(len, each))) for each in (lines, asked))
    length = min(max(16, bucket(lengths.max())), max_positions)
    slots = max(bucket(counts.max()), length // _PIECES)
    row_of = pack(lengths, counts, RowShape(length, slots, length))
    rows = int(row_of.max()) + 1
    pieces = ("token_ids", "type_ids", "pack_ids", "positions")
    batch = {name: np.zeros((rows, length), np.int32) for name in pieces}
    batch["mlm_positions"] = np.zeros((rows, slots), np.int32)
    batch["cls_positions"] = np.zeros((rows, 1), np.int32)
    pairs, column, slot = (np.zeros(rows, np.int64) for _ in range(3))
    places = []
    for row, ids, which in zip(row_of.tolist(), lines, asked, strict=True):
        cells = slice(column[row], column[row] + len(ids))
        pairs[row] += 1
        batch["token_ids"][row, cells] = ids
        batch["pack_ids"][row, cells] = pairs[row]
        batch["positions"][row, cells] = np.arange(len(ids))
        own = slice(slot[row], slot[row] + len(which))
        batch["mlm_positions"][row, own] = column[row] + which
        places.append((row, own))
        column[row], slot[row] = cells.stop, own.stop
    return batch, places


def go_on(opened: Opened, placed: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """How texts, each after its place, go on: up to 32 pieces, or to the end of a sentence."""
    tokenizer, most = opened.tokenizer, opened.config.model.max_positions
    lines = [np.array([tokenizer.cls_id, *tokenizer.encode(text)], np.int32) for _, text in placed]
    for (place, _), ids in zip(placed, lines, strict=True):
        if len(ids) >= most:
            raise InputError(
                f"{place} has {len(ids)} pieces and the model takes {most}: shorten it."
            )
    texts = [text for _, text in placed]
    begun = [len(ids) for ids in lines]
    unfinished = list(range(len(lines)))
    for _ in range(_NEW):
        if not unfinished:
            break
        some = [lines[i] for i in unfinished]
        last = [np.array([len(ids) - 1]) for ids in some]
        found = _ask(opened, some, last, lambda scores: int(scores.argmax()))
        for i, best in zip(list(unfinished), found, strict=True):
            if best != tokenizer.sep_id:
                lines[i] = np.append(lines[i], np.int32(best))
            if best == tokenizer.sep_id or len(lines[i]) == most:
                unfinished.remove(i)
    for text, ids, first in zip(texts, lines, begun, strict=True):
        yield {"text": text, "continued": tokenizer.decode(ids[first:].tolist())}
