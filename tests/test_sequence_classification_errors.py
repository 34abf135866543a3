"""Errors of sequence classification and multiple choice are one line with the location."""

import json
import pathlib
import re

import numpy as np
import pytest
import toy_tasks
from random_models import draw_model

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

CSV = "text,label\nba do,a\nki lu,b\nme,a\nno,b\n"
DEV = "text,label\nba,a\nki,b\n"
PAIRS = "text,other,label\nba,do,a\nki,lu,b\n"
SWAG = "sent1,sent2,ending0,ending1,label\nba,do,ki,lu,0\nme,no,ra,si,1\n"


def jsonl(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write(folder: pathlib.Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def publish(path: pathlib.Path, head: str, tokenizer=toy_tasks.TOKENIZER) -> pathlib.Path:
    """Write a Hugging Face model with the toy vocabulary and the classes "a" and "b"."""
    count = 2 if head == "sequence_classification" else 0
    config = BertConfig(128, 1, 64, 2, max_position_embeddings=64, num_labels=count)
    model = draw_model(config, tokenizer, "pooler", head)
    labels = ("a", "b") if count else ()
    path.mkdir()
    huggingface.write(type(model)(config, model.params, tokenizer, labels=labels), path)
    return path


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


def arguments(models: pathlib.Path, options: str, **overrides: object) -> list[object]:
    """Return the arguments of a configuration "FILE:options" of experiments."""
    file, _, rest = options.partition(":")
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    if "init" not in overrides:
        sizes = {
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "vocab_size": 128,
        }
        fields |= {f"model.{name}": value for name, value in sizes.items()}
        fields |= {"model.max_position_embeddings": 64, "data.vocab": models / "vocab.txt"}
    fields = {"batch_size": 8, "steps": 2, "max_seq_length": 32} | fields
    spec = f"{toy_tasks.EXPERIMENTS / file}.py:{rest}"
    return ["--config", spec, *(f"--config.{name}={value}" for name, value in fields.items())]


T = "DIR/train"
# Files; [CONFIGURATION][:OPTIONS][ FIELDS] of, by default, sequence_classification; the error.
CASES = {
    "a column that is not there": (
        {"train.csv": "body,label\na,b\n"}, "",
        f"{T}.csv: there is no column 'text', but 'body', 'label'. Set data.text=COLUMN",
    ),
    "a label of dev that is not one of train": (
        {"train.csv": CSV, "dev.csv": "text,label\nba,a\nki,c\n"}, "",
        r"DIR/dev.csv line 3: label 'c' is none that was trained \('a', 'b'\): mend it, or train",
    ),
    "a text that is empty": (
        {"train.csv": CSV + ",a\n"}, "",
        f"{T}.csv line 6: column 'text' is empty: leave the row out, or write its text",
    ),
    "a label that is empty": (
        {"train.csv": CSV + "ba,\n"}, "",
        f"{T}.csv line 6: column 'label' is empty: leave the row out, or write its label",
    ),
    "a row of too many fields": (
        {"train.csv": CSV + "ba,do,a\n"}, "",
        f"{T}.csv line 6 has 3 fields where the header has 2: mend the row, or allow bad rows with "
        "data.max_bad_fraction",
    ),
    "tabs in a file of commas": (
        {"train.csv": CSV.replace(",", "\t")}, "",
        f"{T}.csv has tabs .*: let it end in .tsv",
    ),
    "commas in a file of tabs": (
        {"train.tsv": CSV}, "", f"{T}.tsv has commas .*: let it end in .csv",
    ),
    "semicolons": (
        {"train.csv": CSV.replace(",", ";")}, "",
        f"{T}.csv has semicolons .* save it with commas",
    ),
    "semicolons between quotes": (
        {"train.csv": '"text";"label"\n"ba";"a"\n'}, "",
        f"{T}.csv has semicolons .* save it with commas",
    ),
    "a label whose column has another name": (
        {"train.csv": CSV.replace("label", "mood")}, "",
        f"{T}.csv: there is no column 'label', but 'text', 'mood'. Set data.label=",
    ),
    "a column whose name has a plus": (
        {"train.csv": CSV.replace("label", "a+b")}, ":label=a+c",
        f"{T}.csv: there is no column 'a\\+c', but 'text', 'a\\+b'. Set data.label=COLUMN",
    ),
    "two examples of one id": (
        {"train.csv": "id,text,label\n1,ba,a\n2,ki,b\n1,me,a\n"},
        " data.id=id",
        f"{T}.csv line 4: id '1' is that of {T}.csv line 2: name it apart",
    ),
    "a number that is none": (
        {"train.csv": "text,label\nba,1\nki,nan\n", "dev.csv": "text,label\nba,1\n"},
        ":problem_type=regression",
        f"{T}.csv line 3: column 'label' is 'nan', which is no finite number: mend it",
    ),
    "words where numbers should be": (
        {"train.csv": CSV}, ":problem_type=regression",
        f"{T}.csv line 2: column 'label' is 'a', .*problem_type=single_label"
        "_classification",
    ),
    "one class only": (
        {"train.csv": "text,label\nba,a\nki,a\n", "dev.csv": DEV}, "",
        rf"{T}.csv has nothing to tell apart \(all have 'a'\): give two labels",
    ),
    "a label that is the text": (
        {"train.csv": CSV}, ":label=text",
        "column 'text' is the text and the label: name different ones",
    ),
    "a pair that is missing in a row": (
        {"train.csv": PAIRS + "me,,a\n", "dev.csv": PAIRS}, ":text_pair=other",
        f"{T}.csv line 4: column 'other' is empty",
    ),
    "a pair that is missing in a line of JSON": (
        {"train.jsonl": jsonl({"text": "a", "other": "x", "label": 1}, {"text": "a", "label": 0})},
        ":text_pair=other",
        f"{T}.jsonl line 2: there is no column 'other', but 'text', 'label'",
    ),
    "labels that are a list": (
        {"train.jsonl": jsonl({"text": "ba", "label": ["x", "y"]})}, "",
        rf"{T}.jsonl line 1: column 'label' is \['x', 'y'\]: write one label, or set "
        "problem_type=multi_label_classification",
    ),
    "quotes that never end": (
        {"train.csv": CSV + '"ba,a\nki,b\n'}, "",
        f"{T}.csv line 6 is no CSV .*: mend its quotes",
    ),
    "JSON that is none": (
        {"train.jsonl": '{"text": "ba", "label": 1}\n{"text"\n'}, "",
        f"{T}.jsonl line 2 is no JSON .*: write an object on it",
    ),
    "JSON that is no object": (
        {"train.jsonl": '["ba", 1]\n'}, "",
        f"{T}.jsonl line 1 is list and no JSON object: write one",
    ),
    "no rows": (
        {"train.csv": "text,label\n"}, "", f"{T}.csv has no rows: give a file with exam",
    ),
    "no file": ({}, "", "DIR has no train.csv, .tsv, .txt, .json"),
    "no such file": (
        {"train.csv": CSV}, ":train_file=other.csv",
        "there is no file DIR/other.csv: data=DIR is to be",
    ),
    "a file of a kind that is not known": (
        {"train.xlsx": "x"}, ":train_file=train.xlsx",
        f"{T}.xlsx is no table by its name: let it end in .csv",
    ),
    "two train files": (
        {"train.csv": CSV, "train.jsonl": ""}, "",
        "DIR has train.csv, train.jsonl: choose one with data.train_file=FILE",
    ),
    "no such target": (
        {"train.csv": CSV}, ":problem_type=klass",
        "data.problem_type='klass' is unknown: choose one of single_label_classification",
    ),
    "no such way to shorten texts": (
        {"train.csv": CSV, "dev.csv": DEV}, ":truncation=middle",
        "data.truncation='middle' is unknown: choose one of head, tail",
    ),
    "windows of pairs": (
        {"train.csv": PAIRS, "dev.csv": PAIRS}, ":text_pair=other,truncation=windows",
        "data.truncation=windows is not for pairs: choose head or tail",
    ),
    "the weight of no class": (
        {"train.csv": CSV, "dev.csv": DEV}, " data.class_weights=z=2",
        "data.class_weights='z=2' must be LABEL=WEIGHT, of a, b, or balanced",
    ),
    "weights of numbers": (
        {"train.csv": "text,label\nba,1\nki,2\n", "dev.csv": "text,label\nba,1\n"},
        ":problem_type=regression data.class_weights=balanced",
        "data.class_weights='balanced' is for problem_type=single_label_classification: leave it "
        "out",
    ),
    "no task of GLUE": (
        {"train.csv": CSV}, "glue:task=sst", "glue task 'sst' is unknown: choose one of cola, sst2",
    ),
    "GLUE's file of another task": (
        {"dev.tsv": "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n"}, "glue:task=rte",
        "DIR/dev.tsv line 2: there is no column 'sentence1'",
    ),
    "GLUE's file of no task": (
        {}, "glue:task=rte", "there is no file DIR/RTE/dev.tsv: name one that exists",
    ),
    "text that is not UTF-8": (
        {"train.csv": b"text,label\nba,a\n\xe9t\xe9,b\n"}, "",
        f"{T}.csv: byte 16 is not UTF-8; convert",
    ),
    "a Parquet file that is none": (
        {"train.parquet": "text"}, "", f"{T}.parquet is damaged .*; fetch it again",
    ),
    "a share of everything": (
        {"train.csv": CSV}, " data.eval_fraction=1.5",
        "data.eval_fraction=1.5: not in \\(0, 1\\). Choose a share",
    ),
    "too few to hold some out": (
        {"train.csv": "text,label\nba,a\nki,b\n"}, " data.eval_fraction=0.001",
        rf"{T}.csv has too few examples \(2\) to hold out .*: give a dev file with "
        "data.eval_file=FILE",
    ),
    "a share of bad rows that is none": (
        {"train.csv": CSV}, " data.max_bad_fraction=1.5",
        "data.max_bad_fraction=1.5: not in \\[0, 1\\). Choose a share",
    ),
    "a set whose name no file can have": (
        {"train.csv": CSV, "dev.csv": "text,label,place\nba,a,N/A\n"},
        " data.eval_set_column=place",
        "DIR/dev.csv has a set 'N/A', and files are called by sets' names: write it without",
    ),
    "pairs for a model that tells one part": (
        dict.fromkeys(["train.csv", "dev.csv"], "text,pair,label\nba,ki,a\nki,ba,b\n"),
        " data.text_pair=pair model.type_vocab_size=1",
        "model.type_vocab_size=1 tells one part of a row, and here are two, the texts of a pair",
    ),
    "a row too short for any text": (
        {"train.csv": CSV, "dev.csv": DEV}, " max_seq_length=2",
        "max_seq_length=2 leaves no room for text: raise it",
    ),
    "the number of no answer": (
        {"train.csv": SWAG + "ba,do,ki,lu,2\n"}, "multiple_choice",
        f"{T}.csv line 4: label '2' is the number of no answer: write 0 to 1",
    ),
    "one answer only": (
        {"train.csv": SWAG + "ba,do,ki,,0\n"}, "multiple_choice",
        f"{T}.csv line 4: 1 answers leave nothing to choose",
    ),
    "more answers than a row takes": (
        {"train.jsonl": jsonl({"context": "ba", "choices": ["do"] * 9, "label": 0})},
        "multiple_choice",
        f"{T}.jsonl line 1: 9 answers do not fit a row of 32 pieces, which has 2 at the most",
    ),
    "no choices": (
        {"train.csv": CSV}, "multiple_choice", f"{T}.csv line 2: there is no column 'sent1'",
    ),
    "choices that are no list": (
        {"train.jsonl": jsonl({"context": "ba", "choices": "do", "label": 0})}, "multiple_choice",
        f"{T}.jsonl line 1: 'choices' is 'do': write a list of texts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_train_rejects_bad_data(case: str, models, tmp_path, refused) -> None:
    files, given, problem = CASES[case]
    write(tmp_path, files)
    options, _, fields = given.partition(" ")
    file, _, rest = options.partition(":")
    flags = [f"--config.{field}" for field in fields.split()]
    spec = f"{file or 'sequence_classification'}:data={tmp_path}" + (f",{rest}" if rest else "")
    sentence = refused("train", "--workdir", tmp_path / "run", *arguments(models, spec), *flags)
    assert re.match(problem.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "files", "spec", "problem"),
    [
        ("other", {"train.csv": CSV, "dev.csv": DEV}, "sequence_classification", None),
        (
            "question_answering",
            {"train.csv": CSV, "dev.csv": DEV},
            "sequence_classification",
            "question_answering has no classifier, only",
        ),
        (
            "multiple_choice",
            {"train.csv": CSV, "dev.csv": DEV},
            "sequence_classification",
            "multiple_choice has no classifier, only",
        ),
        (
            "sequence_classification",
            {"train.csv": CSV.replace(",b", ",c"), "dev.csv": DEV.replace(",b", ",c")},
            "sequence_classification",
            "sequence_classification tells apart a, b and the data a, c: give the data that it was "
            "made for",
        ),
        (
            "sequence_classification",
            {"train.csv": SWAG, "dev.csv": SWAG},
            "multiple_choice",
            "sequence_classification has no choice head, only",
        ),
        ("nowhere", {"train.csv": CSV}, "sequence_classification", "nowhere: does not exist. Give"),
    ],
)
def test_evaluate_rejects_another_model(
    model: str, files: dict, spec: str, problem: str | None, models, tmp_path, refused
) -> None:
    write(tmp_path, files)
    # Without data.vocab, the vocabulary of the model is used.
    given = {"data__vocab": models / "vocab.txt"} if model == "other" else {}
    sentence = refused(
        "evaluate", "--checkpoint", models / model, "--output", tmp_path / "scores",
        *arguments(models, f"{spec}:data={tmp_path}", **given, init=models / model),
    )  # fmt: skip
    assert re.search(problem or "was trained with another vocabulary", sentence), sentence
    assert not (tmp_path / "scores").exists()


@pytest.mark.parametrize(
    ("model", "name", "content", "problem"),
    [
        (
            "sequence_classification",
            "in.jsonl",
            '{"text"\n',
            "line 1 is no JSON .*: write an object",
        ),
        (
            "sequence_classification",
            "in.jsonl",
            '\n{"body": "ba"}\n',
            "line 2: there is no column 'text'",
        ),
        (
            "sequence_classification",
            "in.txt",
            b"ba\n\xff\n",
            "in.txt: byte 3 is not UTF-8; convert the file",
        ),
        (
            "sequence_classification",
            "in.csv",
            "text\nba\n ,\n",
            "in.csv line 3 has 2 fields where the header",
        ),
        (
            "sequence_classification",
            "in.csv",
            "text,x\nba,1\n,2\n",
            "line 3: column 'text' is empty",
        ),
        (
            "sequence_classification",
            "in.csv",
            'text,x\n"ba\ndo",1\n,2\n',
            "line 4: column 'text' is empty",
        ),
        (
            "sequence_classification",
            "in.csv",
            "body\nba\n",
            "line 2: there is no column 'text', but 'body'",
        ),
        ("multiple_choice", "in.jsonl", "ba\n", 'line 1 is not of the form {"context"'),
        (
            "multiple_choice",
            "in.jsonl",
            jsonl({"context": "a", "choices": ["x"]}),
            "line 1: 1 answers leave",
        ),
        ("multiple_choice", "in.csv", "sent1,ending0\nba,do\n", "line 2: 1 answers leave nothing"),
    ],
)
def test_predict_rejects_bad_input(
    model: str, name: str, content: str | bytes, problem: str, models, tmp_path, refused
) -> None:
    write(tmp_path, {name: content})
    sentence = refused("predict", "--checkpoint", models / model, "--input", tmp_path / name)
    assert re.search(problem, sentence), sentence


def test_predict_accepts_values_without_json_type(models, tmp_path, capsys) -> None:
    import datetime

    import pyarrow
    from pyarrow import parquet

    from bertjax.cli.main import main

    rows = [{"text": "ba do", "when": datetime.datetime(2026, 1, 2), "raw": b"\xff"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    given = [
        "--checkpoint",
        str(models / "sequence_classification"),
        "--input",
        str(tmp_path / "in.parquet"),
    ]
    assert main(["predict", *given]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["text"] == "ba do"
    assert np.isfinite(json.loads(line)["probability"])
