"""Errors of invalid tagged words and models: one line with the location and the fix."""

import pathlib
import re

import pytest
import toy_tasks
from data_errors import (
    arguments,
    check_train_error,
    jsonl,
    publish,
    publish_token_classifier,
    write,
)

T = "DIR/train"
GOOD = "ba\tB-x\nki\tI-x\n\nme\tO\n"
FILES = {"train.conll": GOOD, "dev.conll": GOOD}
LABELS = ("O", "B-x", "I-x")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    publish_token_classifier(folder / "token_classification", LABELS)
    publish(folder / "sequence_classification", "sequence_classification")
    toy_tasks.TOKENIZER.save(folder)
    return folder


# Case -> files, options and fields, pattern of the error.
CASES: dict[str, tuple[dict[str, str | bytes], str, str]] = {
    "no directory": ({}, "", "DIR has no train.conll, .bio, .iob, .txt"),
    "no such file": (
        FILES, "train_file=other.conll", "DIR/other.conll: no such file. Set data.dir",
    ),
    "two train files": (
        {**FILES, "train.txt": GOOD}, "",
        "DIR has train.conll, train.txt. Choose one with data.train_file=FILE",
    ),
    "an empty file": ({"train.conll": ""}, "", f"{T}.conll: no sentences. Give a file with"),
    "blank lines alone": ({"train.conll": "\n \n\n"}, "", f"{T}.conll: no sentences"),
    "documents without a sentence": (
        {"train.conll": "-DOCSTART- O\n\n"}, "", f"{T}.conll: no sentences",
    ),
    "words without tags": (
        {"train.conll": "ba\nki\n"}, "", f"{T}.conll:1: words without tags. Give a file",
    ),
    "a word without a tag": (
        {"train.conll": GOOD + "do\n"}, "",
        f"{T}.conll:5: 1 columns, line 1 has 2. Write the same columns",
    ),
    "a tag that is empty": (
        {"train.conll": GOOD + "do\t\t\n"}, "", f"{T}.conll:5: 1 columns, line 1",
    ),
    "a column more": (
        {"train.conll": GOOD + "do\tX\tO\n"}, "", f"{T}.conll:5: 3 columns, line 1",
    ),
    "white space in place of tabs": (
        {"train.conll": GOOD + "do O\n"}, "", f"{T}.conll:5: 1 columns, line 1 has 2",
    ),
    "two columns of entities": (
        {"train.conll": "ba\tB-x\tB-y\nki\tO\tO\n"}, "",
        rf"{T}.conll: the tags may be in column 2 \(B-x\) or 3 \(B-y\). Choose one with data.tag_c",
    ),
    "a column that does not exist": (
        FILES, "tag_column=3", 
        "data.tag_column='3': .*train.conll has no such column. Set a number from 1 to 2",
    ),
    "a tag that is a placeholder": (
        {"train.conll": "ba\tNOUN\nki\t_\n"}, "", f"{T}.conll:2: tag '_' is no tag. Write the name",
    ),
    "tags that are numbers": (
        {"train.conll": "ba\t3\nki\t0\n"}, "", f"{T}.conll:1: tag '3' is a number. Write the name",
    ),
    "lists in a CSV": (
        {"train.csv": "word,tag\nba ki,B-x O\nki me,O\nba ki,B-x O\n"}, "",
        f"{T}.csv:3: 1 elements and 2 in columns 'word' and 'tag'. Write one tag for each word.",
    ),
    "a CSV without a header": (
        {"train.csv": "Wort,Art\nba,NOUN\nki,VERB\n"}, "",
        f"{T}.csv: no header with names such as Word and Tag. Write one, or name the columns",
    ),
    "columns of CoNLL-U without UPOS": (
        {"train.conllu": "1\tba" + "\t_" * 8 + "\n"}, "",
        f"{T}.conllu:1: no tag in column 'upos'. .* choose another column with data.tag_column",
    ),
    "a type without a prefix": (
        {"train.conll": GOOD + "do\tper\n"}, "", f"{T}.conll:5: tag 'per' is neither O nor",
    ),
    "a prefix that is none": (
        {"train.conll": GOOD + "do\tX-per\n"}, "", f"{T}.conll:5: tag 'X-per' is neither O",
    ),
    "a hyphen without a type": (
        {"train.conll": GOOD + "do\tB-\n"}, "", f"{T}.conll:5: tag 'B-' is neither O nor",
    ),
    "another dash": (
        {"train.conll": GOOD + "do\tB_x\n"}, "", f"{T}.conll:5: tag 'B_x' is neither O nor",
    ),
    "an o of lower case": (
        {"train.conll": GOOD + "do\to\n"}, "", f"{T}.conll:5: tag 'o' is neither O nor",
    ),
    "an I without a beginning": (
        {"train.conll": GOOD + "do\tI-x\n"}, "",
        rf"{T}.conll:5: tag 'I-x' violates the scheme of the file, BIO \(1 in all\)\. Fix the "
        "tags, or",
    ),
    "an I of another type": (
        {"train.conll": GOOD * 2 + "\ndo\tB-x\nki\tI-y\n"}, "",
        f"{T}.conll:11: tag 'I-y' violates the scheme of the file, BIO",
    ),
    "an end that is missing": (
        {"train.conll": "ba\tB-x\nki\tE-x\n\nba\tS-x\n\nba\tB-x\nki\tI-x\nme\tO\n"}, "",
        f"{T}.conll:7: tag 'I-x' violates the scheme of the file, IOBES",
    ),
    "two schemes in one file": (
        {"train.conll": "ba\tB-x\nki\tE-x\n\nba\tB-x\nki\tL-x\n"}, "",
        f"{T}.conll: no scheme has tags with all of B, E, L. Write all",
    ),
    "no entity": ({"train.conll": "ba\tO\n"}, "",
    f"{T}.conll: all tags are O. Give data with entities"),
    "a tag that training never saw": (
        {"train.conll": GOOD, "dev.conll": "ba\tB-x\nki\tB-y\n"}, "",
        "DIR/dev.conll:2: tag 'B-y' is not a label of the model. Use one of O, B-x, I-x",
    ),
    "words that are no list": (
        {"train.jsonl": jsonl({"words": "ba ki", "tags": ["O", "O"]})}, "",
        f"{T}.jsonl:1: column 'words' is not a list of strings. Write one",
    ),
    "numbers for tags": (
        {"train.jsonl": jsonl({"words": ["ba"], "tags": [3]})}, "",
        f"{T}.jsonl:1: column 'tags' is not a list of strings. Write one, with names of tags",
    ),
    "more words than tags": (
        {"train.jsonl": jsonl({"words": ["ba", "ki"], "tags": ["B-x"]})}, "",
        f"{T}.jsonl:1: 2 words and 1 tags. Write one tag for each",
    ),
    "no words": (
        {"train.jsonl": jsonl({"text": "ba", "tags": ["O"]})}, "",
        f"{T}.jsonl:1: no column 'words', only 'text', 'tags'. Write a list of words",
    ),
    "spans that overlap": (
        {"train.jsonl": jsonl({"text": "ba ki", "spans": [[0, 5, "x"], [3, 5, "y"]]})}, "",
        f"{T}.jsonl:1: 'y' at 3 to 5 overlaps 'x' at 0 to 5. Remove one, or keep",
    ),
    "spans that cut words": (
        {"train.jsonl": jsonl({"text": "bako ki", "spans": [[0, 2, "x"]]})}, "",
        f"{T}.jsonl:1: 'ba' of 'bako': 1 of 1 spans begin or end within a word. Fix the offsets",
    ),
    "spans after the end": (
        {"train.jsonl": jsonl({"text": "ba", "spans": [[0, 3, "x"]]})}, "",
        f"{T}.jsonl:1: 'x' at 0 to 3 is not in the text of 2 characters",
    ),
    "spans of another text": (
        {"train.jsonl": jsonl(
            {"text": "ba ki", "spans": [{"start": 0, "end": 2, "label": "x", "text": "ki"}]}
        )}, "",
        f"{T}.jsonl:1: 'x' at 0 to 2 is 'ba', not 'ki'",
    ),
    "spans of words": (
        {"train.jsonl": jsonl({"tokens": ["ba"], "entities": [[0, 1, "x"]]})}, "",
        f"{T}.jsonl:1: spans 'entities' of words, not of characters. Write a list of tags",
    ),
    "JSON without tags": (
        {"train.jsonl": jsonl({"words": ["ba", "ki"]})}, "",
        f"{T}.jsonl:1, word 1: words without tags",
    ),
    "JSON that is none": (
        {"train.jsonl": '{"words": ["ba"], "tags": ["B-x"]}\n{"words"\n'}, "",
        f"{T}.jsonl:2: not JSON .* Write one object per line",
    ),
    "text that is not UTF-8": (
        {"train.conll": b"ba\tB-x\n\xe9t\xe9\tO\n"}, "", f"{T}.conll: byte 7 is not UTF-8. Convert",
    ),
    "a context that is none": (
        FILES, "context=page", "data.context='page': unknown context. Choose sentence or document.",
    ),
    "a row too short for any word": (FILES, " max_seq_length=2",
    "max_seq_length=2: no space for words. Raise it."),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_train_rejects_invalid_data(case: str, models, tmp_path, refused) -> None:
    files, options_and_fields, pattern = CASES[case]
    case_of_task = files, f"token_classification:{options_and_fields}", pattern
    check_train_error(refused, models, tmp_path, case_of_task)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("model", "content", "message"),
    [
        (
            "sequence_classification",
            GOOD,
            "sequence_classification has no token classification head, only encoder",
        ),
        (
            "token_classification",
            GOOD.replace("-x", "-y"),
            "the model has the labels O, B-x, I-x and the data O, B-y, I-y",
        ),
    ],
)
def test_evaluate_rejects_models_of_other_data(
    model: str, content: str, message: str, models, tmp_path, refused
) -> None:
    write(tmp_path, {"train.conll": content, "dev.conll": content})
    error = refused(
        "evaluate", "--checkpoint", models / model, "--output", tmp_path / "scores",
        *arguments(models, f"token_classification:data={tmp_path}", init=models / model),
    )  # fmt: skip
    assert re.search(message, error), error


def test_evaluate_rejects_labels_of_no_scheme(models, tmp_path, refused) -> None:
    """Published models may have such labels and still predict."""
    publish_token_classifier(tmp_path / "plain", ("O", "B-LOC", "PER"))
    write(tmp_path, {"dev.conll": GOOD.replace("B-x", "O").replace("I-x", "O")})
    error = refused(
        "evaluate", "--checkpoint", tmp_path / "plain", "--output", tmp_path / "scores",
        *arguments(models, f"token_classification:data={tmp_path}", init=tmp_path / "plain"),
    )  # fmt: skip
    assert "Entities need labels such as B-person, I-person and O" in error


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"words"', "line 1: not JSON .* Write one object per line"),
        ('{"words": "ba"}', "line 1: column 'words' is not a list of strings. Write one."),
        ('{"words": []}', "line 1: no words. Write some"),
        ('{"body": "ba"}', "line 1: no column 'words', only 'body'"),
        ('{"text": 3}', 'line 1: "text" is 3. Write some text, or a list "words"'),
    ],
)
def test_predict_rejects_invalid_inputs(line, message, models, refused) -> None:
    error = refused("predict", "--checkpoint", models / "token_classification", "--text", line)
    assert re.search(message, error), error
