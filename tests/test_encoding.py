"""Encoding of texts and text pairs: truncation, windows, and targets of windows."""

import dataclasses
import random

import numpy as np
import pytest
from conftest import SYLLABLES, TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import (
    TRUNCATION_MODES,
    check_truncation,
    class_weights,
    encode_texts,
    make_target,
    truncated_pair_lengths,
)
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset


def bert_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """The rule of google-research/bert, run_classifier.py, one token at a time."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


lengths = st.integers(0, 60)


@given(lengths, lengths, st.integers(0, 70))
def test_truncated_pair_lengths_matches_bert(a, b, room) -> None:
    assert truncated_pair_lengths(a, b, room) == bert_lengths(a, b, room)


def words(count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(SYLLABLES, k=count))


def tokens(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def rows_of(encoded) -> list[list[int]]:
    return [part.tolist() for part in np.split(encoded.examples.ids, encoded.examples.starts[1:])]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(3, 24), st.sampled_from(TRUNCATION_MODES))
def test_encode_texts_truncates_or_windows_long_texts(
    count: int, max_seq_length: int, truncation: str
) -> None:
    text, room = words(count), max_seq_length - 2
    ids = tokens(text)
    encoded = encode_texts(
        SequenceClassificationDataset("it", ["here"], [text]), TOKENIZER, max_seq_length, truncation
    )
    rows = rows_of(encoded)
    for row in rows:
        assert len(row) <= max_seq_length
        assert (row[0], row[-1]) == (TOKENIZER.cls_id, TOKENIZER.sep_id)
    assert encoded.examples.prefix_lengths.tolist() == [len(row) for row in rows]
    assert encoded.text_indices.tolist() == [0] * len(rows)
    texts = [row[1:-1] for row in rows]
    assert encoded.num_truncated == (count > room and truncation != "windows")
    if count <= room:
        assert texts == [ids]
    elif truncation == "windows":
        stride = max(1, room - room // 4)
        for number, window in enumerate(texts):
            assert window == ids[number * stride :][:room]
        covered = {
            i for n, window in enumerate(texts) for i in range(n * stride, len(window) + n * stride)
        }
        assert covered == set(range(count))
        assert (len(texts) - 1) * stride + room - stride < count  # no window is redundant
    else:
        head = {"head": room, "tail": 0, "head_tail": room // 4}[truncation]
        assert texts == [ids[:head] + ids[count - room + head :]]


def test_head_tail_keeps_a_quarter_of_the_head() -> None:
    """128 of 510, which is 127 here (Sun et al. 2019)."""
    text = words(1000)
    (row,) = rows_of(
        encode_texts(
            SequenceClassificationDataset("it", ["here"], [text]), TOKENIZER, 512, "head_tail"
        )
    )
    assert row[1:-1] == tokens(text)[:127] + tokens(text)[-383:]


@settings(deadline=None)
@given(
    st.integers(0, 20), st.integers(0, 20), st.integers(5, 30), st.sampled_from(["head", "tail"])
)
def test_encode_texts_truncates_pairs(a: int, b: int, max_seq_length: int, truncation: str) -> None:
    texts = [words(a, 1), words(b, 2)]
    data = SequenceClassificationDataset("it", ["here"], texts[:1], texts[1:])
    encoded = encode_texts(data, TOKENIZER, max_seq_length, truncation)
    sizes = bert_lengths(a, b, max_seq_length - 3)
    parts = [
        tokens(text)[:size] if truncation == "head" else tokens(text)[len(tokens(text)) - size :]
        for text, size in zip(texts, sizes, strict=True)
    ]
    sep = [TOKENIZER.sep_id]
    assert rows_of(encoded) == [[TOKENIZER.cls_id, *parts[0], *sep, *parts[1], *sep]]
    assert encoded.examples.prefix_lengths.tolist() == [sizes[0] + 2]
    assert encoded.num_truncated == (a + b > max_seq_length - 3)


def test_encode_texts_encodes_texts_and_pairs_as_if_alone() -> None:
    texts, text_pairs = [words(count, count) for count in (3, 8, 9, 4)], [None, words(2), None, "a"]
    data = SequenceClassificationDataset("it", texts, texts, text_pairs)
    encoded = encode_texts(data, TOKENIZER, 10, "head")
    rows = rows_of(encoded)
    for number, row in enumerate(rows):
        pairs = None if text_pairs[number] is None else [text_pairs[number]]
        alone = SequenceClassificationDataset("it", ["here"], [texts[number]], pairs)
        single = encode_texts(alone, TOKENIZER, 10, "head")
        assert rows_of(single) == [row]
        assert single.examples.prefix_lengths[0] == encoded.examples.prefix_lengths[number]
    assert encoded.truncated == [1, 2] and [len(row) for row in rows] == [5, 10, 10, 8]


def test_with_target_shares_the_weight_among_windows() -> None:
    texts = [words(3), words(50), words(20)]
    data = SequenceClassificationDataset("it", texts, texts, None, ["a", "b", "b"])
    encoded = encode_texts(data, TOKENIZER, 10, "windows")
    target = make_target(data, ("a", "b"), "single_label_classification")
    weighted = dataclasses.replace(target, weights=np.array([1, 0.5, 2], np.float32))
    for text_target, sums in ((target, [1, 1, 1]), (weighted, [1, 0.5, 2])):
        label = encoded.with_target("labels", text_target).targets["labels"]
        np.testing.assert_allclose(
            np.bincount(encoded.text_indices, label.weights), sums, rtol=1e-6
        )
        assert label.values.tolist() == target.values[encoded.text_indices].tolist()
    assert np.bincount(encoded.text_indices).tolist() == [1, 8, 3]


def test_invalid_truncations_and_lengths_are_rejected() -> None:
    with pytest.raises(
        InputError, match=r"data.truncation='middle': unknown truncation\. Choose one of head"
    ):
        check_truncation("middle", False)
    for truncation in ("windows", "head_tail"):
        with pytest.raises(
            InputError,
            match=f"data.truncation='{truncation}': not available for text pairs. Choose head",
        ):
            check_truncation(truncation, True)
    for pairs, max_seq_length in ((None, 2), (["b"], 4)):
        with pytest.raises(
            InputError, match=f"max_seq_length={max_seq_length}: no space for text. Raise"
        ):
            encode_texts(
                SequenceClassificationDataset("it", ["x"], ["a"], pairs),
                TOKENIZER,
                max_seq_length,
                "head",
            )


def test_class_weights_parses_weights_and_balanced() -> None:
    labels, classes = ("a", "b", "c=d"), np.array([0, 0, 0, 1])
    assert class_weights("", labels, classes).tolist() == [1, 1, 1]
    assert class_weights("b=2,c=d=0.5", labels, classes).tolist() == [1, 2, 0.5]
    # N / (C * count) as in scikit-learn; a class without examples counts as one with one.
    balanced = class_weights("balanced", labels, classes)
    np.testing.assert_allclose(balanced, [4 / 9, 4 / 3, 4 / 3])
    weights = class_weights("balanced", labels[:2], classes)
    assert weights[classes].mean() == 1


@pytest.mark.parametrize("spec", ["z=2", "a", "a=x", "a=0", "a=-1", "a=nan", "a=inf", "a=1,=2"])
def test_class_weights_rejects_unknown_labels_and_invalid_weights(spec: str) -> None:
    with pytest.raises(
        InputError, match=r"data.class_weights='.*': not LABEL=WEIGHT .* weights of a, b"
    ):
        class_weights(spec, ("a", "b"), np.array([0, 1]))
