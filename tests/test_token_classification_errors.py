"""Errors of token classification are one line with the location."""

import dataclasses
import pathlib
import re

import pytest
import toy_tasks
from random_models import draw_model
from test_sequence_classification_errors import arguments, jsonl, publish, write

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig

T = "DIR/train"
GOOD = "ba\tB-x\nki\tI-x\n\nme\tO\n"
FILES = {"train.conll": GOOD, "dev.conll": GOOD}
LABELS = ("O", "B-x", "I-x")


def publish_model(path: pathlib.Path, labels: tuple[str, ...]) -> None:
    config = BertConfig(128, 1, 64, 2, max_position_embeddings=64, num_labels=len(labels))
    model = draw_model(config, toy_tasks.TOKENIZER, "token_classification")
    path.mkdir()
    huggingface.write(dataclasses.replace(model, labels=labels), path)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    publish_model(folder / "token_classification", LABELS)
    publish(folder / "sequence_classification", "sequence_classification")
    toy_tasks.TOKENIZER.save(folder)
    return folder


# Files, options and fields, expected error.
CASES: dict[str, tuple[dict[str, str | bytes], str, str]] = {
    "no directory": ({}, "", "DIR has no train.conll, .bio, .iob, .txt"),
    "no such file": (
        FILES, "train_file=other.conll", "there is no file DIR/other.conll: data=DIR is to be",
    ),
    "two train files": (
        {**FILES, "train.txt": GOOD}, "",
        "DIR has train.conll, train.txt: choose one with data.train_file=FILE",
    ),
    "an empty file": ({"train.conll": ""}, "", f"{T}.conll has no sentence: give a file with"),
    "blank lines alone": ({"train.conll": "\n \n\n"}, "", f"{T}.conll has no sentence"),
    "documents without a sentence": (
        {"train.conll": "-DOCSTART- O\n\n"}, "", f"{T}.conll has no sentence",
    ),
    "words without tags": (
        {"train.conll": "ba\nki\n"}, "", f"{T}.conll line 1: words have no tags: give a file",
    ),
    "a word without a tag": (
        {"train.conll": GOOD + "do\n"}, "",
        f"{T}.conll line 5 has 1 columns where line 1 has 2: write the word first",
    ),
    "a tag that is empty": (
        {"train.conll": GOOD + "do\t\t\n"}, "", f"{T}.conll line 5 has 1 columns where line 1",
    ),
    "a column more": (
        {"train.conll": GOOD + "do\tX\tO\n"}, "", f"{T}.conll line 5 has 3 columns where line 1",
    ),
    "white space in place of tabs": (
        {"train.conll": GOOD + "do O\n"}, "", f"{T}.conll line 5 has 1 columns where line 1 has 2",
    ),
    "the columns turned round": (
        {"train.conll": "B-x\tba\nO\tki\n"}, "",
        f"{T}.conll line 1: tag 'ba' is neither O nor a prefix and a type, such as B-person",
    ),
    "a type without a prefix": (
        {"train.conll": GOOD + "do\tper\n"}, "", f"{T}.conll line 5: tag 'per' is neither O nor",
    ),
    "a prefix that is none": (
        {"train.conll": GOOD + "do\tX-per\n"}, "", f"{T}.conll line 5: tag 'X-per' is neither O",
    ),
    "a hyphen without a type": (
        {"train.conll": GOOD + "do\tB-\n"}, "", f"{T}.conll line 5: tag 'B-' is neither O nor",
    ),
    "another dash": (
        {"train.conll": GOOD + "do\tB_x\n"}, "", f"{T}.conll line 5: tag 'B_x' is neither O nor",
    ),
    "an o of lower case": (
        {"train.conll": GOOD + "do\to\n"}, "", f"{T}.conll line 5: tag 'o' is neither O nor",
    ),
    "an I without a beginning": (
        {"train.conll": GOOD + "do\tI-x\n"}, "",
        rf"{T}.conll line 5: tag 'I-x' breaks the scheme of the file, BIO \(1 do\): mend it, or",
    ),
    "an I of another type": (
        {"train.conll": GOOD * 2 + "\ndo\tB-x\nki\tI-y\n"}, "",
        f"{T}.conll line 11: tag 'I-y' breaks the scheme of the file, BIO",
    ),
    "an end that is missing": (
        {"train.conll": "ba\tB-x\nki\tE-x\n\nba\tS-x\n\nba\tB-x\nki\tI-x\nme\tO\n"}, "",
        f"{T}.conll line 7: tag 'I-x' breaks the scheme of the file, IOBES",
    ),
    "two schemes in one file": (
        {"train.conll": "ba\tB-x\nki\tE-x\n\nba\tB-x\nki\tL-x\n"}, "",
        f"{T}.conll: its tags begin with B, E, L, which are of no scheme together",
    ),
    "no entity": ({"train.conll": "ba\tO\n"}, "", f"{T}.conll has no entity: all its tags are O"),
    "a tag that training never saw": (
        {"train.conll": GOOD, "dev.conll": "ba\tB-x\nki\tB-y\n"}, "",
        "DIR/dev.conll line 2: tag 'B-y' is not a label of the model. Use one of O, B-x, I-x",
    ),
    "words that are no list": (
        {"train.jsonl": jsonl({"words": "ba ki", "tags": ["O", "O"]})}, "",
        f"{T}.jsonl line 1: 'words' is no list of texts: write one",
    ),
    "numbers for tags": (
        {"train.jsonl": jsonl({"words": ["ba"], "tags": [3]})}, "",
        f"{T}.jsonl line 1: 'tags' is no list of texts: write one, names of tags in place",
    ),
    "more words than tags": (
        {"train.jsonl": jsonl({"words": ["ba", "ki"], "tags": ["B-x"]})}, "",
        f"{T}.jsonl line 1 has 2 words and 1 tags: write a tag for each",
    ),
    "no words": (
        {"train.jsonl": jsonl({"text": "ba", "tags": ["O"]})}, "",
        f"{T}.jsonl line 1 has no \"words\", but 'text', 'tags': write a list of words",
    ),
    "JSON without tags": (
        {"train.jsonl": jsonl({"words": ["ba", "ki"]})}, "",
        f"{T}.jsonl line 1, word 1: words have no tags",
    ),
    "JSON that is none": (
        {"train.jsonl": '{"words": ["ba"], "tags": ["B-x"]}\n{"words"\n'}, "",
        f"{T}.jsonl line 2 is no JSON .*: write an object on it",
    ),
    "text that is not UTF-8": (
        {"train.conll": b"ba\tB-x\n\xe9t\xe9\tO\n"}, "", f"{T}.conll: byte 7 is not UTF-8; convert",
    ),
    "a context that is none": (
        FILES, "context=page", "data.context='page': unknown context. Choose sentence or document.",
    ),
    "a row too short for any word": (
        FILES, " max_seq_length=2", "max_seq_length=2: no room for words. Raise it.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_train_rejects_bad_data(case: str, models, tmp_path, refused) -> None:
    files, given, problem = CASES[case]
    write(tmp_path, files)
    options, _, fields = given.partition(" ")
    flags = [f"--config.{field}" for field in fields.split()]
    spec = f"token_classification:data={tmp_path}" + (f",{options}" if options else "")
    sentence = refused("train", "--workdir", tmp_path / "run", *arguments(models, spec), *flags)
    assert re.match(problem.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "content", "problem"),
    [
        (
            "sequence_classification",
            GOOD,
            "sequence_classification has no token_classification, only encoder",
        ),
        (
            "token_classification",
            GOOD.replace("-x", "-y"),
            "tells apart O, B-x, I-x and the data O, B-y, I-y",
        ),
    ],
)
def test_evaluate_rejects_another_model(
    model: str, content: str, problem: str, models, tmp_path, refused
) -> None:
    write(tmp_path, {"train.conll": content, "dev.conll": content})
    sentence = refused(
        "evaluate", "--checkpoint", models / model, "--output", tmp_path / "scores",
        *arguments(models, f"token_classification:data={tmp_path}", init=models / model),
    )  # fmt: skip
    assert re.search(problem, sentence), sentence


def test_evaluate_rejects_labels_without_scheme(models, tmp_path, refused) -> None:
    publish_model(tmp_path / "plain", ("O", "LOC", "PER"))
    write(tmp_path, {"dev.conll": GOOD.replace("B-x", "O").replace("I-x", "O")})
    sentence = refused(
        "evaluate", "--checkpoint", tmp_path / "plain", "--output", tmp_path / "scores",
        *arguments(models, f"token_classification:data={tmp_path}", init=tmp_path / "plain"),
    )  # fmt: skip
    assert "Entities need labels such as B-person, I-person and O" in sentence


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"words"', "line 1 is no JSON .*: write an object on it"),
        ('{"words": "ba"}', "line 1: 'words' is no list of texts: write one."),
        ('{"words": []}', "line 1 has no words: write some"),
        ('{"body": "ba"}', "line 1 has no \"words\", but 'body'"),
        ('{"text": 3}', 'line 1: "text" is 3: write some text, or a list "words"'),
    ],
)
def test_predicting_what_cannot_be_read_is_refused(line, problem, models, refused) -> None:
    sentence = refused("predict", "--checkpoint", models / "token_classification", "--text", line)
    assert re.search(problem, sentence), sentence
