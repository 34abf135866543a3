"""A task and a head outside the package work everywhere, without edits in the package."""

import dataclasses
import functools
import importlib
import json
import pathlib
import random
import re
import sys
from typing import Any

import numpy as np
import pytest
import sentiment_task
from conftest import sample_vocabulary
from etils import epath
from processes import Command, hold
from random_models import assert_same_params, draw_model
from run_outputs import metrics, params_of, write_evaluation

import bertjax
from bertjax.config.config import Config
from bertjax.config.loading import load_config, read_config
from bertjax.formats import huggingface
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.inference.predictor import Predictor
from bertjax.model import heads
from bertjax.model.bert_config import BertConfig
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.reports.writer import write_report
from bertjax.tasks import registry
from bertjax.training.evaluator import evaluate
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

GLAD, SAD, OTHER = ["ba", "do"], ["ki", "lu"], ["me", "no", "ra", "si"]
CONFIG_FILE = """
def get_config(data=""):
    return {
        "task": "sentiment_task:SentimentTask",
        "max_seq_length": 32, "batch_size": 16, "steps": 60,
        "log_every": 4, "checkpoint_every": 10, "eval_every": 20,
        "model": {
            "vocab_size": 128, "num_hidden_layers": 1,
            "hidden_size": 64, "num_attention_heads": 2,
        },
        "optimizer": {"learning_rate": 3e-3, "warmup": 2},
        "data": {"dir": data, "vocab": f"{data}/vocab.txt"},
    }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Directory with texts, their moods, a vocabulary and a configuration."""
    draw, path = random.Random(5), tmp_path_factory.mktemp("moods")
    for split, count in (("train", 300), ("dev", 50)):
        lines = []
        for _ in range(count):
            label, words = draw.choice((("glad", GLAD), ("sad", SAD)))
            text = draw.choices(OTHER, k=draw.randrange(1, 12)) + draw.choices(words, k=2)
            draw.shuffle(text)
            lines.append(json.dumps({"text": " ".join(text), "label": label}))
        (path / f"{split}.jsonl").write_text("\n".join(lines))
    WordPieceTokenizer(sample_vocabulary(), cased=False).save(path)
    (path / "moods.py").write_text(CONFIG_FILE)
    return path


def make_run_config(folder: pathlib.Path, **overrides: object) -> Config:
    text = {name.replace("__", "."): str(value) for name, value in overrides.items()}
    return load_config(f"{folder}/moods.py:data={folder}", text, registry.data_fields())


def train(folder: pathlib.Path, workdir: pathlib.Path, **options: Any) -> Command:
    """Start training in a process of its own, which imports the task from this directory."""
    arguments = "--config", f"{folder}/moods.py:data={folder}", "--workdir", workdir
    return Command("train", *arguments, **options)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> pathlib.Path:
    """Workdir of a run that was killed and resumed."""
    workdir = tmp_path_factory.mktemp("run")
    process = train(folder, workdir, begin=functools.partial(hold, 40))
    process.wait_for_step(24)
    process.kill()
    process.wait()
    assert max(entry["step"] for entry in metrics(workdir)) < 60
    resumed = train(folder, workdir)
    _, error = resumed.communicate()
    assert resumed.poll() == 0, error
    return workdir


@pytest.mark.slow
def test_custom_task_learns_and_resumes_exactly(folder, trained, tmp_path) -> None:
    uninterrupted = train(folder, tmp_path)
    _, error = uninterrupted.communicate()
    assert uninterrupted.poll() == 0, error
    assert metrics(trained) == metrics(tmp_path)
    assert params_of(trained) == params_of(tmp_path)
    assert metrics(trained)[-1]["right"] > 0.9


@pytest.mark.slow
def test_custom_task_is_evaluated_and_has_its_report(folder, trained, tmp_path) -> None:
    evaluation = evaluate(make_run_config(folder), trained)
    assert evaluation.scores["right"] == metrics(trained)[-1]["right"]
    config = make_run_config(folder).to_dict()
    write_evaluation(tmp_path, config, evaluation.scores, **evaluation.files)
    assert "glad, " in write_report(tmp_path).read_text()
    assert "Accuracy of moods" in write_report(trained).read_text()


