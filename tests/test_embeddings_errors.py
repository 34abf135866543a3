"""Configurations and data of which embeddings cannot be trained: one line with the fix."""

import dataclasses
import json
import pathlib

import pytest
import toy_embeddings
import toy_tasks
from toy_embeddings import configure_student, prepare, write_teacher

from bertjax.tasks import registry
from bertjax.tasks.embeddings.distillation import make_teacher_objective
from bertjax.tasks.embeddings.losses import TEACHER_LOSS
from bertjax.tasks.embeddings.task import EmbeddingsTask
from bertjax.training.setup import open_teacher
from data_pipelines.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    return path


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__loss": "triplet"}, "data.loss='triplet': unknown loss. Use multiple_negatives"),
        ({"data__loss": "cosent"}, "data.loss='cosent': .* has no scores. Name their column"),
        ({"data__scale": 0.0}, r"data.scale=0.0: not in \(0, 1000\]. Use about 20"),
        (
            {"data__train_file": "scored.csv", "data__loss": "cosine_similarity", "data__scale": 5},
            "data.scale=5.0: data.loss=cosine_similarity has none",
        ),
        ({"data__pooling": "last"}, "data.pooling=last: unknown value. Use mean, cls, max"),
        (
            {"data__pooling": "cls", "model__direction": "left_to_right"},
            "data.pooling=cls: from left to right",
        ),
        ({"data__matryoshka_dims": "64,65"}, "data.matryoshka_dims='64,65': '65' is not from 1 to"),
        ({"data__matryoshka_dims": "8,8"}, "data.matryoshka_dims='8,8': one is repeated"),
        ({"data__matryoshka_dims": "small"}, "data.matryoshka_dims='small': 'small' is not from"),
        ({"data__projection_size": -1}, "data.projection_size=-1: negative. Use 0 for no"),
        ({"data__num_texts": 3}, "data.num_texts=3: .* has 2 texts in an example, anchor, posi"),
        ({"batch_size": 1}, "batch_size=1: data.loss=multiple_negatives_ranking compares the"),
        ({"batch_size": 400}, "batch_size=400: more than the 300 training examples"),
        ({"model__feature_layers": "-1"}, "model.feature_layers='-1': embeddings are those of"),
        ({"loss": "a:b"}, "loss='a:b': task=embeddings has a loss of its own"),
        (
            {"data__train_file": "texts.jsonl"},
            "model.hidden_dropout_prob=0.0: without dropout a text alone has twice the same",
        ),
        (
            {"data__train_file": "scored.csv", "data__symmetric": True},
            "data.symmetric=True: data.loss=cosent is symmetric",
        ),
        ({"data__eval_file": "texts.jsonl"}, ".*texts.jsonl: has one column of texts, 'sentence'"),
        ({"data__texts": "anchor+negative"}, ".*translations.jsonl: there is no column 'negative'"),
        ({"data__texts": "anchor", "data__score": "anchor"}, "data.score='anchor': this column is"),
    ],
)  # fmt: skip
def test_configuration_that_cannot_be_trained_is_rejected(folder, overrides, message) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        prepare(folder, **overrides)


# With a teacher


