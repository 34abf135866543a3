"""`bertjax export`: what is written runs where only JAX is, at all sizes, and is the same model."""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from conftest import PEERS, process_environment
from documented_commands import ROOT, code_blocks
from test_interface import HEADS, write_model

import bertjax
from bertjax.cli.main import main
from bertjax.model.bert import BertWithHeads

# What somebody runs who has JAX and the two files.
PROGRAM = """
import json, sys
import jax, numpy
from jax import export
about = json.load(open("model.stablehlo.json"))
model = export.deserialize(open("model.stablehlo", "rb").read())
given = numpy.load("inputs.npz")
found = {}
for size in {name.partition("/")[0] for name in given}:
    outputs = model.call(*(given[f"{size}/{each['name']}"] for each in about["inputs"]))
    assert list(outputs) == [each["name"] for each in about["outputs"]], outputs
    found |= {f"{size}/{name}": array for name, array in outputs.items()}
numpy.savez("outputs.npz", **found)
roots = {name.partition(".")[0] for name in sys.modules}
assert not roots & {"bertjax", "data_pipelines", "flax", "tensorflow"}, roots
"""
SIZES = [(1, 5), (3, 17), (8, 32)]


def batches(asks: bool) -> dict[str, dict[str, np.ndarray]]:
    """Of each size texts of some lengths, every other one a pair."""
    draw = np.random.default_rng(0)
    found = {}
    for rows, length in SIZES:
        lengths = draw.integers(3, length + 1, rows)
        lengths[0] = length
        attention_mask = np.arange(length) < lengths[:, None]
        ids = draw.integers(5, 128, (rows, length))
        types = np.arange(length) >= np.where(np.arange(rows) % 2, lengths // 2, length)[:, None]
        batch = {
            "input_ids": ids * attention_mask,
            "token_type_ids": types & attention_mask,
            "attention_mask": attention_mask,
        }
        if asks:
            batch["masked_lm_positions"] = draw.integers(0, lengths[:, None], (rows, rows))
        found[f"{rows}x{length}"] = {n: each.astype(np.int32) for n, each in batch.items()}
    return found


def ours(model: bertjax.Model, heads: tuple[str, ...], batch: dict) -> dict[str, np.ndarray]:
    """What the model itself computes."""
    length = batch["input_ids"].shape[1]
    own = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"]}
    own |= {
        "example_ids": batch["attention_mask"],
        "position_ids": batch["attention_mask"] * np.arange(length),
    }
    own = {name: each.astype(np.int32) for name, each in own.items()}
    heads = tuple(head for head in heads if head != "pooler")
    if not heads:
        return {"last_hidden_state": model.apply(model.params, own)}
    own["cls_positions"] = np.zeros((len(batch["attention_mask"]), 1), np.int32)
    own["masked_lm_positions"] = batch.get("masked_lm_positions", own["cls_positions"])
    found: Any = BertWithHeads(model.config, heads).apply(
        {"params": model.params}, own, deterministic=True
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", HEADS)
def test_program_runs_with_jax_alone(method, tmp_path) -> None:
    source = write_model(tmp_path / "source", method)
    command = ["export", "--checkpoint", source, "--to", "stablehlo"]
    assert main([*map(str, command), "--output", str(tmp_path / "model.stablehlo")]) == 0
    given = batches(method == "fill_mask")
    arrays = {f"{size}/{name}": a for size, batch in given.items() for name, a in batch.items()}
    np.savez(tmp_path / "inputs.npz", **arrays)
    run(sys.executable, PROGRAM, tmp_path)
    found, model = np.load(tmp_path / "outputs.npz"), bertjax.load(source)
    for size, batch in given.items():
        for name, wanted in ours(model, HEADS[method], batch).items():
            got, there = found[f"{size}/{name}"], batch["attention_mask"] > 0
            wanted = np.asarray(wanted)
            if name in (
                "last_hidden_state",
                "question_answering_logits",
                "token_classification_logits",
            ):  # padding is nobody's
                got, wanted = got[there], wanted[there]
            np.testing.assert_allclose(got, wanted.reshape(got.shape), atol=1e-5, rtol=1e-5)
    about = json.loads((tmp_path / "model.stablehlo.json").read_text())
    assert about["labels"] == list(model.labels) and about["max_position_embeddings"] == 32
    assert about["platforms"] == ["cpu", "cuda", "rocm", "tpu"]


def example(word: str) -> str:
    """The program of the documents that has a word in it."""
    page = (ROOT / "docs" / "serving.md").read_text()
    (found,) = [text for kind, text in code_blocks(page) if kind == "python" and word in text]
    return found


def run(python: str, program: str, folder: pathlib.Path) -> str:
    """What a program prints in a process that knows nothing of this clone."""
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
    told = capsys.readouterr().out
    assert "input_ids [b, t], token_type_ids [b, t], mask [b, t]\n" in told
    assert "outputs: sequence_classification_logits [b, 3]" in told
    labels = bertjax.load(source).labels
    said = run(sys.executable, example("jax"), tmp_path).split()
    assert said and {*said} <= {*labels}


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
    printed = run(WITH_ONNX[0], example("onnxruntime"), tmp_path)
    found = [float(line) for line in printed.splitlines() if re.fullmatch(r"[\d.e+-]+", line)]
    assert len(found) == 2 and max(found) < 1e-4, printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--output", "."], ".: is a directory. Name a file in it"),
        (["--output", "no/file"], "no/file: no is not a directory"),
        (["--output", "file"], "runs/none: does not exist"),
    ],
)
def test_export_rejects_invalid_arguments(refused, tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    command = ["export", "--checkpoint", "runs/none", "--to", "stablehlo"]
    assert complaint in refused(*command, *arguments)
    assert not [*tmp_path.iterdir()]
