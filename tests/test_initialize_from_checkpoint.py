"""Tests of runs that are initialized from a checkpoint or a published model."""

import json
import logging
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from conftest import in_test_all
from pretraining_runs import make_run_config, stop_at
from random_models import draw_model
from run_outputs import params_of

from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.loading import find_bert_config
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import named_leaves
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training.initialization import PretrainedModel, open_recorded
from bertjax.training.setup import make_trainer
from bertjax.training.trainer import StoppedError
from bertjax.workdir.model_history import write_model_record
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer


def make_sharded_config(corpus: pathlib.Path, **overrides: object) -> Config:
    return make_run_config(corpus, mesh__data=4, mesh__fsdp=2, **overrides)


def publish(
    corpus: pathlib.Path, path: pathlib.Path, *heads: str, format_name: str = "hf"
) -> NumpyModel:
    """Write a published model with the vocabulary of the corpus."""
    model = draw_model(make_run_config(corpus).model, load_tokenizer(corpus), *heads)
    hf = path if format_name == "hf" else path.with_name("published")
    hf.mkdir()
    huggingface.write(model, hf)
    if format_name != "hf":
        convert(hf, path, "hf", format_name)
    return model


def initial_params(config: Config) -> tuple[Any, Any]:
    """Return random parameters, and those that a run is initialized with."""
    config = config.resolve(100)
    step_functions = StepFunctions(config, registry.make_objective(config))
    random = step_functions.init().params
    pretrained = PretrainedModel(config.init).load_init_params(
        step_functions.init_shapes, config.reinit_layers
    )
    return random, step_functions.init(pretrained).params


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["hf", "tf1", "bertjax"])
def test_init_loads_the_parts_of_the_model_and_leaves_others_random(
    format_name, corpus, tmp_path
) -> None:
    model = publish(corpus, tmp_path / "model", "pooler", format_name=format_name)
    random, initialized = initial_params(make_sharded_config(corpus, init=tmp_path / "model"))
    published = dict(named_leaves(model.params))
    before = dict(named_leaves(random))
    for name, array in named_leaves(initialized):
        assert array.sharding == before[name].sharding
        np.testing.assert_array_equal(array, published.get(name, before[name]))
    assert {"mlm/bias", "nsp/kernel"} <= before.keys() - published.keys()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("format_name", ["hf", "bertjax"])
def test_init_leaves_reinit_layers_and_the_pooler_random(
    format_name, layers, corpus, tmp_path, caplog
) -> None:
    model = publish(corpus, tmp_path / "model", "pooler", "nsp", format_name=format_name)
    config = make_sharded_config(corpus, init=tmp_path / "model", reinit_layers=layers)
    with caplog.at_level(logging.INFO, "bertjax"):
        random, initialized = initial_params(config)
    message = f"(encoder, nsp); random: layers above {2 - layers} of 2, mlm, pooler."
    assert message in caplog.text
    published = dict(named_leaves(model.params))
    for (name, array), (_, before) in zip(
        named_leaves(initialized), named_leaves(random), strict=True
    ):
        expected = np.asarray(before)
        if "/blocks/" in name:
            expected = np.concatenate([published[name][: 2 - layers], expected[2 - layers :]])
        elif not name.startswith(("pooler/", "mlm/")):
            expected = published[name]
        np.testing.assert_array_equal(array, expected, err_msg=name)
        assert array.sharding == before.sharding


@pytest.mark.parametrize(
    ("layers", "init", "message"),
    [
        (3, "model", "reinit_layers=3: the model has 2 layers. Use 0 to 2"),
        (-1, "model", "reinit_layers=-1: the model has 2 layers. Use 0 to 2"),
        (1, "", "reinit_layers=1: without init all layers are random"),
    ],
)
def test_reinit_layers_are_validated(layers, init, message, corpus) -> None:
    with pytest.raises(InputError, match=message):
        make_run_config(corpus, init=init, reinit_layers=layers)


@pytest.mark.seconds
@pytest.mark.parametrize("format_name", ["hf", "bertjax"])
def test_check_compatible_logs_fields_that_differ(format_name, corpus, tmp_path, caplog) -> None:
    publish(corpus, tmp_path / "model", format_name=format_name)
    model = make_run_config(corpus, model__hidden_dropout_prob=0.3, model__dtype="bfloat16").model
    pretrained = PretrainedModel(tmp_path / "model")
    with caplog.at_level(logging.INFO, "bertjax"):
        pretrained.check_compatible(pretrained.bert_config, {}, ())
        assert not caplog.messages
        pretrained.check_compatible(model, {}, ())
    differences = ["hidden_dropout_prob=0.3 here, 0.1 there"]
    if format_name == "bertjax":  # published models do not record their dtype
        differences.append("dtype='bfloat16' here, 'float32' there")
    path = PretrainedModel(tmp_path / "model").path
    message = f"other model fields than those of {path}: {'; '.join(differences)}."
    assert caplog.messages == [message]


