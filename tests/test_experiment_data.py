"""Data that experiments make from published files: parts of them, and unions."""

import collections
import csv
import json
import pathlib
import sys

import pytest

from bertjax.config.loading import load_config
from bertjax.formats.loading import find_bert_config
from bertjax.tasks import registry
from data_pipelines.errors import InputError
from experiments.students import tasks
from experiments.synthetic_qa import small_squad


def write_banking77(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True)
    for split, count in (("train", 36), ("test", 4)):
        with (directory / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "category"])
            writer.writerows([f'text "{i}",\n{split}', "abc"[i % 3]] for i in range(count))


def read(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_few_labels_has_ten_texts_of_each_class_and_the_others_without_labels(tmp_path) -> None:
    write_banking77(tmp_path / "classification/banking77")
    tasks.make_data("few", tmp_path, tmp_path / "made")
    labeled, unlabeled = (read(tmp_path / f"made/{name}.csv") for name in ("train", "unlabeled"))
    assert collections.Counter(row["category"] for row in labeled) == dict.fromkeys("abc", 10)
    assert len(unlabeled) == 6 and all(row.keys() == {"text"} for row in unlabeled)
    texts = [row["text"] for row in (*labeled, *unlabeled)]
    assert {*texts} == {
        row["text"] for row in read(tmp_path / "classification/banking77/train.csv")
    }
    assert len({*texts}) == 36


def test_files_of_the_tagged_corpus_are_joined_between_sentences(tmp_path) -> None:
    (tmp_path / "ner/btc").mkdir(parents=True)
    for letter in tasks.TAGGED_TRAIN + tasks.TAGGED_EVAL:
        (tmp_path / f"ner/btc/{letter}.conll").write_text(f"{letter}\tO\n{letter}\tB-PER")
    tasks.make_data("btc", tmp_path, tmp_path / "made")
    sentences = (tmp_path / "made/train.conll").read_text().split("\n\n")
    assert sentences == [f"{letter}\tO\n{letter}\tB-PER" for letter in tasks.TAGGED_TRAIN]
    assert (tmp_path / "made/dev.conll").read_text() == "h\tO\nh\tB-PER"


@pytest.mark.parametrize("name", tasks.TASKS)
def test_fields_of_each_task_exist(name: str) -> None:
    settings = tasks.TASKS[name]
    config = settings.config.format(data="data", made="made")
    for fields in (settings.teacher, settings.student, {}):
        overrides = {**settings.fields, **fields}
        load_config(config, overrides, registry.data_fields(), find_bert_config)
    distill = {f"distill.{field}": value for field, value in settings.distill.items()}
    distill["distill.logits"] = "teacher.logits"
    load_config(config, distill, registry.data_fields(), find_bert_config)


def article(title: str, *questions: tuple[str, bool]) -> dict:
    return {
        "title": title,
        "paragraphs": [
            {"context": f"{title} {name}", "qas": [{"id": name, "is_impossible": impossible}]}
            for name, impossible in questions
        ],
    }


def test_small_squad_adds_each_unanswerable_question_once() -> None:
    first = [article("A", ("1", False)), article("B", ("2", True)), article("C", ("3", False))]
    second = [article("B", ("2", True), ("4", True), ("5", False)), article("D", ("6", False))]
    merged = small_squad.merge_training_files([first, second, second], articles=2)
    assert merged[:2] == first[:2]
    assert merged[2:] == [article("B", ("4", True))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "train.json: no such file"),
        ("{", "train.json:1: not JSON"),
        (json.dumps({"questions": []}), "'data'"),
        (json.dumps([{"id": "a", "context": "b c", "question": "d", "answers": []}]), "articles"),
    ],
)
def test_small_squad_rejects_other_files(tmp_path, monkeypatch, content, message) -> None:
    file = tmp_path / "train.json"
    if content is not None:
        file.write_text(content)
    arguments = ["--train", str(file), "--dev", str(file), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["small_squad", *arguments])
    with pytest.raises(InputError, match=message):
        small_squad.main()
    assert not (tmp_path / "out").exists()
