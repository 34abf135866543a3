"""Tagged words: layouts of files, and label names."""

import pathlib

import pytest
import toy_tasks

from data_pipelines.errors import InputError
from data_pipelines.finetuning.token_classification import (
    TaggedSentence,
    label_names,
    make_tagged_dataset,
    parse_conll,
    read_tagged_file,
)
from data_pipelines.finetuning.word_alignment import encode_tagged_words

TOKENIZER = toy_tasks.TOKENIZER


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
    assert data.tags == ["B-x", "O", "B-x", "O"]


def test_label_names_do_not_depend_on_the_order_of_sentences() -> None:
    rows = [TaggedSentence(["a"], [tag], ["f:1"]) for tag in ("B-z", "O", "B-a-b", "B-m")]
    expected = ("O", "B-a-b", "I-a-b", "B-m", "I-m", "B-z", "I-z")
    for order in (rows, rows[::-1]):
        assert label_names(make_tagged_dataset("f", order)) == expected


def test_read_tagged_file_reads_published_files(data_dir: pathlib.Path) -> None:
    counts = {}
    for path in sorted((data_dir / "ner").glob("*/*[dl]")):  # .conll and .annotated
        data = read_tagged_file(path)
        counts[path.name] = len(data.sentences), len(data.words)
    assert counts["wnut17train.conll"] == (3394, 62730)
    assert counts["emerging.dev.conll"] == (1009, 15733)
    assert counts["emerging.test.annotated"] == (1287, 23394)
    assert [counts[f"{name}.conll"][0] for name in "abefgh"] == [1000, 2000, 200, 2000, 2138, 2001]