@pytest.mark.slow
def test_custom_task_predicts_with_labels_and_calibration(trained) -> None:
    predictor = Predictor(trained)
    assert predictor.pipeline.labels == ("glad", "sad")
    inputs = predictor.pipeline.parse_lines(["me ba ra do", "lu no ki si"])
    answers = list(predictor.predict(inputs))
    assert [answer["label"] for answer in answers] == ["glad", "sad"]
    assert {answer["bias"] for answer in answers} == {0.25}


@pytest.mark.slow
def test_custom_head_is_exported_and_read_back(trained, folder, tmp_path) -> None:
    convert(trained, tmp_path / "hf", "bertjax", "hf")
    hf_config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert hf_config["architectures"] == ["BertForMoods"]
    assert "pipeline_tag: text-classification" in (tmp_path / "hf" / "README.md").read_text()
    model, exported = read_model(trained, "bertjax"), read_model(tmp_path / "hf")
    assert_same_params(model.params, exported.params)
    config = make_run_config(folder, init=tmp_path / "hf")
    pretrained = PretrainedModel(config.init)
    pretrained.check_compatible(config.model, model.params, sentiment_task.LABELS)
    assert pretrained.tokenizer.fingerprint() == model.tokenizer.fingerprint()


@pytest.mark.slow
def test_commands_convert_and_export_the_heads_of_a_custom_task(trained, tmp_path) -> None:
    program = tmp_path / "moods.stablehlo"
    task = "--task", "sentiment_task:SentimentTask"
    untrusted = Command("convert", "--to", "hf", trained, tmp_path / "hf")
    _, error = untrusted.communicate()
    assert untrusted.poll() == 2 and "Add --task MODULE:CLASS" in error
    for arguments in (
        ("convert", *task, "--to", "hf", trained, tmp_path / "hf"),
        ("export", *task, "--checkpoint", trained, "--to", "stablehlo", "--output", program),
    ):
        process = Command(*arguments)
        _, error = process.communicate()
        assert process.poll() == 0, error
    outputs = json.loads((tmp_path / "moods.stablehlo.json").read_text())["outputs"]
    assert [output["name"] for output in outputs] == ["mood_logits"]


@pytest.mark.slow
def test_exports_of_a_published_custom_head_need_its_task(trained, tmp_path) -> None:
    convert(trained, tmp_path / "hf", "bertjax", "hf")
    arguments = "export", "--checkpoint", tmp_path / "hf", "--to", "onnx", "--output"
    untrusted = Command(*arguments, tmp_path / "encoder")
    _, error = untrusted.communicate()
    assert untrusted.poll() == 2 and "the head of mood.bias, mood.weight is unknown" in error
    assert not (tmp_path / "encoder").exists()
    process = Command(*arguments, tmp_path / "moods", "--task", "sentiment_task:SentimentTask")
    output, error = process.communicate()
    assert process.poll() == 0, error
    assert "outputs: mood_logits [b, 2]\n" in output
    labels = json.loads((tmp_path / "moods" / "config.json").read_text())["architectures"]
    assert labels == ["BertForMoods"]


def test_task_of_a_file_is_not_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "hostile_task.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("hostile_task:Task", "json:Task", "bertjax.tasks.task:Task", "os", "a.b:", ":c"):
        raw = {"task": name, "model": {"hidden_size": 64}}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        with pytest.raises(InputError, match=r"^task='.*': (not imported|unknown task)"):
            read_config(epath.Path(tmp_path / "config.json"), registry.data_fields())
        registry.register_heads(epath.Path(tmp_path))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(InputError, match="unknown task"):
        registry.import_task("hostile_task:Task")  # which the user names
    assert (tmp_path / "ran").exists()


def test_task_of_the_current_directory_is_found(tmp_path, monkeypatch) -> None:
    (tmp_path / "local_task.py").write_text("from sentiment_task import SentimentTask")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InputError, match="its module in this directory"):
        registry.import_task("local_task:SentimentTask")
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    assert registry.import_task("local_task:SentimentTask") is sentiment_task.SentimentTask
    assert sys.path[-1] == str(tmp_path)  # installed modules come first


