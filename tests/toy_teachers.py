"""Configurations of every task with teachers of random parameters."""

import dataclasses
import json
import pathlib

import toy_squad
import toy_tasks
from model_files import write_hf
from pretraining_runs import make_run_config
from random_models import draw_model

from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.tasks import registry

KINDS = (*(kind for kind in toy_tasks.KINDS if kind != "embeddings"), "squad", "pretraining")


def write_data(path: pathlib.Path) -> None:
    """Write the data of all tasks but pre-training."""
    toy_tasks.write_data(path)
    squad = path / "squad"
    squad.mkdir()
    for split, count in (("train", 24), ("dev", 4)):
        content = json.dumps(toy_squad.questions(1, count))
        (squad / f"{split}-v1.1.json").write_text(content)
    config = dataclasses.replace(toy_tasks.configuration("single_label", path).model,
                                 vocab_size=len(toy_squad.TOKENIZER.tokens))  # fmt: skip
    write_hf(draw_model(config, toy_squad.TOKENIZER, "pooler"), squad / "model")


def configure(kind: str, folder: pathlib.Path, corpus: object, **overrides: object) -> Config:
    fields = {"steps": 4, "log_every": 1, "optimizer__warmup": 0, "mesh__data": 8} | overrides
    if kind == "pretraining":
        fields = {"data__dupe_factor": 2, "steps": 2, "data__workers": 1} | overrides
        return make_run_config(corpus, **fields)
    if kind == "squad":
        return toy_tasks.load_arguments(toy_squad.arguments(folder / "squad", 1, **fields))
    return toy_tasks.configuration(kind, folder, **fields)


def make_teacher(config: Config, path: pathlib.Path) -> pathlib.Path:
    """Write a model with random parameters that has the heads and labels of a configuration."""
    task = registry.find_task(config.task)(config)
    model = dataclasses.replace(task.config.model, num_hidden_layers=1, bilstm=0)
    needed = task.objective.heads
    parts = needed if config.task in ("question_answering", "token_classification") else (
        "pooler", *needed)  # fmt: skip
    drawn = draw_model(model, task.tokenizer, *parts)
    problem = config.data.get("problem_type", "")
    fields = {"problem_type": problem} if problem else {}
    return write_hf(dataclasses.replace(drawn, labels=task.labels, **fields), path)


def with_distill(config: Config, **fields: object) -> Config:
    return dataclasses.replace(config, distill=DistillConfig(temperature=2.0, **fields))
