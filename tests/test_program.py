"""Models to export: an unknown head, or another task, is an error and nothing is lost."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy
from model_files import draw, write_hf

from bertjax.inference.convert import convert
from bertjax.inference.export.program import load_source, make_program, signature_inputs
from data_pipelines.errors import InputError


def add_head(path: pathlib.Path) -> pathlib.Path:
    """Add the arrays of a head to a directory that no task of bertjax has."""
    file = path / "model.safetensors"
    arrays = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file(arrays | {"humor.weight": np.ones((2, 64), np.float32)}, file)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(), ("mlm",)])
def test_load_source_rejects_an_unknown_head(heads, tmp_path) -> None:
    path = add_head(write_hf(draw(*heads), tmp_path / "hf"))
    with pytest.raises(InputError) as error:
        load_source(path)
    assert f"{path}: the head of humor.weight is unknown and would be lost. Add" in str(error.value)
    # As the message says, a conversion leaves it out.
    convert(path, tmp_path / "ours", "hf", "bertjax")
    assert load_source(tmp_path / "ours").heads == heads


@pytest.mark.seconds
def test_load_source_infers_a_task_for_heads_alone(tmp_path) -> None:
    encoder = load_source(write_hf(draw("pooler"), tmp_path / "encoder"))
    assert encoder.config is None and encoder.heads == ()
    model = load_source(write_hf(draw("mlm"), tmp_path / "mlm"))
    assert model.config is not None and model.config.task == "pretraining"
    assert model.heads == ("mlm",)


@pytest.mark.seconds
def test_load_source_rejects_a_task_without_the_heads(tmp_path) -> None:
    path = write_hf(draw("mlm"), tmp_path / "mlm")
    with pytest.raises(InputError, match="model with encoder, mlm: no task has these heads"):
        load_source(path, "question_answering")


@pytest.mark.seconds
def test_make_program_rejects_missing_heads(tmp_path) -> None:
    source = load_source(write_hf(draw("pooler", "mlm", "nsp"), tmp_path / "model"))
    params = {name: part for name, part in source.model.params.items() if name != "nsp"}
    model = dataclasses.replace(source.model, params=params)
    with pytest.raises(InputError, match=r"^model: has no NSP head\. Train it with init\.$"):
        make_program(source._replace(model=model), "model")


def test_inputs_of_a_masked_lm_have_positions() -> None:
    names = [spec.name for spec in signature_inputs(["mlm", "nsp"])]
    assert names == ["input_ids", "token_type_ids", "attention_mask", "masked_lm_positions"]
    assert [spec.name for spec in signature_inputs(["nsp"])] == names[:3]


@pytest.mark.seconds
def test_examples_for_tensorboard_are_no_output(tmp_path) -> None:
    source = load_source(write_hf(draw("mlm"), tmp_path / "model"))
    config = dataclasses.replace(source.config, tensorboard="examples")
    program = make_program(source._replace(config=config), "model")
    arrays = [jax.ShapeDtypeStruct((2, 8), np.int32) for _ in program.inputs]
    outputs = jax.eval_shape(program.run, source.model.params, *arrays)
    assert {name: x.shape for name, x in outputs.items()} == {"mlm_logits": (2, 8, 40)}


@pytest.mark.seconds
def test_an_encoder_returns_float32_in_any_precision(tmp_path) -> None:
    source = load_source(write_hf(draw("pooler"), tmp_path / "model"))
    config = dataclasses.replace(source.model.config, dtype="bfloat16")
    source = source._replace(model=dataclasses.replace(source.model, config=config))
    program = make_program(source, "model")
    outputs = jax.eval_shape(program.run, source.model.params, *program.arguments)
    assert {name: x.dtype for name, x in outputs.items()} == {"last_hidden_state": np.float32}
