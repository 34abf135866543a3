"""Tagged words: schemes, layouts of files, and alignment of words and tokens."""

import pathlib

import numpy as np
import pytest
import toy_tasks
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import (
    SCHEMES,
    Entity,
    detect_scheme,
    entities,
    entities_to_tags,
    label_scheme,
    labels_to_tags,
    strict_entities,
)
from data_pipelines.finetuning.token_classification import (
    TaggedSentence,
    TokenClassificationDataset,
    label_names,
    make_tagged_dataset,
    parse_conll,
    read_tagged_file,
)
from data_pipelines.finetuning.word_alignment import encode_tagged_words

TOKENIZER = toy_tasks.TOKENIZER


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Draw adjacent and separate entities, and the number of words."""
    drawn, word = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from("ab")), max_size=6)
    ):
        word += gap
        drawn.append(Entity(kind, word, word + length - 1))
        word += length
    return drawn, word + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(st.lists(sentences(), min_size=1, max_size=5))
def test_entities_to_tags_and_entities_are_inverse(scheme, entities_and_sizes) -> None:
    tags = [entities_to_tags(drawn, size, scheme) for drawn, size in entities_and_sizes]
    drawn_entities = [drawn for drawn, _ in entities_and_sizes]
    assert [entities(sentence_tags) for sentence_tags in tags] == drawn_entities
    assert detect_scheme(tags).violations == []
    if scheme != "IOB1":
        strict = [strict_entities(sentence_tags, scheme) for sentence_tags in tags]
        assert strict == drawn_entities


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "BIO"),
        ("O B-a I-a O B-a B-a", "BIO"),
        ("I-a I-a O I-b", "IOB1"),
        ("I-a B-a I-a", "IOB1"),
        ("O S-a B-a I-a E-a", "IOBES"),
        ("B-a E-a", "IOBES"),
        ("U-a", "BILOU"),
        ("B-a I-a L-a", "BILOU"),
    ],
)
def test_detect_scheme_returns_the_scheme_of_the_tags(tags: str, scheme: str) -> None:
    assert detect_scheme([tags.split()]) == (scheme, [])


def test_detect_scheme_follows_the_majority() -> None:
    valid = ["B-a", "I-a", "O"]
    assert detect_scheme([valid, valid, ["O", "I-a"], valid]) == ("BIO", [(2, 1)])


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        ("O B-a I-a", "BIO"),
        ("B-a I-a E-a S-a O", "IOBES"),
        ("U-a L-a B-a I-a O", "BILOU"),
        ("O I-a I-b", "IOB1"),
    ],
)
def test_label_scheme_returns_the_scheme_of_label_names(labels: str, scheme: str) -> None:
    assert label_scheme(labels.split()) == scheme


def test_labels_to_tags_uses_other_labels_as_types() -> None:
    """Equal labels of adjacent words form an entity only if there is a label "O"."""
    tags = labels_to_tags(["O", "PER", "B-LOC"])
    assert entities([tags[label] for label in ("PER", "PER", "O", "B-LOC", "PER")]) == [
        Entity("PER", 0, 1),
        Entity("LOC", 3, 3),
        Entity("PER", 4, 4),
    ]
    tags = labels_to_tags(["NOUN", "VERB"])
    assert entities([tags["NOUN"], tags["NOUN"]]) == [Entity("NOUN", 0, 0), Entity("NOUN", 1, 1)]


def read(text: str) -> list[TaggedSentence]:
    return list(parse_conll("f", text.split("\n")))


def test_parse_conll_splits_at_tabs_or_spaces() -> None:
    for text in ("a\tO\nb c\tB-x\n", "a O\nb B-x"):
        (sentence,) = read(text)
        assert sentence.tags == ["O", "B-x"] and sentence.locations == ["f:1", "f:2"]
        assert sentence.words == ["a", "b c" if "\t" in text else "b"]
    (four,) = read("U.N. NNP I-NP I-ORG\nofficial NN I-NP O\n")
    assert (four.words, four.tags) == (["U.N.", "official"], ["I-ORG", "O"])


def test_parse_conll_ends_sentences_and_documents() -> None:
    text = "-DOCSTART- -X- O O\n\na O\n\n\t\nb O \n\n-DOCSTART- -X- O O\n\nc O"
    sentences = read(text)
    assert [(sentence.words, sentence.document) for sentence in sentences] == [
        (["a"], 0),
        (["b"], 0),
        (["c"], 1),
    ]


def test_parse_conll_skips_comments_and_keeps_hash_words() -> None:
    (sentence,) = read("# sent_id = 1\n# text = # a\n#\tO\na\tB-x\n")
    assert sentence.words == ["#", "a"]
    (sentence,) = read("# one two\na O\n# O\n")
    assert sentence.words == ["a", "#"]
    for mark in ("# newdoc", "# newdoc\n\n", "# newdoc\n# sent_id = 1"):
        (sentence,) = read(f"{mark}\n#\tNN\tO\na\tNN\tO\n")
        assert sentence.words == ["#", "a"]
        assert [sentence.words for sentence in read(f"{mark}\n# O\na O\n# newdoc\nb O")] == [
            ["#", "a", "b"]
        ]


def test_parse_conll_keeps_no_break_spaces() -> None:
    for text in ("10\u00a0000 \t B-x\r\neuros\tO\n", "10\u00a0000  B-x\r\neuros O\n"):
        (sentence,) = read(text)
        assert (sentence.words, sentence.tags) == (["10\u00a0000", "euros"], ["B-x", "O"])


def test_parse_conll_accepts_empty_words_between_tabs() -> None:
    (sentence,) = read("a\tO\n\tO\n")
    assert sentence.words == ["a", ""]
    encoded = encode_tagged_words([sentence], TOKENIZER, 16)
    assert encoded.ids[encoded.first_tokens[1]] == TOKENIZER.unk_id


def test_read_tagged_file_reads_json_lines(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": ["a", "b"], "ner_tags": ["B-x", "O"], "document": 1}\n'
        '{"words": ["c"], "tags": ["U-x"], "document": 1}\n'
        '{"words": ["d"], "labels": ["O"], "document": 2}\n'
    )
    with pytest.raises(InputError, match=":1, word 1: tag 'B-x' violates the scheme"):
        read_tagged_file(path)
    data = read_tagged_file(path, fix_tags=True)
    assert [sentence.document for sentence in data.sentences] == [0, 0, 1]
    assert data.tags == ["B-x", "O", "B-x", "O"] and data.scheme == "BILOU"


def test_label_names_do_not_depend_on_the_order_of_sentences() -> None:
    rows = [TaggedSentence(["a"], [tag], ["f:1"]) for tag in ("B-z", "O", "B-a-b", "B-m")]
    expected = ("O", "B-a-b", "I-a-b", "B-m", "I-m", "B-z", "I-z")
    for order in (rows, rows[::-1]):
        assert label_names(make_tagged_dataset("f", order)) == expected


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


def test_read_tagged_file_reads_published_files(data_dir: pathlib.Path) -> None:
    counts = {}
    for path in sorted((data_dir / "ner").glob("*/*[dl]")):  # .conll and .annotated
        data = read_tagged_file(path)
        assert isinstance(data, TokenClassificationDataset) and data.scheme == "BIO"
        counts[path.name] = len(data.sentences), len(data.words)
    assert counts["wnut17train.conll"] == (3394, 62730)
    assert counts["emerging.dev.conll"] == (1009, 15733)
    assert counts["emerging.test.annotated"] == (1287, 23394)
    assert [counts[f"{name}.conll"][0] for name in "abefgh"] == [1000, 2000, 200, 2000, 2138, 2001]
