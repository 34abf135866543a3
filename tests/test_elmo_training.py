"""Language models of one direction, and pairs of them, train like every model."""

import dataclasses
import math
import shutil

import jax
import numpy as np
import pytest
from pretraining_runs import losses, make_run_config, params_of
from random_models import assert_same_params, draw_model

import bertjax
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import _Source as Source
from bertjax.inference.convert import _write as write_model
from bertjax.inference.convert import convert, join_encoders
from bertjax.inference.export.stablehlo import write_stablehlo
from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoders import PAIR
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingObjective
from bertjax.training.initialization import PretrainedModel
from bertjax.training.memory_budget import memory_fixes
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

SHAPE = BertConfig(vocab_size=12, num_hidden_layers=2, hidden_size=8, num_attention_heads=2)
LSTM_LM = {
    "data__objective": "clm_reverse", "data__max_predictions_per_seq": None,
    "model__encoder": "lstm", "model__direction": "right_to_left", "model__sampled_softmax": 64,
}  # fmt: skip
TASKS = ("sequence_classification", "question_answering", "token_classification", "multiple_choice")


def draw(direction: str, tokens: str = "abcd", **fields: object) -> NumpyModel:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tokens]
    config = BertConfig(**vars(SHAPE) | {"direction": direction} | fields)
    return draw_model(config, WordPieceTokenizer(vocabulary, cased=False), "mlm")


def train_on(mesh: tuple[int, int, int], corpus, steps: int = 3) -> list[float]:
    """Return the losses of an LSTM on a mesh."""
    names = ("mesh__data", "mesh__fsdp", "mesh__tensor")
    fields = LSTM_LM | dict(zip(names, mesh, strict=True)) | {"model__hidden_dropout_prob": 0}
    config = make_run_config(corpus, **fields, batch_size=16).resolve()
    objective = PretrainingObjective(config)
    functions = StepFunctions(config, objective, jax.devices()[: math.prod(mesh)])
    step, state, results = functions.compile_train_step(), functions.init(), []
    for number in range(steps):
        batch = to_global(
            PretrainingData(corpus, objective.options).batch(number), functions.batch_sharding
        )
        state, sums = step(state, batch, {})
        results.append(means(jax.device_get(sums))["loss"])
    return results


@pytest.mark.slow
def test_losses_of_an_lstm_do_not_depend_on_the_mesh(corpus) -> None:
    one_device = train_on((1, 1, 1), corpus)
    assert one_device[-1] < one_device[0]
    for mesh in ((8, 1, 1), (2, 2, 2)):
        np.testing.assert_allclose(train_on(mesh, corpus), one_device, rtol=1e-5, err_msg=str(mesh))


@pytest.mark.slow
def test_an_lstm_resumes_bit_identical(corpus, tmp_path) -> None:
    config = make_run_config(corpus, **LSTM_LM, steps=8, checkpoint_every=4)
    make_trainer(config, tmp_path / "whole").train()
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "00000008")
    make_trainer(config, tmp_path / "part").train()
    assert losses(tmp_path / "part") == losses(tmp_path / "whole")
    whole = params_of(tmp_path / "whole", config)
    for leaf, other in zip(params_of(tmp_path / "part", config), whole, strict=True):
        np.testing.assert_array_equal(leaf, other)


