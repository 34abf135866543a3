"""A directory of google-research/bert's scripts: read, trained further, evaluated, written back."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import toy_tasks
from processes import run
from tf1_files import read_checkpoint, write_output

from bertjax.formats.loading import read_model
from data_pipelines.vocabulary.tokenization import load_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"),
]
PREPARE = ("prepare", "--input", "bert_output/*.tfrecord", "--workers", 1, "--eval-fraction", 0.1)
TRAIN = ("train", "--config", "pretraining:smoke,data=corpus,init=bert_output/model.ckpt-1000")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("original")
    write_output(directory / "bert_output", toy_tasks.TOKENIZER, [0, 1000, 2000])
    bertjax(directory, *PREPARE, "--vocab", "bert_output/vocab.txt", "--output", "corpus")
    return directory


def bertjax(directory: pathlib.Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = run(*arguments, begin=functools.partial(os.chdir, directory))
    assert done.returncode == 0, done.stderr
    return done


def test_training_continues_from_a_step_and_is_written_back(directory: pathlib.Path) -> None:
    fields = "--config.model.dtype=float32", "--config.steps=30", "--config.eval_batches=2"
    trained = bertjax(directory, *TRAIN, *fields, "--workdir", "more")
    assert re.search(r"initialized \S* ?from bert_output/model.ckpt-1000", trained.stderr), (
        trained.stderr
    )
    lines = [
        json.loads(line) for line in (directory / "more/metrics.jsonl").read_text().splitlines()
    ]
    evaluated = [line["loss"] for line in lines if line["split"] == "eval"]
    assert evaluated[-1] < evaluated[0]
    bertjax(directory, "evaluate", "--checkpoint", "more", "--output", "scores")
    bertjax(directory, "convert", "--to", "tf1", "more", "more_output")
    variables = read_checkpoint(directory / "more_output" / "bert_model.ckpt")
    original = read_checkpoint(directory / "bert_output" / "model.ckpt-1000")
    assert variables.keys() == {n for n in original if not n.endswith(("_m", "_v", "_step"))}
    assert all(array.shape == original[name].shape for name, array in variables.items())
    changes = [np.abs(array - original[name]).mean() for name, array in variables.items()]
    assert min(changes) > 0 and max(changes) < 0.1
    prefix = "bert_output/model.ckpt-2000"
    predicted = bertjax(directory, "predict", "--checkpoint", prefix, "--text", "ba [MASK]")
    assert "token_str" in predicted.stdout
    written, given = (directory / name / "vocab.txt" for name in ("more_output", "bert_output"))
    assert written.read_bytes() == given.read_bytes()
    assert read_model(directory / "more_output").params.keys() == {
        "encoder",
        "mlm",
        "nsp",
        "pooler",
    }


def test_training_at_a_vanishing_rate_writes_the_variables_it_read(directory: pathlib.Path) -> None:
    fields = "--config.optimizer.learning_rate=1e-30", "--config.steps=1", "--config.eval_batches=1"
    bertjax(directory, *TRAIN, *fields, "--workdir", "same")
    bertjax(directory, "convert", "--to", "tf1", "same", "same_output")
    original = read_checkpoint(directory / "bert_output" / "model.ckpt-1000")
    for name, array in read_checkpoint(directory / "same_output" / "bert_model.ckpt").items():
        np.testing.assert_array_equal(array, original[name], err_msg=name)


@pytest.mark.parametrize(
    ("file", "content", "difference"),
    [
        ("tokenizer_config.json", {"do_lower_case": True, "max_input_chars_per_word": 100}, ""),
        ("tokenizer_config.json", {"strip_accents": False}, "it has strip_accents=False, not True"),
        (
            "tokenizer_config.json",
            {"additional_special_tokens": ["ba"]},
            "it has the added token ba",
        ),
        ("vocab.txt", None, "token 5 is 'another', not 'a'"),
    ],
)
def test_only_the_same_vocabulary_is_accepted(
    directory: pathlib.Path, tmp_path, file: str, content: dict | None, difference: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for source in (directory / "bert_output").iterdir():
        (model / source.name).symlink_to(source)
    if content is None:
        tokens = toy_tasks.TOKENIZER.tokens
        difference = difference.replace("'a'", repr(tokens[5]))
        (model / file).unlink()
        (model / file).write_text("\n".join([*tokens[:5], "another", *tokens[6:]]) + "\n")
    else:
        (model / file).write_text(json.dumps(content))
    assert load_tokenizer(model).tokens
    config = f"pretraining:smoke,data={directory / 'corpus'},init={model}"
    fields = "--config.steps=1", "--config.eval_batches=1"
    done = run("train", "--config", config, *fields, "--workdir", tmp_path / "run")
    expected = f"the model has another vocabulary than the data: {difference}."
    assert (done.returncode, expected in done.stderr) == ((2, True) if difference else (0, False))
