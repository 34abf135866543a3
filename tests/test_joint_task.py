"""A task with two heads and two label sets goes everywhere by the commands that are printed."""

import dataclasses
import functools
import json
import os
import pathlib
import random
import re
import shlex
from collections.abc import Callable
from types import SimpleNamespace

import joint_task
import numpy as np
import pytest
from conftest import sample_vocabulary
from jax import export
from processes import Command, run
from random_models import draw_model
from run_outputs import metrics

import bertjax
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats import huggingface
from bertjax.formats.loading import find_bert_config, find_labels, read_model
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TASK = "--task", "joint_task:JointTask"
INTENTS = {"alarm": "ba", "music": "ki"}
SLOTS = {"B-who": "lu", "B-what": "do", "O": "me"}
FUNCTIONS = """
from bertjax.model import losses


def focal(logits, labels, weights):
    return losses.cross_entropy(logits, labels, weights)


def count_alarms(evaluation):
    records = evaluation.files["predictions"]
    return {"alarms": sum(record["intent"] == "alarm" for record in records)}
"""
CONFIG = {
    "task": "joint_task:JointTask",
    "max_seq_length": 32,
    "batch_size": 16,
    "steps": 60,
    "log_every": 20,
    "checkpoint_every": 30,
    "eval_every": 30,
    "loss_weights": "intent=1,slot=0.5",
    "metrics": "joint_functions:count_alarms",
    "model": {
        "vocab_size": 128,
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "num_attention_heads": 2,
    },
    "optimizer": {"learning_rate": 3e-3, "warmup": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Directory with utterances, a vocabulary, a configuration and functions of a user."""
    draw, path = random.Random(5), tmp_path_factory.mktemp("joint")
    for split, count in (("train", 300), ("dev", 50)):
        lines = []
        for _ in range(count):
            intent, slots = draw.choice([*INTENTS]), draw.choices([*SLOTS], k=draw.randrange(1, 8))
            words = [INTENTS[intent], *(SLOTS[slot] for slot in slots)]
            lines.append(json.dumps({"words": words, "slots": ["O", *slots], "intent": intent}))
        (path / f"{split}.jsonl").write_text("\n".join(lines))
    WordPieceTokenizer(sample_vocabulary(), cased=False).save(path)
    data = {"dir": str(path), "vocab": f"{path}/vocab.txt"}
    (path / "joint.json").write_text(json.dumps(CONFIG | {"data": data}))
    (path / "joint_functions.py").write_text(FUNCTIONS)
    return path


@pytest.fixture(scope="module")
def printed(folder, tmp_path_factory) -> dict[str, list[str]]:
    """Subcommand -> arguments of the commands that the run prints at its end."""
    workdir = tmp_path_factory.mktemp("runs") / "joint"
    result = run(
        *("train", "--config", folder / "joint.json", "--workdir", workdir), begin=enter(folder)
    )
    assert result.returncode == 0, result.stderr
    commands = re.findall(r"^  bertjax (.*)$", result.stdout + result.stderr, re.MULTILINE)
    return {arguments[0]: arguments[1:] for arguments in map(shlex.split, commands)}


def enter(folder: pathlib.Path) -> Callable[[], None]:
    """Return a function that changes to the directory, where Python finds a user's modules."""
    return functools.partial(os.chdir, folder)


def workdir_of(printed: dict[str, list[str]]) -> pathlib.Path:
    return pathlib.Path(printed["report"][0])


def load(folder: pathlib.Path, **overrides: object) -> Config:
    text = {name.replace("__", "."): str(value) for name, value in overrides.items()}
    return load_config(f"{folder}/joint.json", text, registry.data_fields(imports_task=True))


@pytest.mark.slow
def test_heads_learn_their_label_sets(printed) -> None:
    workdir = workdir_of(printed)
    last = metrics(workdir)[-1]
    assert last["accuracy"] > 0.9 and last["exact"] > 0.9
    assert 0 <= last["alarms"] <= 50
    config = find_bert_config(workdir)
    assert config.label_counts == "intent=2,slot=3" and config.num_labels == 5
    assert find_labels(workdir) == ("alarm", "music", "B-what", "B-who", "O")
    params = read_model(workdir).params
    assert params["intent"]["kernel"].shape == (64, 2) and params["slot"]["bias"].shape == (3,)


@pytest.mark.slow
def test_printed_commands_evaluate_report_and_predict(printed, folder) -> None:
    workdir = workdir_of(printed)
    untrusted = [item for item in printed["evaluate"] if "metrics" not in item]
    result = run("evaluate", *untrusted, begin=enter(folder))
    assert result.returncode == 2 and "add --config.metrics=joint_functions" in result.stderr
    result = run("evaluate", *printed["evaluate"], begin=enter(folder))
    assert result.returncode == 0, result.stderr
    scores = json.loads((workdir / "scores" / "scores.json").read_text())
    last = metrics(workdir)[-1]
    assert scores["exact"] == last["exact"] and scores["alarms"] == last["alarms"]
    for command in (printed["report"], [workdir / "scores", *TASK]):
        result = run("report", *command)
        assert result.returncode == 0, result.stderr
    assert "alarm: ba" in (workdir / "scores" / "report.html").read_text()
    result = run("predict", "--checkpoint", workdir, "--text", "ki lu me do", *TASK)
    answer = json.loads(result.stdout)
    assert answer["intent"] == "music" and answer["slots"] == ["O", "B-who", "O", "B-what"]


@pytest.mark.slow
def test_export_keeps_both_label_sets(printed, folder, tmp_path) -> None:
    workdir, exported = workdir_of(printed), tmp_path / "hf"
    result = run("convert", "--to", "hf", workdir, exported, *TASK)
    assert result.returncode == 0, result.stderr
    written = json.loads((exported / "config.json").read_text())
    assert written["architectures"] == ["JointBERT"]
    assert written["bertjax_label_sets"]["slot"] == ["B-what", "B-who", "O"]
    assert "id2label" not in written  # of which head?
    card = (exported / "README.md").read_text()
    assert "AutoModel.from_pretrained" in card
    assert "Arrays of the heads: `intent_classifier`, `slot_classifier`." in card
    model = read_model(exported)
    assert model.labels == find_labels(workdir)
    assert model.config.split_labels(model.labels)["intent"] == ("alarm", "music")
    program = tmp_path / "joint.stablehlo"
    arguments = "--checkpoint", workdir, "--to", "stablehlo", "--output", program
    result = run("export", *arguments, *TASK)
    assert result.returncode == 0, result.stderr
    metadata = json.loads(pathlib.Path(f"{program}.json").read_text())
    assert {output["name"] for output in metadata["outputs"]} == {"intent_logits", "slot_logits"}
    assert metadata["labels"]["slot_logits"] == ["B-what", "B-who", "O"]
    result = run("predict", "--checkpoint", exported, "--text", "ki lu", *TASK)
    assert json.loads(result.stdout)["slots"] == ["O", "B-who"], result.stderr
    assert "bertjax_label_sets" not in result.stderr
    result = run("export", *arguments[:3], "onnx", "--output", tmp_path / "onnx", *TASK)
    assert result.returncode == 0, result.stderr
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "onnx" / "model.onnx")
    ids = np.array([[2, 40, 41, 42, 3], [2, 43, 3, 0, 0]], np.int32)
    arrays = [ids, np.zeros_like(ids), (ids > 0).astype(np.int32)]
    outputs = export.deserialize(program.read_bytes()).call(*arrays)
    names = [spec["name"] for spec in metadata["inputs"]]
    wide = (array.astype(np.int64) for array in arrays)
    found = session.run([*outputs], dict(zip(names, wide, strict=True)))
    for logits, expected in zip(found, outputs.values(), strict=True):
        real = ids > 0 if logits.ndim == 3 else slice(None)
        np.testing.assert_allclose(logits[real], expected[real], rtol=1e-4, atol=1e-4)
    # A run that begins from the export knows its labels, in its order.
    task = joint_task.JointTask(load(folder, init=exported))
    assert task.labels == model.labels


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("labels", "label_counts", "kept"),
    [
        ("abcde", "intent=2,slot=3", {"intent", "slot"}),
        ("cdeab", "slot=3,intent=2", {"intent", "slot"}),
        ("abcdf", "intent=2,slot=3", {"intent"}),
        ("bacde", "intent=2,slot=3", {"slot"}),
        ("abcde", "intent=3,slot=2", set()),  # the same labels one after the other
    ],
)
def test_init_takes_the_heads_whose_labels_are_the_same(
    labels: str, label_counts: str, kept: set, folder, tmp_path
) -> None:
    def with_labels(label_counts: str) -> BertConfig:
        return dataclasses.replace(load(folder).model, num_labels=5, label_counts=label_counts)

    tokenizer = WordPieceTokenizer(sample_vocabulary(), cased=False)
    drawn = draw_model(with_labels("intent=2,slot=3"), tokenizer, "pooler", "intent", "slot")
    huggingface.write(dataclasses.replace(drawn, labels=tuple("abcde")), tmp_path)
    model, new = PretrainedModel(tmp_path), with_labels(label_counts)
    parts = "encoder", "pooler", "intent", "slot"
    shapes = {part: param_shapes(new)[part] for part in parts}
    task = SimpleNamespace(config=SimpleNamespace(model=new), labels=tuple(labels))
    assert model.has_labels_of(task) == (len(kept) == 2)
    model.check_compatible(new, shapes, tuple(labels))
    assert {*model.parts} == {"encoder", "pooler", *kept}


