"""Texts and text pairs as examples of tokens, whole, truncated or in windows; their labels."""

import dataclasses
import math
from collections.abc import Callable, Sequence
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
      truncated: indices of the texts that lost tokens, ascending.
    """

    examples: Examples
    text_indices: np.ndarray
    truncated: list[int]

    @property
    def num_truncated(self) -> int:
        """Number of texts that lost tokens."""
        return len(self.truncated)

    def with_target(self, name: str, target: Target) -> Examples:
        """Return the examples with a target of the texts; windows share their text's weight."""
        num_windows = np.bincount(self.text_indices, minlength=len(target.values))
        weights = np.ones(len(target.values)) if target.weights is None else target.weights
        shared = (weights / num_windows)[self.text_indices].astype(np.float32)
        example_target = Target("example", target.values[self.text_indices], shared)
        return dataclasses.replace(self.examples, targets={name: example_target})


def encode_texts(
    data: SequenceClassificationDataset,
    tokenizer: Tokenizer,
    max_seq_length: int,
    truncation: str,
    encode: Callable[[str], list[int]] | None = None,
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
      encode: function from a text to token ids; by default that of the tokenizer.

    Raises:
      InputError: "head_tail" or "windows" for pairs, or `max_seq_length` is too small.
    """
    encode = encode or tokenizer.encode
    text_pairs = data.text_pairs or [None] * len(data)
    has_pairs = any(text is not None for text in text_pairs)
    check_truncation(truncation, has_pairs)
    if max_seq_length < (5 if has_pairs else 3):  # a token of each text, [CLS] and [SEP]
        raise InputError(f"max_seq_length={max_seq_length}: no space for text. Raise it.")
    rows: list[list[int]] = []
    prefix_lengths: list[int] = []
    text_indices: list[int] = []
    truncated: list[int] = []
    for number, (text, text_pair) in enumerate(zip(data.texts, text_pairs, strict=True)):
        first = encode(text)
        second = None if text_pair is None else encode(text_pair)
        capacity = max_seq_length - (2 if second is None else 3)  # [CLS], and [SEP] after each text
        is_too_long = len(first) + len(second or ()) > capacity
        if is_too_long and truncation != "windows":
            truncated.append(number)
        suffix: list[int] = []
        if second is not None:
            lengths = truncated_pair_lengths(len(first), len(second), capacity)
            first, second = (
                _truncate(ids, length, truncation)
                for ids, length in zip((first, second), lengths, strict=True)
            )
            suffix = [*second, tokenizer.sep_id]
        if is_too_long and truncation == "windows":
            stride = max(1, capacity - capacity // _OVERLAP_DIVISOR)
            starts = window_starts(len(first), capacity, stride)
            parts = [first[start : start + capacity] for start in starts]
        else:
            parts = [_truncate(first, capacity, truncation)]
        for part in parts:
            prefix = [tokenizer.cls_id, *part, tokenizer.sep_id]
            prefix_lengths.append(len(prefix))
            rows.append(prefix + suffix)
            text_indices.append(number)
    examples = Examples.from_rows(rows, prefix_lengths, {})
    return EncodedTexts(examples, np.array(text_indices, np.int64), truncated)


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


def truncated_pair_lengths(first: int, second: int, capacity: int) -> tuple[int, int]:
    """Return the lengths of two texts truncated to `capacity` tokens, the longer one first.

    Of equally long texts the second loses a token first.
    """
    half = capacity - capacity // 2  # tokens of the first text if both are too long
    if first + second <= capacity:
        return first, second
    if first <= half:
        return first, capacity - first
    if second <= capacity - half:
        return capacity - second, second
    return half, capacity - half


def _truncate(ids: list[int], capacity: int, truncation: str) -> list[int]:
    if len(ids) <= capacity:
        return list(ids)
    head = {"head": capacity, "tail": 0, "head_tail": capacity // 4}[truncation]
    return ids[:head] + ids[len(ids) - (capacity - head) :]


def make_target(
    data: SequenceClassificationDataset, labels: Sequence[str], problem_type: str
) -> Target:
    """Return the target of a data set: weight 1 for each example, or 0 if it is unlabeled.

    Args:
      data: the examples.
      labels: names of the classes or labels (C), in the order of their ids; unused for regression.
      problem_type: one of `PROBLEM_TYPES`.

    Returns:
      Class ids int32 [N], label sets float32 [N, C] or numbers float32 [N].

    Raises:
      InputError: an example has a label that `labels` does not contain.
    """
    dtype = np.int32 if problem_type == "single_label_classification" else np.float32
    is_multi_label = problem_type == "multi_label_classification"
    values = np.zeros((len(data), len(labels)) if is_multi_label else (len(data),), dtype)
    if data.values is None:
        return Target("example", values, np.zeros(len(data), np.float32))
    label_ids = {name: i for i, name in enumerate(labels)}
    for i, value in enumerate(data.values):
        if problem_type == "regression":
            values[i] = value
            continue
        for name in value if isinstance(value, tuple) else (value,):
            if name not in label_ids:
                some = ", ".join(map(repr, labels[:5])) + (" ..." if len(labels) > 5 else "")
                raise InputError(
                    f"{data.locations[i]}: label {name!r} is not a label of the model ({some}). "
                    "Fix it, or train with this label."
                )
            if is_multi_label:
                values[i, label_ids[name]] = 1
            else:
                values[i] = label_ids[name]
    return Target("example", values, np.ones(len(data), np.float32))


def class_weights(spec: str, labels: Sequence[str], classes: np.ndarray) -> np.ndarray:
    """Return the weight of each class, float32 [C].

    Args:
      spec: "" for 1, "balanced" for N / (C * examples of the class), or "LABEL=WEIGHT,...", where
        labels without a weight get 1.
      labels: names of the classes.
      classes: class ids of the training examples, int32 [N].

    Raises:
      InputError: a name is not a label, or a weight is not a positive number.
    """
    weights = np.ones(len(labels), np.float32)
    if spec == "balanced":
        counts = np.bincount(classes, minlength=len(labels))
        return (len(classes) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)
    for part in filter(None, spec.split(",")):
        name, _, text = part.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if name not in labels or not 0 < weight < math.inf:
            raise InputError(
                f"data.class_weights={part!r}: not LABEL=WEIGHT with a positive weight. Write "
                f"balanced, or weights of {', '.join(labels[:8])}."
            )
        weights[labels.index(name)] = weight
    return weights