def configure(task: str, **fields: object) -> Config:
    overrides = {
        "task": task,
        "batch_size": 8,
        "max_seq_length": 16,
        "steps": 2,
        "optimizer.weight_decay": 0,
    }
    overrides |= {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, **fields}
    overrides |= {"model.vocab_size": 32, "model.hidden_size": 16, "model.num_attention_heads": 2}
    overrides |= {"model.num_hidden_layers": 2, "model.num_labels": 3, "model.direction": "pair"}
    return load_config({}, overrides, registry.data_fields()).resolve()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "encoder"), [*((task, "transformer") for task in TASKS), (TASKS[0], "lstm")]
)
def test_every_task_fine_tunes_a_pair_on_a_mesh(task, encoder) -> None:
    features = {"model.feature_layers": "0..-1", "model.feature_mix": "sum"}
    config = configure(
        task, **{"model.encoder": encoder, "model.freeze_features": False}, **features
    )
    functions = StepFunctions(config, registry.make_objective(config, 8), jax.devices())
    shapes = functions.objective.batch_shapes(functions.objective.batch_size)
    batch = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
    batch["input_ids"] = np.random.default_rng(0).integers(5, 32, (8, 16)).astype(np.int32)
    batch["example_ids"] += np.repeat([1, 2], 8)
    batch["position_ids"] += np.tile(np.arange(8), 2)
    for name, array in batch.items():
        if name.endswith("positions") and name != "position_ids":
            array[:, 1] = 8
        if name == "choice_labels":
            array[:, 0] = 1
        if name.endswith("weights"):
            array[:, : 16 if name == "tag_weights" else 2] = 1
    state = functions.init()
    before = jax.device_get(state.params)
    step = functions.compile_train_step()
    for _ in range(2):  # the learning rate of the first step is 0
        state, sums = step(state, to_global(batch, functions.batch_sharding), {})
    assert np.isfinite(means(jax.device_get(sums))["loss"])
    changed = {
        name
        for (name, old), (_, new) in zip(
            named_leaves(before), named_leaves(jax.device_get(state.params)), strict=True
        )
        if (old != new).any()
    }
    for part in PAIR:
        assert any(name.startswith(f"encoder/{part}/blocks") for name in changed)
    assert "features/weights" in changed


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_convert_joins_two_encoders_to_a_pair(kind, tmp_path) -> None:
    models = [draw(direction, encoder=kind) for direction in PAIR]
    pair = join_encoders(dict(zip("lr", models, strict=True)))
    assert pair.config.direction == "pair" and list(pair.params) == ["encoder"]
    for name, model in zip(PAIR, models, strict=True):
        assert_same_params(pair.params["encoder"][name], model.params["encoder"])
    for name, model in zip(PAIR, models, strict=True):
        (tmp_path / name).mkdir()
        write_model(Source(model, "", {}), tmp_path / name, "bertjax")
    sources = [tmp_path / name for name in PAIR]
    convert(sources[0], tmp_path / "pair", "bertjax", "bertjax", sources[1])
    read = read_model(tmp_path / "pair")
    assert read.config == pair.config
    assert_same_params(read.params, pair.params)
    with pytest.raises(InputError, match="only the bertjax format supports it"):
        convert(tmp_path / "pair", tmp_path / "hf", "bertjax", "hf")
    model = bertjax.load(tmp_path / "pair")
    single, packed = model.encode("a b c"), model.encode(["a b c", "d"])
    assert single.shape == (16,) and packed.shape == (2, 16)
    np.testing.assert_allclose(single, packed[0], atol=1e-6)
    assert model.encode([]).shape == (0, 16)
    with pytest.raises(InputError, match="pooling=cls: from left to right"):
        model.encode("a b c", pooling="cls")
    if kind == "lstm":
        with pytest.raises(InputError, match="an LSTM's loop has a fixed length"):
            write_stablehlo(tmp_path / "pair", tmp_path / "program")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ({"direction": PAIR[1]}, {"direction": PAIR[0]}, "l: model.direction=right_to_left. Give"),
        ({}, {"direction": "bidirectional"}, "r: model.direction=bidirectional. Give"),
        ({}, {"num_hidden_layers": 1}, "r: model.num_hidden_layers=1, and 2 in the other"),
        ({}, {"encoder": "lstm"}, "r: model.encoder='lstm', and 'transformer' in the o"),
        ({}, {"tokens": "abce"}, "r: has another vocabulary"),
    ],
)
def test_encoders_that_differ_are_no_pair(left, right, message) -> None:
    models = [
        draw(**{"direction": name} | fields)
        for name, fields in zip(PAIR, (left, right), strict=True)
    ]
    with pytest.raises(InputError, match=message):
        join_encoders(dict(zip("lr", models, strict=True)))


@pytest.mark.seconds
def test_a_pair_does_not_become_bidirectional(tmp_path) -> None:
    pair = join_encoders(dict(zip("lr", map(draw, PAIR), strict=True)))
    write_model(Source(pair, "", {}), tmp_path, "bertjax")
    pretrained = PretrainedModel(tmp_path)
    bert = dataclasses.replace(pair.config, direction="bidirectional")
    with pytest.raises(InputError, match=r"model\.direction='bidirectional': the model at"):
        pretrained.check_compatible(bert, {"encoder": {}, "mlm": {}}, ())


def test_memory_fixes_of_an_lstm_have_no_rematerialization(corpus) -> None:
    config = make_run_config(corpus, **LSTM_LM, batch_size=16).resolve()
    fixes = [override for override, _ in memory_fixes(config, 1, is_cpu=False)]
    assert fixes and not any("remat" in override for override in fixes)


def test_sampled_softmax_has_no_teacher(corpus) -> None:
    config = make_run_config(corpus, **LSTM_LM, distill__teacher="runs/teacher")
    with pytest.raises(InputError, match="sampled_softmax=64: a teacher's logits are those of"):
        PretrainingObjective(config)
