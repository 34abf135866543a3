"""Small data sets for training embeddings, and tasks with their first batches."""

import dataclasses
import functools
import itertools
import json
import pathlib
import subprocess
from typing import Any

import numpy as np
import toy_tasks
from etils import epath
from model_files import write_hf
from random_models import draw_model

from bertjax.config.distill_config import DistillConfig
from bertjax.formats.sentence_transformers import write_modules
from bertjax.formats.tensors import PoolingConfig
from bertjax.inference.feature_extraction import Embedder, find_embedding_options
from bertjax.tasks.embeddings.task import EmbeddingsTask

SCORED = ["anchor,other,score\n", *(f"ba do,{'ba ' * i}ki,{i / 8}\n" for i in range(8))]


def write_data(path: pathlib.Path) -> None:
    """Write pairs, scored pairs, triplets with two negatives, and texts alone."""
    toy_tasks.write_data(path)
    (path / "scored.csv").write_text("".join(SCORED))
    texts = [f"{first} {second}" for first, second in itertools.permutations(toy_tasks.WORDS, 2)]
    toy_tasks.write_lines(path / "texts.jsonl", [{"sentence": text} for text in texts])
    triplets = [
        {"q": f"ba {t}", "a": f"do {t}", "negatives": [f"ki {t}", f"lu {t}"]} for t in texts
    ]
    toy_tasks.write_lines(path / "triplets.jsonl", triplets)


def prepare(folder: pathlib.Path, **overrides: Any) -> EmbeddingsTask:
    """Return a task with the batches of three steps."""
    fields = {"steps": 3, "optimizer__warmup": 1, **overrides}
    task = EmbeddingsTask(toy_tasks.configuration("embeddings", folder, **fields).resolve(300))
    task.prepare(3)
    return task


def write_teacher(
    folder: pathlib.Path, path: pathlib.Path, normalize: bool = True, projection_size: int = 0
) -> pathlib.Path:
    """Write a model of sentence-transformers with random parameters, two blocks of 64."""
    config = toy_tasks.configuration("embeddings", folder, model__num_hidden_layers=2).model
    write_hf(draw_model(config, toy_tasks.TOKENIZER), path)
    projection, random = None, np.random.default_rng(1)
    if projection_size:
        kernel = random.normal(size=(64, projection_size)) / 8
        bias = random.normal(size=projection_size)
        projection = {"kernel": kernel.astype(np.float32), "bias": bias.astype(np.float32)}
    pooling = PoolingConfig(epath.Path(path), "mean", normalize, 32)
    write_modules(epath.Path(path), pooling, 64, projection)
    return path


def configure_student(
    folder: pathlib.Path, init: object = "", distill: dict[str, object] | None = None, **fields: Any
) -> Any:
    """Return the configuration of a student that learns from texts alone."""
    files = {"data__train_file": "texts.jsonl", "data__eval_file": "texts.jsonl"}
    defaults = {"steps": 4, "optimizer__warmup": 1, "log_every": 1, **files}
    config = toy_tasks.configuration("embeddings", folder, init, **defaults | fields)
    return dataclasses.replace(config, distill=DistillConfig(**distill or {}))


def read_texts(folder: pathlib.Path) -> list[str]:
    """Return the texts of `write_data`."""
    lines = (folder / "texts.jsonl").read_text().splitlines()
    return [json.loads(line)["sentence"] for line in lines]


def write_embeddings(model: pathlib.Path, texts: list[str], path: pathlib.Path) -> pathlib.Path:
    """Write the embeddings of texts by a model."""
    Embedder(*find_embedding_options(model)).write(texts, path)
    return path


@functools.cache
def has_sentence_transformers(python: str) -> bool:
    """Return whether an interpreter has sentence-transformers."""
    command = [python, "-c", "import sentence_transformers"]
    return subprocess.run(command, capture_output=True).returncode == 0
