"""Programs that run exported models in processes of their own, and the outputs they must have."""

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
from conftest import process_environment
from documented_commands import ROOT, code_blocks
from test_interface import HEADS

import bertjax
from bertjax.model.bert import BertWithHeads

SIZES = [(1, 5), (3, 17), (8, 32)]
TOKEN_OUTPUTS = ("last_hidden_state", "question_answering_logits", "token_classification_logits")
SPAN_OUTPUT = "answer_spans_logits"  # spans of 1, 2, ... tokens from each token
# A user's program, between the lines that load a model as `call`, a function of arrays by name to
# outputs by name, and that name the libraries it may not need.
_PROGRAM = """
import sys, numpy
{load}
inputs, outputs = numpy.load("inputs.npz"), {{}}
for size in sorted({{name.partition("/")[0] for name in inputs}}):
    arrays = {{n.partition("/")[2]: inputs[n] for n in inputs if n.startswith(f"{{size}}/")}}
    outputs |= {{f"{{size}}/{{name}}": numpy.asarray(x) for name, x in call(arrays).items()}}
numpy.savez("outputs.npz", **outputs)
roots = {{name.partition(".")[0] for name in sys.modules}}
assert not roots & {{"bertjax", "data_pipelines", "flax", {unneeded}}}, roots
"""


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


def check_export(
    method: str, source: pathlib.Path, folder: pathlib.Path, load: str, unneeded: str
) -> None:
    """Check the outputs of an export in `folder`, in a process without bertjax, at all SIZES.

    Args:
      method: key of `test_interface.HEADS`.
      source: model before its export.
      folder: directory in which `load` finds the export.
      load: code that defines `call`.
      unneeded: names of libraries, in quotes, that the process must not import.
    """
    batches = draw_batches(method == "fill_mask")
    arrays = {f"{size}/{name}": a for size, batch in batches.items() for name, a in batch.items()}
    np.savez(folder / "inputs.npz", **arrays)
    run(sys.executable, _PROGRAM.format(load=load, unneeded=unneeded), folder)
    outputs, model = np.load(folder / "outputs.npz"), bertjax.load(source)
    expected_names = set()
    for size, batch in batches.items():
        for name, expected in apply_model(model, HEADS[method], batch).items():
            expected_names.add(f"{size}/{name}")
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
    assert {*outputs} == expected_names


def documented_program(word: str) -> str:
    """Return the program of docs/serving.md that contains a word."""
    page = (ROOT / "docs" / "serving.md").read_text()
    (program,) = [
        block for language, block in code_blocks(page) if language == "python" and word in block
    ]
    return program


def run(python: str, program: str, folder: pathlib.Path, *arguments: object) -> str:
    """Return the output of a program in a process that cannot import this repository."""
    done = subprocess.run(
        [python, "-I", "-c", program, *map(str, arguments)],
        env=process_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
