"""Alignment of tagged words and tokens."""

import numpy as np
import toy_tasks
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.finetuning.token_classification.sentences import TaggedSentence
from data_pipelines.finetuning.word_alignment import encode_tagged_words

TOKENIZER = toy_tasks.TOKENIZER


words = st.lists(
    st.lists(st.sampled_from(["ba", "doki", "lumenora", "xyz", ""]), min_size=1, max_size=30),
    min_size=1,
    max_size=5,
)


@given(words, st.integers(3, 20), st.sampled_from(["sentence", "document"]))
def test_encode_tagged_words_finds_the_first_token_of_every_word(
    word_lists, max_seq_length, context
) -> None:
    rows = [TaggedSentence(row, None, row, i // 2) for i, row in enumerate(word_lists)]
    encoded = encode_tagged_words(rows, TOKENIZER, max_seq_length, context)
    flat = [word for row in word_lists for word in row]
    assert len(encoded.first_tokens) == len(flat) == len({*encoded.first_tokens})
    for word, at in zip(flat, encoded.first_tokens, strict=True):
        assert encoded.ids[at] == (TOKENIZER.encode(word) or [TOKENIZER.unk_id])[0]
    assert encoded.lengths.max() <= max_seq_length and encoded.lengths.sum() == len(encoded.ids)
    tagged = encoded.with_tags(np.arange(len(flat), dtype=np.int32) - 1)
    target = tagged.targets["token_labels"]
    assert target.weights is not None and target.weights.sum() == len(flat) - 1


def test_encode_tagged_words_uses_the_window_with_maximal_context() -> None:
    row = TaggedSentence(["ba"] * 20, None, [""] * 20)
    encoded = encode_tagged_words([row], TOKENIZER, 12)  # windows of 10 tokens, 5 apart
    assert encoded.lengths.tolist() == [12, 12, 12] and encoded.num_windowed == 1
    assert (encoded.first_tokens // 12).tolist() == [0] * 8 + [1] * 5 + [2] * 7


def test_document_context_fills_both_sides() -> None:
    rows = [
        TaggedSentence([word] * 3, None, [""] * 3, i // 3)
        for i, word in enumerate(("ba", "do", "ki", "lu"))
    ]
    encoded = encode_tagged_words(rows, TOKENIZER, 9, "document")
    texts = [
        TOKENIZER.decode(encoded.ids[start + 1 : start + length - 1].tolist())
        for start, length in zip(encoded.starts, encoded.lengths, strict=True)
    ]
    assert texts == [
        "ba ba ba do do do ki",
        "ba ba do do do ki ki",
        "ba do do do ki ki ki",
        "lu lu lu",
    ]
