"""Texts to examples of pieces: cut, in windows, or whole."""

import dataclasses
from typing import NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.packed_examples import Examples, Target
from data_pipelines.finetuning.sequence_classification import Sentences
from data_pipelines.vocabulary.tokenization import Tokenizer

LONG_TEXTS = ("head", "tail", "head_tail", "windows")
_OVERLAP = 4  # windows begin every 3/4 of their length


class Encoded(NamedTuple):
    """Texts as examples.

    Attributes:
      examples: one for each text, or for each window of it; without targets.
      owner: int64 [E], the text that each belongs to, never falling.
      cut: texts of which pieces were left out.
    """

    examples: Examples
    owner: np.ndarray
    cut: int

    def with_target(self, name: str, target: Target) -> Examples:
        """The examples with a target of their texts, whose weight their windows share."""
        windows = np.bincount(self.owner, minlength=len(target.values))
        whole = np.ones(len(target.values)) if target.weights is None else target.weights
        shared = (whole / windows)[self.owner].astype(np.float32)
        own = Target("example", target.values[self.owner], shared)
        return dataclasses.replace(self.examples, targets={name: own})


def encode(data: Sentences, tokenizer: Tokenizer, seq_len: int, long_text: str) -> Encoded:
    """The examples of a data set: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP].

    Args:
      seq_len: pieces of an example, at most, the special ones included.
      long_text: what is kept of a longer one: its "head", its "tail", "head_tail" (a quarter from
        its head, as 128 of 510, and the rest from its tail: Sun et al. 2019) or, in "windows" that
        overlap by a quarter, all of it. Of pairs the longer text loses pieces first, of equal ones
        the second.
    Raises:
      InputError: pairs have no "head_tail" or "windows"; there is no room for any piece.
    """
    check_long_text(long_text, data.pairs is not None)
    special = 2 if data.pairs is None else 3
    room = seq_len - special
    if room < special - 1:
        raise InputError(f"seq_len={seq_len} leaves no room for text: raise it.")
    rows: list[list[int]] = []
    prefix: list[int] = []
    owner: list[int] = []
    cut = 0
    for number, text in enumerate(data.texts):
        first = tokenizer.encode(text)
        second = None if data.pairs is None else tokenizer.encode(data.pairs[number])
        over = len(first) + len(second or ()) > room
        cut += over
        end: list[int] = []
        if second is not None:
            keep = shared_room(len(first), len(second), room)
            first, second = (
                _kept(ids, length, long_text)
                for ids, length in zip((first, second), keep, strict=True)
            )
            end = [*second, tokenizer.sep_id]
        windowed = over and long_text == "windows"
        for part in _windows(first, room) if windowed else [_kept(first, room, long_text)]:
            row = [tokenizer.cls_id, *part, tokenizer.sep_id]
            prefix.append(len(row))
            rows.append(row + end)
            owner.append(number)
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.array([piece for row in rows for piece in row], np.int32)
    examples = Examples(ids, lengths, np.array(prefix, np.int64), {})
    return Encoded(examples, np.array(owner, np.int64), 0 if long_text == "windows" else cut)


def check_long_text(long_text: str, paired: bool) -> None:
    """Raises InputError for what is no way to shorten texts, or pairs of them."""
    if long_text not in LONG_TEXTS:
        raise InputError(
            f"data.long_text={long_text!r} is unknown: choose one of {', '.join(LONG_TEXTS)}."
        )
    if paired and long_text not in ("head", "tail"):
        raise InputError(f"data.long_text={long_text} is not for pairs: choose head or tail.")


def shared_room(first: int, second: int, room: int) -> tuple[int, int]:
    """Pieces that two texts keep; the longer loses some first, of equal ones the second."""
    half = room - room // 2  # that the first one gets of two that are too long
    if first + second <= room:
        return first, second
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


def _kept(ids: list[int], room: int, long_text: str) -> list[int]:
    if len(ids) <= room:
        return list(ids)
    head = {"head": room, "tail": 0, "head_tail": room // 4}[long_text]
    return ids[:head] + ids[len(ids) - (room - head) :]


def _windows(ids: list[int], room: int) -> list[list[int]]:
    stride = max(1, room - room // _OVERLAP)
    starts = range(0, len(ids) - room + stride, stride)
    return [ids[start : start + room] for start in starts]
