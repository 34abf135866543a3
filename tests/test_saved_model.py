"""`bertjax export --to savedmodel`: TensorFlow alone runs it, at all sizes."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from conftest import in_test_all
from exported_models import check_export, documented_program, run
from jax import export
from jax.extend.mlir.dialects import stablehlo
from test_interface import HEADS, LABELS, write_model

from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.inference.export import saved_model
from bertjax.inference.export.program import ArraySpec, Signature
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer

LOAD = """
import tensorflow as tf
serve = tf.saved_model.load("exported").signatures["serving_default"]
def call(arrays):
    return serve(**{name: tf.constant(array) for name, array in arrays.items()})
"""


def export_erf() -> export.Exported:
    """Return an exported function with a composite operation."""
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2"), jnp.float32)
    return export.export(jax.jit(lambda x: {"y": jax.lax.erf(x)}))(shape)


def test_serialized_programs_have_calls_in_place_of_composites() -> None:
    exported = export_erf()
    assert "stablehlo.composite" in exported.mlir_module()
    program = saved_model._serialize(exported)
    assert b"StableHLO_v1.10.0" in program
    text = stablehlo.deserialize_portable_artifact_str(program)
    assert b"chlo.erf.impl" in text and b"stablehlo.composite" not in text


@pytest.mark.slow  # imports TensorFlow
def test_tensorflow_that_reads_no_program_of_this_jax_is_rejected(tmp_path, monkeypatch) -> None:
    xla = pytest.importorskip("tensorflow.compiler.tf2xla.python.xla")
    monkeypatch.setattr(xla, "call_module_maximum_supported_version", lambda: 6)
    signature = Signature((ArraySpec("x", ("b", 2)),), (ArraySpec("y", ("b", 2)),))
    with pytest.raises(InputError, match=r"^tensorflow=\S+ runs JAX's programs up to .* 6, and"):
        saved_model._save(export_erf(), {}, signature, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fill_mask", *in_test_all(*[name for name in HEADS if name != "fill_mask"])]
)
def test_saved_model_runs_with_tensorflow_alone(method, tmp_path) -> None:
    source = write_model(tmp_path / "source", method)
    command = ["export", "--checkpoint", source, "--to", "savedmodel"]
    assert main([*map(str, command), "--output", str(tmp_path / "exported")]) == 0
    check_export(method, source, tmp_path, LOAD, "'torch'")
    tokenizer = load_tokenizer(tmp_path / "exported")
    assert tokenizer.fingerprint() == toy_tasks.TOKENIZER.fingerprint()


@pytest.mark.slow
def test_documented_example_runs(tmp_path, capsys) -> None:
    source, exported = write_model(tmp_path / "source", "classify"), tmp_path / "moods-savedmodel"
    command = ["export", "--checkpoint", source, "--to", "savedmodel", "--output", exported]
    assert main([*map(str, command)]) == 0
    assert "outputs: sequence_classification_logits [b, 3]" in capsys.readouterr().out
    config = json.loads((exported / "config.json").read_text())
    assert huggingface.read_labels(config, exported) == LABELS["classify"]
    lines = run(sys.executable, documented_program("tensorflow"), tmp_path).splitlines()
    assert lines and {line.rpartition(" ")[2] for line in lines} <= {*LABELS["classify"]}
    assert main([*map(str, command)]) == 2
    assert f"{exported}: exists. Name another --output" in capsys.readouterr().err


@pytest.mark.slow
def test_texts_longer_than_the_model_are_rejected(tmp_path) -> None:
    tf = pytest.importorskip("tensorflow")
    source = write_model(tmp_path / "source", "encode", max_length=8)
    saved_model.write_saved_model(source, tmp_path / "exported")
    serve = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    names = ("input_ids", "token_type_ids", "attention_mask")
    for length in (8, 9):
        arrays = {name: tf.ones((1, length), tf.int32) for name in names}
        if length == 8:
            assert np.isfinite(serve(**arrays)["last_hidden_state"]).all()
            continue
        with pytest.raises(tf.errors.InvalidArgumentError, match="t <= 8"):
            serve(**arrays)
