"""`bertjax export --to stablehlo`: the program runs with JAX alone, at all sizes."""

import json
import sys

import pytest
from conftest import in_test_all
from exported_models import check_export, documented_program, run
from test_interface import HEADS, write_model

import bertjax
from bertjax.cli.main import main

LOAD = """
import json
from jax import export
signature = json.load(open("model.stablehlo.json"))
model = export.deserialize(open("model.stablehlo", "rb").read())
def call(arrays):
    outputs = model.call(*(arrays[spec["name"]] for spec in signature["inputs"]))
    assert list(outputs) == [spec["name"] for spec in signature["outputs"]], outputs
    return outputs
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fill_mask", *in_test_all(*[name for name in HEADS if name != "fill_mask"])]
)
def test_program_runs_with_jax_alone(method, tmp_path) -> None:
    source = write_model(tmp_path / "source", method)
    command = ["export", "--checkpoint", source, "--to", "stablehlo"]
    assert main([*map(str, command), "--output", str(tmp_path / "model.stablehlo")]) == 0
    check_export(method, source, tmp_path, LOAD, "'tensorflow'")
    signature = json.loads((tmp_path / "model.stablehlo.json").read_text())
    assert signature["labels"] == list(bertjax.load(source).labels)
    assert signature["max_position_embeddings"] == signature["max_seq_length"] == 32
    assert signature["platforms"] == ["cpu", "cuda", "rocm", "tpu"]


@pytest.mark.slow
def test_documented_example_runs(tmp_path, capsys) -> None:
    source = write_model(tmp_path / "source", "classify")
    command = ["export", "--checkpoint", source, "--to", "stablehlo"]
    assert main([*map(str, command), "--output", str(tmp_path / "moods.stablehlo")]) == 0
    summary = capsys.readouterr().out
    assert "input_ids [b, t], token_type_ids [b, t], attention_mask [b, t]\n" in summary
    assert "outputs: sequence_classification_logits [b, 3]" in summary
    labels = bertjax.load(source).labels
    answers = run(sys.executable, documented_program("from jax import export"), tmp_path).split()
    assert answers and {*answers} <= {*labels}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "."], ".: is a directory. Name a file in it"),
        (["--output", "no/file"], "no/file: no is not a directory"),
        (["--output", "file"], "runs/none: does not exist"),
    ],
)
def test_export_rejects_invalid_arguments(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    command = ["export", "--checkpoint", "runs/none", "--to", "stablehlo"]
    assert message in refused(*command, *arguments)
    assert not [*tmp_path.iterdir()]