@pytest.fixture(scope="module")
def teacher(folder) -> pathlib.Path:
    return write_teacher(folder, folder / "teacher")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("distill", "fields", "message"),
    [
        ({}, {"data__loss": TEACHER_LOSS}, "data.loss=mse: there is no teacher. Set distill.teach"),
        ("teacher", {"data__loss": "cosent"}, "data.loss=cosent: does not read the teacher"),
        ("teacher", {"data__num_texts": 2}, "data.num_texts=2: data.loss=mse reads 1 texts of an"),
        ("teacher", {"data__score": "x"}, "data.score='x': data.loss=mse reads no scores. Remove"),
        (
            "teacher",
            {"data__train_file": "scored.csv"},
            ".*scored.csv: has the columns anchor, other, score, and the texts that a teacher embe",
        ),
        (
            "teacher",
            {"data__train_file": "triplets.jsonl", "data__texts": "negatives"},
            ".*triplets.jsonl: column 'negatives' has lists, and the texts",
        ),
        ("teacher", {"data__projection_size": 8}, "data.projection_size=8: the embeddings of dis"),
        ("teacher", {"data__projection_size": -1}, "data.projection_size=-1: the embeddings of"),
        ("teacher", {"max_seq_length": 64}, "max_seq_length=64: the teacher .* cuts texts at 32"),
        ({"logits": "x"}, {}, "distill.logits='x': task=embeddings has no head with logits. Write"),
        (
            {"teacher": "x", "embeddings": "y"},
            {},
            "distill.embeddings='y': distill.teacher=x embeds the same texts",
        ),
        ({"teacher": "x", "temperature": 2.0}, {}, "distill.temperature=2.0: task=embeddings lear"),
        ({"embeddings": "x", "unlabeled": "y"}, {}, "distill.unlabeled='y': task=embeddings"),
    ],
)  # fmt: skip
def test_student_that_cannot_be_trained_is_rejected(
    distill, fields, message, folder, teacher
) -> None:
    distill = {"teacher": str(teacher)} if distill == "teacher" else distill
    with pytest.raises(InputError, match=f"^{message}"):
        EmbeddingsTask(configure_student(folder, "", distill, **fields))


@pytest.mark.seconds
def test_teacher_that_does_not_fit_is_rejected(folder, teacher, tmp_path) -> None:
    encoder = write_teacher(folder, tmp_path / "encoder")
    (encoder / "modules.json").unlink()
    message = "^distill.teacher=.*: has no pooling of texts. Give a directory of sentence-transfor"
    with pytest.raises(InputError, match=message):
        EmbeddingsTask(configure_student(folder, "", {"teacher": str(encoder)}))
    longer = write_teacher(folder, tmp_path / "longer", normalize=False)
    message = "^data.normalize=True: the embeddings of distill.teacher=.* have other lengths than 1"
    with pytest.raises(InputError, match=message):
        EmbeddingsTask(configure_student(folder, "", {"teacher": str(longer)}))
    fields = {"data__normalize": False}
    EmbeddingsTask(configure_student(folder, "", {"teacher": str(longer)}, **fields))
    prompted = write_teacher(folder, tmp_path / "prompted")
    settings = {"prompts": {"query": "ba: "}, "default_prompt_name": "query"}
    (prompted / "config_sentence_transformers.json").write_text(json.dumps(settings))
    message = "^distill.teacher=.*: the teacher begins texts with 'ba: ', and the student does not"
    with pytest.raises(InputError, match=message):
        EmbeddingsTask(configure_student(folder, "", {"teacher": str(prompted)}))
    (vocab := tmp_path / "vocab.txt").write_text("\n".join([*toy_tasks.TOKENIZER.tokens[:-1], "x"]))
    config = configure_student(folder, "", {"teacher": str(teacher)}, data__vocab=vocab)
    task = EmbeddingsTask(config)
    message = "^distill.teacher=.*: has another vocabulary than the model: .* Write its embeddings"
    with pytest.raises(InputError, match=message):
        open_teacher(task.config, task, tmp_path)


def test_student_of_some_layers_of_its_teacher_is_accepted(folder, teacher) -> None:
    for fields in ({"init_layers": "1"}, {"reinit_layers": 2}):
        config = configure_student(folder, teacher, {"teacher": str(teacher)}, **fields)
        assert make_teacher_objective(config).config.model.num_hidden_layers == 2
        EmbeddingsTask(config)


def test_other_tasks_reject_stored_embeddings(folder) -> None:
    config = toy_tasks.configuration("single_label", folder)
    config = dataclasses.replace(
        config, distill=dataclasses.replace(config.distill, embeddings="x")
    )
    message = "^distill.embeddings='x': task=sequence_classification learns no embeddings. Use dis"
    with pytest.raises(InputError, match=message):
        registry.find_task(config.task)(config)
