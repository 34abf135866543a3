"""Texts and text pairs as examples of tokens: whole, truncated or in windows."""

import dataclasses
from typing import NamedTuple

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.question_answering.windows import window_starts
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.vocabulary.tokenization import Tokenizer

TRUNCATION_MODES = ("head", "tail", "head_tail", "windows")
_OVERLAP_DIVISOR = 4  # consecutive windows share a quarter of their tokens


class EncodedTexts(NamedTuple):
    """Texts as E examples.

    Attributes:
      examples: one example for each text, or for each window of a text; without targets.
      text_indices: int64 [E], index of each example's text, ascending.
      num_truncated: texts that lost tokens.
    """

    examples: Examples
    text_indices: np.ndarray
    num_truncated: int

    def with_target(self, name: str, target: Target) -> Examples:
        """Return the examples with a target of the texts; windows share their text's weight."""
        num_windows = np.bincount(self.text_indices, minlength=len(target.values))
        weights = np.ones(len(target.values)) if target.weights is None else target.weights
        shared = (weights / num_windows)[self.text_indices].astype(np.float32)
        example_target = Target("example", target.values[self.text_indices], shared)
        return dataclasses.replace(self.examples, targets={name: example_target})


def encode_texts(
    data: SequenceClassificationDataset, tokenizer: Tokenizer, max_seq_length: int, truncation: str
) -> EncodedTexts:
    """Return texts as examples [CLS] text [SEP], or [CLS] text [SEP] text_pair [SEP].

    Args:
      data: the texts.
      tokenizer: the tokenizer.
      max_seq_length: maximal tokens of an example, with [CLS] and [SEP].
      truncation: what remains of a longer text: its "head", its "tail", or with "head_tail" a
        quarter from its head and three quarters from its tail (Sun et al. 2019 keep 128 + 382).
        "windows" keeps all of it in windows that overlap by a quarter. The longer text of a pair
        loses tokens first; of equally long texts the second.

    Raises:
      InputError: "head_tail" or "windows" for pairs, or `max_seq_length` is too small.
    """
    check_truncation(truncation, data.text_pairs is not None)
    num_texts = 1 if data.text_pairs is None else 2  # of an example
    room = max_seq_length - (num_texts + 1)  # [CLS], and [SEP] after each text
    if room < num_texts:
        raise InputError(f"max_seq_length={max_seq_length}: no room for text. Raise it.")
    rows: list[list[int]] = []
    prefix_lengths: list[int] = []
    text_indices: list[int] = []
    num_truncated = 0
    for number, text in enumerate(data.texts):
        first = tokenizer.encode(text)
        second = None if data.text_pairs is None else tokenizer.encode(data.text_pairs[number])
        is_too_long = len(first) + len(second or ()) > room
        num_truncated += is_too_long and truncation != "windows"
        suffix: list[int] = []
        if second is not None:
            lengths = truncated_pair_lengths(len(first), len(second), room)
            first, second = (
                _truncate(ids, length, truncation)
                for ids, length in zip((first, second), lengths, strict=True)
            )
            suffix = [*second, tokenizer.sep_id]
        if is_too_long and truncation == "windows":
            stride = max(1, room - room // _OVERLAP_DIVISOR)
            starts = window_starts(len(first), room, stride)
            parts = [first[start : start + room] for start in starts]
        else:
            parts = [_truncate(first, room, truncation)]
        for part in parts:
            prefix = [tokenizer.cls_id, *part, tokenizer.sep_id]
            prefix_lengths.append(len(prefix))
            rows.append(prefix + suffix)
            text_indices.append(number)
    examples = Examples.from_rows(rows, prefix_lengths, {})
    return EncodedTexts(examples, np.array(text_indices, np.int64), num_truncated)


def check_truncation(truncation: str, has_pairs: bool) -> None:
    """Raise InputError if `truncation` is unknown, or not available for pairs."""
    if truncation not in TRUNCATION_MODES:
        raise InputError(
            f"data.truncation={truncation!r}: unknown truncation. Choose one of "
            f"{', '.join(TRUNCATION_MODES)}."
        )
    if has_pairs and truncation not in ("head", "tail"):
        raise InputError(
            f"data.truncation={truncation!r}: not available for text pairs. Choose head or tail."
        )


def truncated_pair_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts truncated to `room` tokens, the longer one first.

    Of equally long texts the second loses a token first.
    """
    half = room - room // 2  # tokens of the first text if both are too long
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
