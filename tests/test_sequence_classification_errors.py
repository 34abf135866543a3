"""Errors of invalid data, fields and models: one line with the location and the fix."""

import json
import pathlib
import re

import numpy as np
import pytest
import toy_tasks
from data_errors import arguments, check_train_error, jsonl, publish, write

from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

CSV = "text,label\nba do,a\nki lu,b\nme,a\nno,b\n"
DEV = "text,label\nba,a\nki,b\n"
PAIRS = "text,other,label\nba,do,a\nki,lu,b\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    for head in ("sequence_classification", "multiple_choice", "question_answering"):
        publish(folder / head, head)
    tokens = [*toy_tasks.TOKENIZER.tokens]
    tokens[20], tokens[21] = tokens[21], tokens[20]
    publish(folder / "other", "sequence_classification", WordPieceTokenizer(tokens, cased=False))
    toy_tasks.TOKENIZER.save(folder)
    return folder


T = "DIR/train"
CASES = {
    "a column that is not there": (
        {"train.csv": "body,label\na,b\n"}, "sequence_classification",
        f"{T}.csv: there is no column 'text', but 'body', 'label'. Set data.text=COLUMN",
    ),
    "a label of dev that is not one of train": (
        {"train.csv": CSV, "dev.csv": "text,label\nba,a\nki,c\n"}, "sequence_classification",
        r"DIR/dev.csv:3: label 'c' is not a label of the model \('a', 'b'\)\. Fix it, or train",
    ),
    "a text that is empty": (
        {"train.csv": CSV + ",a\n"}, "sequence_classification",
        f"{T}.csv:6: column 'text' is empty. Write its text, delete the row, or allow bad rows",
    ),
    "a label that is empty": (
        {"train.csv": "text,label\nba,\nki,-\n"}, "sequence_classification",
        f"{T}.csv:2: column 'label' is empty, as in all rows. Give labels, or predict without them",
    ),
    "a row of too many fields": (
        {"train.csv": CSV + "ba,do,a\n"}, "sequence_classification",
        f"{T}.csv:6: 3 fields instead of 2. Fix the row, or allow bad rows with "
        "data.max_bad_fraction",
    ),
    "tabs in a file of commas": (
        {"train.csv": CSV.replace(",", "\t")}, "sequence_classification",
        f"{T}.csv: tabs between .* Rename it to end in .tsv",
    ),
    "commas in a file of tabs": (
        {"train.tsv": CSV}, "sequence_classification",
        f"{T}.tsv: commas between .* Rename it to end in .csv",
    ),
    "a file without a header": (
        {"train.csv": CSV.replace("text,label", "lu,a")}, "sequence_classification",
        f"{T}.csv: there is no column 'text', but 'lu', 'a'. The first line seems to be a row, as "
        "'a' is no name. Write a header, or name all columns with data.columns=text\\+label",
    ),
    "a name in upper case": (
        {"train.csv": CSV.replace("text", "Text")}, "sequence_classification",
        f"{T}.csv: there is no column 'text', but 'Text', 'label'. Set data.text=Text",
    ),
    "columns of labels for one class": (
        {"train.csv": "text,a,b\nba,0,1\n"}, "sequence_classification:label=a+b",
        "data.label='a\\+b': 2 columns. Set data.problem_type=multi_label_classification",
    ),
    "a class that is rare in dev and seems to mark missing labels": (
        {"train.csv": "text,label\nba,x\nki,none\nme,x\nlu,none\n",
         "dev.csv": "text,label\n" + "ba,x\n" * 4 + "ki,none\n"}, "sequence_classification",
        "DIR/dev.csv: label 'none' is a class of the model, .* Set data.missing_labels=''",
    ),
    "a label whose column has another name": (
        {"train.csv": CSV.replace("label", "mood")}, "sequence_classification",
        f"{T}.csv: there is no column 'label', but 'text', 'mood'. Set data.label=",
    ),
    "a column whose name has a plus": (
        {"train.csv": CSV.replace("label", "a+b")}, "sequence_classification:label=a+c",
        f"{T}.csv: there is no column 'a\\+c', but 'text', 'a\\+b'. Set data.label=COLUMN",
    ),
    "two examples of one id": (
        {"train.csv": "id,text,label\n1,ba,a\n2,ki,b\n1,me,a\n"},
        "sequence_classification data.id=id",
        f"{T}.csv:4: id '1' is also at {T}.csv:2. Give each",
    ),
    "a number that is none": (
        {"train.csv": "text,label\nba,1\nki,inf\n", "dev.csv": "text,label\nba,1\n"},
        "sequence_classification:problem_type=regression",
        f"{T}.csv:3: column 'label' is 'inf', not a finite number. Fix it",
    ),
    "words where numbers should be": (
        {"train.csv": CSV}, "sequence_classification:problem_type=regression",
        f"{T}.csv:2: column 'label' is 'a', not a finite number. "
        ".*problem_type=single_label_classification",
    ),
    "one class only": (
        {"train.csv": "text,label\nba,a\nki,a\n", "dev.csv": DEV}, "sequence_classification",
        f"{T}.csv: all examples have label 'a'. Give data with two labels",
    ),
    "a label that is the text": (
        {"train.csv": CSV}, "sequence_classification:label=text",
        "data.label='text': this column is also read as text. Name another one",
    ),
    "a pair that is missing in a row": (
        {"train.csv": PAIRS + "me,,a\n", "dev.csv": PAIRS},
        "sequence_classification:text_pair=other",
        f"{T}.csv:4: column 'other' is empty",
    ),
    "a pair that is missing in a line of JSON": (
        {"train.jsonl": jsonl({"text": "a", "other": "x", "label": 1}, {"text": "a", "label": 0})},
        "sequence_classification:text_pair=other",
        f"{T}.jsonl:2: no column 'other', only 'text', 'label'",
    ),
    "labels that are a list": (
        {"train.jsonl": jsonl({"text": "ba", "label": ["x", "y"]})}, "sequence_classification",
        rf"{T}.jsonl:1: column 'label' is \['x', 'y'\]\. Write one label, or set "
        "data.problem_type=multi_label_classification",
    ),
    "quotes that never end": (
        {"train.csv": CSV + '"ba,a\nki,b\n'}, "sequence_classification",
        f"{T}.csv:6: not CSV .* Fix its quotes",
    ),
    "JSON that is none": (
        {"train.jsonl": '{"text": "ba", "label": 1}\n{"text"\n'}, "sequence_classification",
        f"{T}.jsonl:2: not JSON .* Write one object per line",
    ),
    "JSON that is no object": (
        {"train.jsonl": '["ba", 1]\n'}, "sequence_classification",
        f"{T}.jsonl:1: list, not a JSON object. Write one",
    ),
    "no rows": (
        {"train.csv": "text,label\n"}, "sequence_classification",
        f"{T}.csv: no rows. Give a file with exam",
    ),
    "no file": ({}, "sequence_classification", "DIR has no train.csv, .tsv, .txt, .json"),
    "no such file": (
        {"train.csv": CSV}, "sequence_classification:train_file=other.csv",
        "DIR/other.csv: no such file. Set data.dir",
    ),
    "a file of a kind that is not known": (
        {"train.xlsx": "x"}, "sequence_classification:train_file=train.xlsx",
        f"{T}.xlsx: unknown table format. Use a file that ends in .csv",
    ),
    "two train files": (
        {"train.csv": CSV, "train.jsonl": ""}, "sequence_classification",
        "DIR has train.csv, train.jsonl. Choose one with data.train_file=FILE",
    ),
    "no such target": (
        {"train.csv": CSV}, "sequence_classification:problem_type=klass",
        "data.problem_type='klass': unknown problem type. Choose one of "
        "single_label_classification",
    ),
    "no such way to shorten texts": (
        {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification:truncation=middle",
        "data.truncation='middle': unknown truncation. Choose one of head, tail",
    ),
    "windows of pairs": (
        {"train.csv": PAIRS, "dev.csv": PAIRS},
        "sequence_classification:text_pair=other,truncation=windows",
        "data.truncation='windows': not available for text pairs. Choose head or tail",
    ),
    "the weight of no class": (
        {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification data.class_weights=z=2",
        "data.class_weights='z=2': not LABEL=WEIGHT .* Write balanced, or weights of a, b",
    ),
    "weights of numbers": (
        {"train.csv": "text,label\nba,1\nki,2\n", "dev.csv": "text,label\nba,1\n"},
        "sequence_classification:problem_type=regression data.class_weights=balanced",
        "data.class_weights='balanced': needs problem_type=single_label_classification. Leave it",
    ),
    "columns beside those of GLUE": (
        {"train.csv": CSV}, "glue:task=sst2 data.problem_type=regression",
        "data.problem_type='regression': not read, as glue=sst2 sets the columns. Leave it out",
    ),
    "a separator of one label": (
        {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification data.label_separator=;",
        "data.label_separator=';': not read, as problem_type=single_label_classification has one",
    ),
    "no task of GLUE": (
        {"train.csv": CSV}, "glue:task=sst", "glue='sst': unknown task. Choose one of cola, sst2",
    ),
    "GLUE's file of another task": (
        {"dev.tsv": "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n"}, "glue:task=rte",
        "DIR/dev.tsv:2: no column 'sentence1'",
    ),
    "GLUE's file of no task": (
        {}, "glue:task=rte", "DIR/RTE/dev.tsv: no such file. Name one that exists",
    ),
    "text that is not UTF-8": (
        {"train.csv": b"text,label\nba,a\n\xe9t\xe9,b\n"}, "sequence_classification",
        f"{T}.csv: byte 16 is not UTF-8. Convert",
    ),
    "a Parquet file that is none": (
        {"train.parquet": "text"}, "sequence_classification",
        f"{T}.parquet: damaged .* Download it again",
    ),
    "a share of everything": (
        {"train.csv": CSV}, "sequence_classification data.eval_fraction=1.5",
        "data.eval_fraction=1.5: not in \\(0, 1\\). Choose a share",
    ),
    "too few to hold some out": (
        {"train.csv": "text,label\nba,a\nki,b\n"},
        "sequence_classification data.eval_fraction=0.001",
        f"{T}.csv: 2 examples are too few for an eval split .* Give an eval file with "
        "data.eval_file=FILE",
    ),
    "a share of bad rows that is none": (
        {"train.csv": CSV}, "sequence_classification data.max_bad_fraction=1.5",
        "data.max_bad_fraction=1.5: not in \\[0, 1\\). Choose a share",
    ),
    "a set whose name no file can have": (
        {"train.csv": CSV, "dev.csv": "text,label,place\nba,a,N/A\n"},
        "sequence_classification data.eval_set_column=place",
        "DIR/dev.csv: eval set 'N/A' gives its name to files. Write it without",
    ),
    "pairs for a model that tells one part": (
        dict.fromkeys(["train.csv", "dev.csv"], "text,pair,label\nba,ki,a\nki,ba,b\n"),
        "sequence_classification data.text_pair=pair model.type_vocab_size=1",
        "model.type_vocab_size=1: sequences have two segments, the texts of a pair",
    ),
    "a row too short for any text": (
        {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification max_seq_length=2",
        "max_seq_length=2: no space for text. Raise it",
    ),
}  # fmt: skip


@pytest.mark.seconds
@pytest.mark.parametrize("case", CASES)
def test_train_rejects_invalid_data(case: str, models, tmp_path, refused) -> None:
    check_train_error(refused, models, tmp_path, CASES[case])


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("model", "files", "spec", "message"),
    [
        ("other", {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification", None),
        (
            "question_answering",
            {"train.csv": CSV, "dev.csv": DEV},
            "sequence_classification",
            "question_answering has no sequence classification head, only",
        ),
        (
            "multiple_choice",
            {"train.csv": CSV, "dev.csv": DEV},
            "sequence_classification",
            "multiple_choice has no sequence classification head, only",
        ),
        (
            "sequence_classification",
            {"train.csv": CSV.replace(",b", ",c"), "dev.csv": DEV.replace(",b", ",c")},
            "sequence_classification",
            "sequence_classification: the model has the labels a, b and the data a, c. Use data "
            "with the labels of the model",
        ),
        ("nowhere", {"train.csv": CSV}, "sequence_classification", "nowhere: does not exist. Give"),
    ],
)
def test_evaluate_rejects_models_of_other_data(
    model: str, files: dict, spec: str, message: str | None, models, tmp_path, refused
) -> None:
    write(tmp_path, files)
    # Without data.vocab the data are read with the vocabulary of the model.
    vocab = {"data__vocab": models / "vocab.txt"} if model == "other" else {}
    error = refused(
        "evaluate", "--checkpoint", models / model, "--output", tmp_path / "scores",
        *arguments(models, f"{spec}:data={tmp_path}", **vocab, init=models / model),
    )  # fmt: skip
    assert re.search(message or "the model has another vocabulary", error), error
    assert not (tmp_path / "scores").exists()


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", '{"text"\n', "line 1: not JSON .* Write one object"),
        ("in.jsonl", '\n{"body": "ba"}\n', "line 2: no column 'text'"),
        ("in.txt", b"ba\n\xff\n", "in.txt: byte 3 is not UTF-8. Convert it"),
        ("in.csv", "text\nba\n ,\n", "in.csv:3: 2 fields instead of 1"),
        ("in.csv", "text,x\n,1\n,2\n", "in.csv:2: column 'text' is empty"),
        ("in.csv", "body\nba\n", "in.csv:2: no column 'text', only 'body'"),
    ],
)
def test_predict_rejects_invalid_inputs(
    name: str, content: str | bytes, message: str, models, tmp_path, refused
) -> None:
    write(tmp_path, {name: content})
    error = refused(
        "predict", "--checkpoint", models / "sequence_classification", "--input", tmp_path / name
    )
    assert re.search(message, error), error


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("in.csv", 'text,x\n"ba\ndo",1\n,2\nki,3\n', r".*in\.csv:4: column 'text' is empty"),
        ("in.jsonl", '{"text": "ba"}\n{"text": null}\n"ki"\n', "line 2: column 'text' is None"),
        ("in.json", '[{"text": "ba"},\n {"body": 1}, {"text": "ki"}]', "record 2: no column"),
    ],
)
def test_predict_answers_an_invalid_input_with_its_error(
    name: str, content: str, line: str, models, tmp_path, capsys
) -> None:
    from bertjax.cli.main import main

    write(tmp_path, {name: content})
    flags = ["--checkpoint", str(models / "sequence_classification")]
    assert main(["predict", *flags, "--input", str(tmp_path / name)]) == 0
    output = capsys.readouterr()
    first, error, last = map(json.loads, output.out.splitlines())
    assert "label" in first and "label" in last
    assert error.keys() == {"error"} and re.match(line, error["error"])
    assert "1 of 3 inputs are invalid" in output.err


@pytest.mark.seconds
def test_predict_accepts_tables_with_types_unknown_to_json(models, tmp_path, capsys) -> None:
    import datetime

    import pyarrow
    from pyarrow import parquet

    from bertjax.cli.main import main

    rows = [{"text": "ba do", "when": datetime.datetime(2026, 1, 2), "raw": b"\xff"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    flags = [
        "--checkpoint",
        str(models / "sequence_classification"),
        "--input",
        str(tmp_path / "in.parquet"),
    ]
    assert main(["predict", *flags]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["text"] == "ba do"
    assert np.isfinite(json.loads(line)["score"])
