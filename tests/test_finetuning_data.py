"""Labels, files and batches of fine-tuning data."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow
import pytest
import toy_tasks
from pyarrow import feather, parquet
from random_models import draw_model

from bertjax.config.config import Config
from bertjax.config.loading import load_config, parse_config
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from bertjax.tasks.finetuning_data import find_files
from bertjax.tasks.sequence_classification.data import read_sets
from data_pipelines.errors import InputError

LABELS = ("glad", "odd, or so", "sad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(path)
    return path


def task_of(config: Config, num_processes: int = 1, process_id: int = 0):
    return registry.find_task(config.task)(config, num_processes, process_id)


def published(path: pathlib.Path, labels: tuple[str, ...]) -> pathlib.Path:
    config = BertConfig(128, 1, 64, 4, max_position_embeddings=64, num_labels=len(labels))
    model = draw_model(config, toy_tasks.TOKENIZER, "pooler", "sequence_classification")
    path.mkdir()
    huggingface.write(type(model)(config, model.params, toy_tasks.TOKENIZER, labels=labels), path)
    return path


@pytest.mark.seconds
def test_labels_keep_the_order_of_init(folder, tmp_path) -> None:
    turned = LABELS[1:] + LABELS[:1]
    task = task_of(
        toy_tasks.configuration("single_label", folder, published(tmp_path / "same", turned))
    )
    assert task.labels == turned
    sets = task.eval_sets()
    gold = [turned[i] for i in sets[0]._gold]
    assert gold == [row["mood"] for row in toy_tasks.rows_of(folder / "dev.csv")]
    for other in (("glad", "sad"), ("glad", "sad", "so"), ("a", "b", "c", "d")):
        path = published(tmp_path / "-".join(other), other)
        task = task_of(toy_tasks.configuration("single_label", folder, path))
        assert task.labels == LABELS and task.config.model.num_labels == 3


@pytest.mark.parametrize(("kind", "count"), [("single_label", 3), ("regression", 1)])
def test_number_of_labels_is_that_of_the_data(kind: str, count: int, folder) -> None:
    for given in (0, count):
        config = toy_tasks.configuration(kind, folder, model__num_labels=given)
        assert task_of(config).config.model.num_labels == count
    with pytest.raises(InputError, match=f"^model.num_labels=4: the data have {count}"):
        task_of(toy_tasks.configuration(kind, folder, model__num_labels=4))


def test_eval_sets_of_one_stem_have_the_names_of_their_files(folder, tmp_path) -> None:
    for name in ("dev.csv", "dev.tsv", "test.csv"):
        (tmp_path / name).touch()
    config = toy_tasks.configuration("single_label", tmp_path, data__eval_file="dev.*")
    assert [name for name, _ in find_files(config, "eval", "")] == ["dev.csv", "dev.tsv"]
    config = toy_tasks.configuration("single_label", tmp_path, data__eval_file="*.csv")
    assert [name for name, _ in find_files(config, "eval", "")] == ["dev", "test"]


def test_labels_do_not_depend_on_row_order(folder, tmp_path) -> None:
    config = toy_tasks.configuration("single_label", folder)
    task = task_of(config)
    first, *rows = (folder / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([first, *rows[::-1]]))
    other = task_of(
        toy_tasks.configuration(
            "single_label", folder, data__train_file=str(tmp_path / "train.csv")
        )
    )
    assert task.labels == other.labels == LABELS
    assert task.examples.targets["labels"].values.tolist() == [
        *reversed(other.examples.targets["labels"].values.tolist())
    ]


def test_labels_include_those_of_the_eval_split(tmp_path) -> None:
    toy_tasks.write_data(tmp_path)
    for path in tmp_path.glob("dev.*"):
        path.unlink()
    rows = [f"rare {i},do {i}\n" for i in range(40)]
    with open(tmp_path / "train.csv", "a") as file:
        file.writelines(rows)
    task = task_of(toy_tasks.configuration("single_label", tmp_path, data__eval_file=""))
    assert len(task.labels) == 3 + 40
    (held_out,) = task.eval_sets()
    only = {label for label in held_out.data.values if label.startswith("rare")}
    assert only and not only & {task.labels[i] for i in task.examples.targets["labels"].values}
    assert len(held_out.data) + len(task.examples) == 340


def test_train_file_needs_no_data_dir(tmp_path) -> None:
    toy_tasks.write_data(tmp_path)
    files = {
        "data__train_file": str(tmp_path / "train.csv"),
        "data__eval_file": "",
        "data__dir": "",
    }
    task = task_of(toy_tasks.configuration("single_label", tmp_path, **files))
    assert 0 < len(task.eval_sets()[0].data) == 300 - len(task.examples)


def label_table(values: list, **columns: list) -> pyarrow.Table:
    """Return a table in whose schema the values of `label` and `lang` have the names of classes."""
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    features["lang"] = {"names": ["de", "fr"], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    texts = [f"ba {i}" for i in range(len(values))]
    table = pyarrow.table({"text": texts, "label": values, "count": values, **columns})
    return table.replace_schema_metadata(metadata)


def read_label_tables(path: pathlib.Path, split: str, **data: Any) -> dict[str, list]:
    fields = {"dir": str(path), "train_file": "train.parquet", "eval_file": "dev.feather", **data}
    config = parse_config(
        {"task": "sequence_classification", "data": fields}, registry.data_fields()
    )
    return {name: part.values for name, part in read_sets(config, split)}


def test_class_ids_of_a_schema_become_class_names(tmp_path) -> None:
    parquet.write_table(label_table([1, 0, -1, None]), tmp_path / "train.parquet")
    feather.write_feather(label_table([0, 1], lang=[1, 0]), str(tmp_path / "dev.feather"))
    assert read_label_tables(tmp_path, "train") == {"train": ["pos", "neg"]}
    assert read_label_tables(tmp_path, "eval") == {"eval": ["neg", "pos"]}
    sets = read_label_tables(tmp_path, "eval", eval_set_column="lang")
    assert sets == {"de": ["pos"], "fr": ["neg"]}
    parquet.write_table(label_table([1, 0]), tmp_path / "dev.parquet")  # lost its column `lang`
    with pytest.raises(InputError, match="there is no column 'lang'"):
        read_label_tables(tmp_path, "eval", eval_file="dev.parquet", eval_set_column="lang")
    for problem_type, label, values in (
        ("regression", "label", [0.0, 1.0]),
        ("single_label_classification", "count", ["0", "1"]),
        ("multi_label_classification", "label+count", [(), ("label", "count")]),
    ):
        data = {"problem_type": problem_type, "label": label}
        assert read_label_tables(tmp_path, "eval", **data) == {"eval": values}


def test_empty_table_with_class_names_is_rejected(tmp_path) -> None:
    parquet.write_table(label_table([1]).slice(0, 0), tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"train\.parquet: .*rows"):
        read_label_tables(tmp_path, "train")


def test_class_ids_of_a_schema_in_lists_become_class_names(tmp_path) -> None:
    parquet.write_table(label_table([[1, 0], [], [0]]), tmp_path / "train.parquet")
    data = {"problem_type": "multi_label_classification"}
    sets = read_label_tables(tmp_path, "train", **data)
    assert [sorted(names) for names in sets["train"]] == [["neg", "pos"], [], ["neg"]]


def test_class_ids_that_the_schema_does_not_name_are_rejected(tmp_path) -> None:
    parquet.write_table(label_table([1, 2]), tmp_path / "train.parquet")
    message = r"train.parquet row 2: 2 in column 'label' is not one of 2 classes\. Fix the row\."
    with pytest.raises(InputError, match=message):
        read_label_tables(tmp_path, "train")


def test_glue_train_file_is_not_split(tmp_path) -> None:
    lines = ["index\tquestion\tsentence\tlabel"]
    lines += [f"{i}\tba {i}\tdo\t{'not_' * (i % 2)}entailment" for i in range(50)]
    (tmp_path / "QNLI").mkdir()
    for name in ("other", "dev"):
        (tmp_path / "QNLI" / f"{name}.tsv").write_text("\n".join(lines))
    toy_tasks.TOKENIZER.save(tmp_path)
    file = f"{toy_tasks.EXPERIMENTS / 'glue.py'}:task=qnli,data={tmp_path},smoke"
    fields = {"data.vocab": tmp_path / "vocab.txt", "data.train_file": "QNLI/other.tsv"}
    fields["model.vocab_size"] = 128
    given = {name: str(value) for name, value in fields.items()}
    task = task_of(load_config(file, given, registry.data_fields()))
    assert len(task.examples) == 50 and len(task.eval_sets()[0].data) == 50


@pytest.mark.seconds
@pytest.mark.parametrize("kind", toy_tasks.KINDS)
def test_batch_is_equal_for_any_number_of_processes(kind: str, folder) -> None:
    config = toy_tasks.configuration(kind, folder)
    batches = []
    for num_processes in (1, 2, 4):
        tasks = [task_of(config, num_processes, process_id) for process_id in range(num_processes)]
        for task in tasks:
            task.prepare(30)
        parts = [next(iter(task.train_batches(25, 26))) for task in tasks]
        held_out = [next(iter(task.eval_sets()[0].batches())) for task in tasks]
        batches.append(
            {
                f"{split}/{name}": np.concatenate([part[name] for part in shares])
                for split, shares in (("train", parts), ("dev", held_out))
                for name in shares[0]
            }
        )
    for other in batches[1:]:
        for name, array in batches[0].items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)
