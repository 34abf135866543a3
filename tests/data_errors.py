"""Runs on invalid data: files, tiny models, and the arguments of their commands."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable

import toy_tasks
from random_models import draw_model

from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig

Files = dict[str, str | bytes]


def jsonl(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def write(folder: pathlib.Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def publish(path: pathlib.Path, head: str, tokenizer=toy_tasks.TOKENIZER) -> pathlib.Path:
    """Publish a model with the vocabulary of the toy tasks and classes "a" and "b"."""
    count = 2 if head == "sequence_classification" else 0
    config = BertConfig(128, 1, 64, 2, max_position_embeddings=64, num_labels=count)
    model = draw_model(config, tokenizer, "pooler", head)
    labels = ("a", "b") if count else ()
    path.mkdir()
    huggingface.write(type(model)(config, model.params, tokenizer, labels=labels), path)
    return path


def publish_token_classifier(path: pathlib.Path, labels: tuple[str, ...]) -> None:
    """Publish a token classification model with the vocabulary of the toy tasks."""
    config = BertConfig(128, 1, 64, 2, max_position_embeddings=64, num_labels=len(labels))
    model = draw_model(config, toy_tasks.TOKENIZER, "token_classification")
    path.mkdir()
    huggingface.write(dataclasses.replace(model, labels=labels), path)


def arguments(models: pathlib.Path, options: str, **overrides: object) -> list[str]:
    """Return arguments for CONFIGURATION:OPTIONS, with fields of a tiny model."""
    file, _, file_options = options.partition(":")
    fields: dict[str, object] = {"batch_size": 8, "steps": 2, "max_seq_length": 32}
    if "init" not in overrides:
        sizes = {
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "vocab_size": 128,
        }
        fields |= {f"model.{name}": value for name, value in sizes.items()}
        fields |= {"model.max_position_embeddings": 64, "data.vocab": models / "vocab.txt"}
    spec = f"{toy_tasks.EXPERIMENTS / file}.py:{file_options}"
    return toy_tasks.config_arguments(spec, fields, overrides)


def check_train_error(
    refused: Callable, models: pathlib.Path, folder: pathlib.Path, case: tuple[Files, str, str]
) -> None:
    """Check the error of `train`.

    Args:
      refused: the fixture that runs a command and returns its error.
      models: directory with a vocabulary.
      folder: directory of the data, DIR in the pattern.
      case: files, "CONFIGURATION:OPTIONS FIELD=VALUE ...", and pattern of the error.
    """
    files, spec_and_fields, pattern = case
    write(folder, files)
    spec, *fields = spec_and_fields.split()
    file, _, options = spec.partition(":")
    spec = f"{file}:data={folder}" + (f",{options}" if options else "")
    flags = [f"--config.{field}" for field in fields]
    error = refused("train", "--workdir", folder / "run", *arguments(models, spec), *flags)
    assert re.match(pattern.replace("DIR", re.escape(str(folder))), error), error
    assert not (folder / "run").exists()
