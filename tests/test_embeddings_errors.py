"""Configurations and data of which embeddings cannot be trained: one line with the fix."""

import dataclasses
import pathlib

import pytest
import toy_embeddings
import toy_tasks
from toy_embeddings import prepare

from bertjax.config.distill_config import DistillConfig
from bertjax.tasks import registry
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
        ({"data__pooling": "last"}, "data.pooling=last: unknown value. Use mean, cls, max"),
        (
            {"data__pooling": "cls", "model__direction": "left_to_right"},
            "data.pooling=cls: from left to right",
        ),
        ({"data__matryoshka_dims": "64,65"}, "data.matryoshka_dims='64,65': '65' is not from 1 to"),
        ({"data__matryoshka_dims": "8,8"}, "data.matryoshka_dims='8,8': one is repeated"),
        ({"data__matryoshka_dims": "small"}, "data.matryoshka_dims='small': 'small' is not from"),
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


def test_teacher_is_rejected(folder) -> None:
    config = toy_tasks.configuration("embeddings", folder)
    config = dataclasses.replace(config, distill=DistillConfig("x"))
    message = "^distill.teacher='x', distill.logits='': task=embeddings has no head whose"
    with pytest.raises(InputError, match=message):
        registry.make_objective(config)