@pytest.mark.slow
def test_loaded_model_answers_from_both_label_sets(printed) -> None:
    model = bertjax.load(workdir_of(printed))
    answer = model.understand("ba do")
    assert model.predict({"text": "ba do"}) == answer
    assert answer == {"words": ["ba", "do"], "slots": ["O", "B-what"], "intent": "alarm"}
    with pytest.raises(InputError, match=r"does not read the key 'more'"):
        model.predict({"text": "ba do", "more": 1})
    longest = model.understand(" ".join(["ba"] * 30))  # and [CLS] and [SEP]
    assert len(longest["words"]) == 30 and "truncated" not in longest
    assert model.understand(" ".join(["ba"] * 31)) == {**longest, "truncated": True}


@pytest.mark.minutes
def test_sweep_trains_a_task_with_two_label_sets(folder, tmp_path) -> None:
    result = run(
        *("sweep", "--config", folder / "joint.json", "--workdir", tmp_path / "sweep"),
        *("--config.steps=10", "--config.eval_every=10", "--config.checkpoint_every=10"),
        *("--seeds", "2"),
        begin=enter(folder),
    )
    assert result.returncode == 0, result.stderr
    best = read_model(tmp_path / "sweep" / "best")
    assert best.labels == ("alarm", "music", "B-what", "B-who", "O")


@pytest.mark.minutes
def test_resumed_run_has_the_same_parameters(printed, folder, tmp_path) -> None:
    arguments = "train", "--config", folder / "joint.json", "--workdir", tmp_path
    process = Command(*arguments, begin=enter(folder))
    process.wait_for_step(20)
    process.kill()
    process.wait()
    resumed = run(*arguments, begin=enter(folder))
    assert resumed.returncode == 0, resumed.stderr
    expected, params = read_model(workdir_of(printed)).params, read_model(tmp_path).params
    for head in ("intent", "slot"):
        np.testing.assert_array_equal(params[head]["kernel"], expected[head]["kernel"])
