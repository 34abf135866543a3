"""`bertjax export --to stablehlo`: the program runs with JAX alone, at all sizes."""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import PEERS, in_test_all, process_environment
from documented_commands import ROOT, code_blocks
from test_interface import HEADS, write_model

import bertjax
from bertjax.cli.main import main
from bertjax.model.bert import BertWithHeads

# A program of a user who has JAX and the two files.
PROGRAM = """
import json, sys
import jax, numpy
from jax import export
signature = json.load(open("model.stablehlo.json"))
model = export.deserialize(open("model.stablehlo", "rb").read())
inputs = numpy.load("inputs.npz")
arrays = {}
for size in {name.partition("/")[0] for name in inputs}:
    outputs = model.call(*(inputs[f"{size}/{spec['name']}"] for spec in signature["inputs"]))
    assert list(outputs) == [spec["name"] for spec in signature["outputs"]], outputs
    arrays |= {f"{size}/{name}": array for name, array in outputs.items()}
numpy.savez("outputs.npz", **arrays)
roots = {name.partition(".")[0] for name in sys.modules}
assert not roots & {"bertjax", "data_pipelines", "flax", "tensorflow"}, roots
"""
SIZES = [(1, 5), (3, 17), (8, 32)]
TOKEN_OUTPUTS = ("last_hidden_state", "question_answering_logits", "token_classification_logits")
SPAN_OUTPUT = "answer_spans_logits"  # spans of 1, 2, ... tokens from each token


def draw_batches(with_masks: bool) -> dict[str, dict[str, np.ndarray]]:
    """Return a batch for each of SIZES; every other text is a pair."""
    draw = np.random.default_rng(0)
    batches = {}
    for batch_size, length in SIZES:
        lengths = draw.integers(3, length + 1, batch_size)
        lengths[0] = length
        attention_mask = np.arange(length) < lengths[:, None]
        ids = draw.integers(5, 128, (batch_size, length))
        ends = np.where(np.arange(batch_size) % 2, lengths // 2, length)
        types = np.arange(length) >= ends[:, None]
        batch = {
            "input_ids": ids * attention_mask,
            "token_type_ids": types & attention_mask,
            "attention_mask": attention_mask,
        }
        if with_masks:
            shape = batch_size, batch_size
            batch["masked_lm_positions"] = draw.integers(0, lengths[:, None], shape)
        batches[f"{batch_size}x{length}"] = {n: a.astype(np.int32) for n, a in batch.items()}
    return batches


def apply_model(model: bertjax.Model, heads: tuple[str, ...], batch: dict) -> dict[str, np.ndarray]:
    """Return the outputs of the model before its export."""
    length = batch["input_ids"].shape[1]
    inputs = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    inputs |= {
        "example_ids": batch["attention_mask"],
        "position_ids": batch["attention_mask"] * np.arange(length),
    }
    inputs = {name: array.astype(np.int32) for name, array in inputs.items()}
    heads = tuple(head for head in heads if head != "pooler")
    if not heads:
        return {"last_hidden_state": model.apply(model.params, inputs)}
    inputs["cls_positions"] = np.zeros((len(batch["attention_mask"]), 1), np.int32)
    inputs["masked_lm_positions"] = batch.get("masked_lm_positions", inputs["cls_positions"])
    outputs: Any = BertWithHeads(model.config, heads).apply(
        {"params": model.params}, inputs, deterministic=True
    )
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fill_mask", *in_test_all(*[name for name in HEADS if name != "fill_mask"])]
)
def test_program_runs_with_jax_alone(method, tmp_path) -> None:
    source = write_model(tmp_path / "source", method)
    command = ["export", "--checkpoint", source, "--to", "stablehlo"]
    assert main([*map(str, command), "--output", str(tmp_path / "model.stablehlo")]) == 0
    batches = draw_batches(method == "fill_mask")
    arrays = {f"{size}/{name}": a for size, batch in batches.items() for name, a in batch.items()}
    np.savez(tmp_path / "inputs.npz", **arrays)
    run(sys.executable, PROGRAM, tmp_path)
    outputs, model = np.load(tmp_path / "outputs.npz"), bertjax.load(source)
    for size, batch in batches.items():
        for name, expected in apply_model(model, HEADS[method], batch).items():
            output, expected = outputs[f"{size}/{name}"], np.asarray(expected)
            if name in TOKEN_OUTPUTS:  # padding may differ
                real = batch["attention_mask"] > 0
                output, expected = output[real], expected[real]
            if name == SPAN_OUTPUT:
                shifts, length = range(expected.shape[-1]), batch["attention_mask"].shape[1]
                padded = np.pad(batch["attention_mask"], ((0, 0), (0, len(shifts))))
                ends = np.stack([padded[:, i : i + length] for i in shifts], axis=-1)
                output, expected = output[ends > 0], expected[ends > 0]
            np.testing.assert_allclose(output, expected.reshape(output.shape), atol=1e-5, rtol=1e-5)
    signature = json.loads((tmp_path / "model.stablehlo.json").read_text())
    assert signature["labels"] == list(model.labels)
    assert signature["max_position_embeddings"] == 32
    assert signature["platforms"] == ["cpu", "cuda", "rocm", "tpu"]


def documented_program(word: str) -> str:
    """Return the program of docs/serving.md that contains a word."""
    page = (ROOT / "docs" / "serving.md").read_text()
    (program,) = [
        block for language, block in code_blocks(page) if language == "python" and word in block
    ]
    return program


def run(python: str, program: str, folder: pathlib.Path) -> str:
    """Return the output of a program in a process that cannot import this repository."""
    done = subprocess.run(
        [python, "-I", "-c", program],
        env=process_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_documented_example_runs(tmp_path, capsys) -> None:
    source = write_model(tmp_path / "source", "classify")
    command = ["export", "--checkpoint", source, "--to", "stablehlo"]
    assert main([*map(str, command), "--output", str(tmp_path / "moods.stablehlo")]) == 0
    summary = capsys.readouterr().out
    assert "input_ids [b, t], token_type_ids [b, t], attention_mask [b, t]\n" in summary
    assert "outputs: sequence_classification_logits [b, 3]" in summary
    labels = bertjax.load(source).labels
    answers = run(sys.executable, documented_program("jax"), tmp_path).split()
    assert answers and {*answers} <= {*labels}


WITH_ONNX = [
    python
    for python in PEERS
    if not subprocess.run(
        [python, "-c", "import onnxruntime, onnxscript"], stderr=subprocess.DEVNULL
    ).returncode
]


@pytest.mark.slow
@pytest.mark.skipif(not WITH_ONNX, reason="needs BERTJAX_PEERS, one of them with onnxruntime")
@pytest.mark.parametrize("method", ["fill_mask", "answer", "classify", "tag", "encode"])
def test_onnx_by_way_of_hf_matches_pytorch(method, tmp_path) -> None:
    write_model(tmp_path / "exported-moods", method)
    output = run(WITH_ONNX[0], documented_program("onnxruntime"), tmp_path)
    differences = [float(line) for line in output.splitlines() if re.fullmatch(r"[\d.e+-]+", line)]
    assert len(differences) == 2 and max(differences) < 1e-4, output


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