def test_class_that_no_module_has_is_not_a_task() -> None:
    """Python keeps it among the subclasses, for example after a module was imported again."""
    gone = type("GoneTask", (sentiment_task.SentimentTask,), {})
    assert gone in sentiment_task.SentimentTask.__subclasses__()
    assert all(pipeline.method for pipeline in registry.pipeline_classes())


def test_export_rejects_two_heads_with_one_name(monkeypatch) -> None:
    twin = dataclasses.replace(
        sentiment_task.HEAD, name="twin", module_names=(("twin", "mood", "cls/mood", "output"),)
    )
    monkeypatch.setitem(heads.HEADS, "twin", twin)
    model = draw_model(BertConfig(40, 2, 64, 1, max_position_embeddings=128), None)
    linear = {"kernel": np.zeros((64, 2), np.float32), "bias": np.zeros(2, np.float32)}
    params = {**model.params, "mood": linear, "twin": linear}
    with pytest.raises(InputError, match=r"hf name 'mood.*': two heads have it"):
        type(model)(model.config, params, None).named_arrays("hf")


@pytest.mark.slow
def test_preflight_reports_a_custom_task(folder) -> None:
    report = preflight(make_run_config(folder, batch_size=64), Topology("cpu:8"))
    assert report.fits and report.evaluation.fits and report.prediction.fits


def test_export_rejects_an_unregistered_head(monkeypatch, tmp_path) -> None:
    model = draw_model(BertConfig(40, 2, 64, 1, max_position_embeddings=128), None)
    params = {**model.params, "stranger": {"kernel": np.zeros((64, 2), np.float32)}}
    model = type(model)(model.config, params, None)
    with pytest.raises(InputError, match="the head 'stranger' is unknown and would be lost"):
        huggingface.write(model, tmp_path)


def test_register_head_rejects_a_taken_name() -> None:
    assert heads.register_head(sentiment_task.HEAD) is sentiment_task.HEAD
    with pytest.raises(InputError, match="head 'mlm': the name is taken"):
        heads.register_head(dataclasses.replace(sentiment_task.HEAD, name="mlm"))


@pytest.mark.parametrize(
    "name", ["", "pretain", "json", "json:loads", "no.such.module", "sentiment_task"]
)
def test_find_task_rejects_an_unknown_name(name: str) -> None:
    with pytest.raises(
        InputError, match=f"task='{name}': unknown task. Use .*multiple_choice, pretraining"
    ):
        registry.find_task(name)


@pytest.mark.minutes
def test_task_of_the_documents_trains_and_predicts(tmp_path, monkeypatch) -> None:
    text = (pathlib.Path(__file__).parent.parent / "docs" / "contributing.md").read_text()
    task, config = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "genre.py").write_text(task)
    (tmp_path / "config.py").write_text(config)
    draw = random.Random(0)
    for split, count in (("train", 200), ("dev", 40)):
        rows = ["text,genre,year"]
        for _ in range(count):
            genre, word = draw.choice((("crime", "ba"), ("love", "ki")))
            words = draw.choices(OTHER, k=draw.randrange(1, 8))
            rows.append(f"{' '.join([word, *words])},{genre},{1900 + 10 * len(words)}")
        (tmp_path / f"{split}.csv").write_text("\n".join(rows))
    WordPieceTokenizer(sample_vocabulary(), cased=False).save(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.TASKS, "genre", "genre:GenreTask")
    overrides = {
        "data.vocab": f"{tmp_path}/vocab.txt",
        "model.vocab_size": 128,
        "optimizer.learning_rate": 3e-3,
        "steps": 60,
    }
    bertjax.train(f"{tmp_path}/config.py:data={tmp_path},smoke", tmp_path / "run", overrides)
    assert metrics(tmp_path / "run")[-1]["accuracy"] > 0.9
    answer = bertjax.load(tmp_path / "run").find_genre("ba me ra")
    assert answer["label"] == "crime" and 1850 < answer["year"] < 2050
