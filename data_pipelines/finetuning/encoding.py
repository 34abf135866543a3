"""Texts to examples of pieces: cut, in windows, or whole."""

import dataclasses
from typing import NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.vocabulary.tokenization import Tokenizer

TRUNCATION_MODES = ("head", "tail", "head_tail", "windows")
_OVERLAP_DIVISOR = 4  # windows begin every 3/4 of their length


class EncodedTexts(NamedTuple):
    """Texts as examples.

    Attributes:
      examples: one for each text, or for each window of it; without targets.
      owner: int64 [E], the text that each belongs to, never falling.
      cut: texts of which pieces were left out.
    """

    examples: Examples
    text_indices: np.ndarray
    num_truncated: int

    def with_target(self, name: str, target: Target) -> Examples:
        """The examples with a target of their texts, whose weight their windows share."""
        windows = np.bincount(self.text_indices, minlength=len(target.values))
        whole = np.ones(len(target.values)) if target.weights is None else target.weights
        shared = (whole / windows)[self.text_indices].astype(np.float32)
        own = Target("example", target.values[self.text_indices], shared)
        return dataclasses.replace(self.examples, targets={name: own})


def encode(
    data: SequenceClassificationDataset, tokenizer: Tokenizer, max_seq_length: int, truncation: str
) -> EncodedTexts:
    """The examples of a data set: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP].

    Args:
      max_seq_length: pieces of an example, at most, the special ones included.
      truncation: what is kept of a longer one: its "head", its "tail", "head_tail" (a quarter from
        its head, as 128 of 510, and the rest from its tail: Sun et al. 2019) or, in "windows" that
        overlap by a quarter, all of it. Of pairs the longer text loses pieces first, of equal ones
        the second.
    Raises:
      InputError: pairs have no "head_tail" or "windows"; there is no room for any piece.
    """
    check_truncation(truncation, data.pairs is not None)
    special = 2 if data.pairs is None else 3
    room = max_seq_length - special
    if room < special - 1:
        raise InputError(f"max_seq_length={max_seq_length} leaves no room for text: raise it.")
    rows: list[list[int]] = []
    prefix: list[int] = []
    text_indices: list[int] = []
    num_truncated = 0
    for number, text in enumerate(data.texts):
        first = tokenizer.encode(text)
        second = None if data.pairs is None else tokenizer.encode(data.pairs[number])
        over = len(first) + len(second or ()) > room
        num_truncated += over
        end: list[int] = []
        if second is not None:
            keep = truncated_pair_lengths(len(first), len(second), room)
            first, second = (
                _truncate(ids, length, truncation)
                for ids, length in zip((first, second), keep, strict=True)
            )
            end = [*second, tokenizer.sep_id]
        windowed = over and truncation == "windows"
        for part in _windows(first, room) if windowed else [_truncate(first, room, truncation)]:
            row = [tokenizer.cls_id, *part, tokenizer.sep_id]
            prefix.append(len(row))
            rows.append(row + end)
            text_indices.append(number)
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.array([token for row in rows for token in row], np.int32)
    examples = Examples(ids, lengths, np.array(prefix, np.int64), {})
    return EncodedTexts(
        examples, np.array(text_indices, np.int64), 0 if truncation == "windows" else num_truncated
    )


def check_truncation(truncation: str, paired: bool) -> None:
    """Raises InputError for what is no way to shorten texts, or pairs of them."""
    if truncation not in TRUNCATION_MODES:
        raise InputError(
            f"data.truncation={truncation!r} is unknown: choose one of {', '.join(TRUNCATION_MODES)}."
        )
    if paired and truncation not in ("head", "tail"):
        raise InputError(f"data.truncation={truncation} is not for pairs: choose head or tail.")


def truncated_pair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Pieces that two texts keep; the longer loses some first, of equal ones the second."""
    half = room - room // 2  # that the first one gets of two that are too long
    if first + second <= room:
        return first, second
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half


def _truncate(ids: list[int], room: int, truncation: str) -> list[int]:
    if len(ids) <= room:
        return list(ids)
    head = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
    return ids[:head] + ids[len(ids) - (room - head) :]


def _windows(ids: list[int], room: int) -> list[list[int]]:
    stride = max(1, room - room // _OVERLAP_DIVISOR)
    starts = range(0, len(ids) - room + stride, stride)
    return [ids[start : start + room] for start in starts]