@pytest.mark.slow
def test_init_leaves_out_heads_that_the_run_does_not_have(corpus, tmp_path) -> None:
    publish(corpus, tmp_path / "model", "pooler", "mlm", "nsp")
    config = make_run_config(corpus, init=tmp_path / "model", data__objective="mlm")
    random, initialized = initial_params(config)
    assert jax.tree.structure(initialized) == jax.tree.structure(random)


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["hf", "tf1", "bertjax"])
def test_find_bert_config_needs_no_other_process(
    format_name, corpus, tmp_path, monkeypatch
) -> None:
    model = publish(corpus, tmp_path / "model", format_name=format_name)
    if format_name == "bertjax":
        shutil.copytree(tmp_path / "model", tmp_path / "run" / "checkpoints" / "00000007")

    def start_backend() -> int:
        raise AssertionError("the backend must not start before the processes join")

    monkeypatch.setattr(jax, "process_count", start_backend)
    for path in ("model", "run") if format_name == "bertjax" else ("model",):
        assert find_bert_config(tmp_path / path).hidden_size == model.config.hidden_size


@pytest.mark.slow
def test_init_from_a_published_model_trains(corpus, tmp_path, caplog) -> None:
    publish(corpus, tmp_path / "model", "pooler")
    config = make_run_config(corpus, init=tmp_path / "model")
    with caplog.at_level(logging.INFO, "bertjax"):
        make_trainer(config, tmp_path / "run").train()
    assert "model (encoder, pooler); random: mlm, nsp." in caplog.text


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            {"model__num_attention_heads": 1},
            r"model\.num_attention_heads=1: .* Set model\.num_attention_heads=2",
        ),
        ({"model__hidden_act": "relu"}, r"Set model\.hidden_act='gelu'"),
        ({"model__num_hidden_layers": 1}, "model.num_hidden_layers=1: .* has 2 layers. Remove"),
        ({"model__vocab_size": 200}, r"embeddings/word has shape \(128, 64\)"),
    ],
    ids=str,
)
def test_init_rejects_a_model_of_another_shape(
    override: dict, message: str, corpus, tmp_path
) -> None:
    publish(corpus, tmp_path / "model", "pooler")
    with pytest.raises(ValueError, match=message):
        make_trainer(make_run_config(corpus, init=tmp_path / "model", **override), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.slow
def test_init_rejects_another_vocabulary(corpus, tmp_path) -> None:
    publish(corpus, tmp_path / "model", "pooler")
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / "model" / name).unlink()
    with pytest.raises(ValueError, match="has another vocabulary"):
        make_trainer(make_run_config(corpus, init=tmp_path / "model"), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_name", "layers"), [("hf", 1), *in_test_all(("hf", 0), ("bertjax", 0))]
)
def test_run_resumes_when_its_initial_model_is_gone(
    format_name, layers, corpus, tmp_path, monkeypatch
) -> None:
    publish(corpus, tmp_path / "model", "pooler", format_name=format_name)
    config = make_run_config(corpus, init=tmp_path / "model", reinit_layers=layers)
    make_trainer(config, tmp_path / "whole").train()
    with monkeypatch.context() as context:
        stop_at(1, context)
        with pytest.raises(StoppedError):
            make_trainer(config, tmp_path / "run").train()
    record = json.loads((tmp_path / "run" / "init.json").read_text())
    assert record["path"] == str(tmp_path / "model") and len(record["digest"]) == 64
    shutil.rmtree(tmp_path / "model")
    make_trainer(config, tmp_path / "run").train()
    assert params_of(tmp_path / "run") == params_of(tmp_path / "whole")


@pytest.mark.seconds
def test_open_recorded_rejects_another_model_in_the_same_place(corpus, tmp_path) -> None:
    publish(corpus, tmp_path / "model", "pooler")
    model = PretrainedModel(tmp_path / "model")
    (tmp_path / "run").mkdir()
    write_model_record("init", model, tmp_path / "run")
    assert open_recorded("init", tmp_path / "model", tmp_path / "run").digest == model.digest
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "model").mkdir()
    other = draw_model(make_run_config(corpus).model, load_tokenizer(corpus), "pooler")
    other.params["encoder"]["embeddings"]["norm"]["bias"][0] += 1
    huggingface.write(other, tmp_path / "model")
    with pytest.raises(InputError, match=r"not the model that the run in .* began with"):
        open_recorded("init", tmp_path / "model", tmp_path / "run")


@pytest.mark.seconds
def test_init_record_of_a_published_model_has_no_step(corpus, tmp_path) -> None:
    publish(corpus, tmp_path / "2024", "pooler")
    (tmp_path / "run").mkdir()
    write_model_record("init", PretrainedModel(tmp_path / "2024"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "init.json").read_text())["step"] is None


@pytest.mark.seconds
def test_open_recorded_takes_the_recorded_step_of_a_running_run(corpus, tmp_path) -> None:
    publish(corpus, tmp_path / "model", "pooler", format_name="bertjax")
    checkpoints = tmp_path / "other" / "checkpoints"
    shutil.copytree(tmp_path / "model", checkpoints / "00000007")
    (tmp_path / "run").mkdir()
    write_model_record("init", PretrainedModel(tmp_path / "other"), tmp_path / "run")
    shutil.copytree(tmp_path / "model", checkpoints / "00000009")
    assert open_recorded("init", tmp_path / "other", tmp_path / "run").path.name == "00000007"
    assert PretrainedModel(tmp_path / "other").path.name == "00000009"
    assert open_recorded("init", checkpoints / "00000007", tmp_path / "run").path.name == "00000007"
    shutil.rmtree(checkpoints / "00000007")
    with pytest.raises(InputError, match=r"its checkpoint of step 7, .* is gone\. Use "):
        open_recorded("init", tmp_path / "other", tmp_path / "run")
