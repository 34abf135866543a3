"""`bertjax export --to onnx`: onnxruntime alone runs it, at all sizes, as PyTorch would."""

import dataclasses
import functools
import json
import pathlib
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from conftest import PEERS, in_test_all
from exported_models import check_export, documented_program, draw_batches, run
from model_files import CONFIG, draw, write_hf
from random_models import draw_model
from test_interface import LABELS, SHAPE, write_model

from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.export import onnx_model
from bertjax.inference.export.onnx_model import write_onnx
from bertjax.inference.export.program import Source, make_batch
from bertjax.model import heads
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.layers import ACTIVATIONS
from bertjax.tasks.finetuning import FinetuningObjective
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import load_tokenizer

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from bertjax.inference.export.onnx_graph import make_onnx_model  # noqa: E402 (imports onnx)

METHODS = ["fill_mask", "answer", "classify", "tag", "choose", "encode"]  # `transformers` has them
LOAD = """
import onnxruntime
session = onnxruntime.InferenceSession("exported/model.onnx")
names = [output.name for output in session.get_outputs()]
def call(arrays):
    arrays = {name: array.astype("int64") for name, array in arrays.items()}
    return dict(zip(names, session.run(None, arrays), strict=True))
"""
# A program of PyTorch: the outputs of a directory of Hugging Face, of all masked positions.
TORCH = """
import sys, numpy, torch, transformers
directory, kind = sys.argv[1:]
model = getattr(transformers, kind).from_pretrained(directory, return_dict=False).eval()
inputs, outputs = numpy.load("inputs.npz"), {}
for size in {name.partition("/")[0] for name in inputs}:
    names = {name.partition("/")[2]: name for name in inputs if name.startswith(f"{size}/")}
    arrays = {name: torch.tensor(inputs[names[name]]).long() for name in names}
    positions = arrays.pop("masked_lm_positions", None)
    if "MultipleChoice" in kind:
        arrays = {name: array[:, None] for name, array in arrays.items()}
    with torch.no_grad():
        output, *others = model(**arrays)
    if positions is not None:
        output = output[torch.arange(len(positions))[:, None], positions]
    if "QuestionAnswering" in kind:
        output = torch.stack((output, *others), axis=-1)
    outputs[size] = output.numpy()
numpy.savez("torch.npz", **outputs)
"""


def start(model: NumpyModel, config: Config | None = None) -> Any:
    """Return the session of a model's graph."""
    proto, _ = make_onnx_model(Source(model, config))
    return onnxruntime.InferenceSession(proto.SerializeToString())


def as_inputs(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.int64) for name, array in batch.items()}


def test_graph_passes_the_checker_and_declares_its_arrays() -> None:
    model = draw_model(SHAPE, None, "pooler", "mlm", "nsp", "token_classification")
    model = dataclasses.replace(model, max_seq_length=16)
    proto, signature = make_onnx_model(Source(model, None))
    assert [(x.key, x.value) for x in proto.metadata_props] == [("max_seq_length", "16")]
    onnx.checker.check_model(proto, full_check=True)
    assert [(x.domain, x.version) for x in proto.opset_import] == [("", 20)]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for arrays, specs in zip((session.get_inputs(), session.get_outputs()), signature, strict=True):
        assert [(x.name, tuple(x.shape)) for x in arrays] == [x[:2] for x in specs]
    shapes = {x.name: x.shape for x in session.get_outputs()}
    assert shapes["mlm_logits"] == ["b", "m", 128] and shapes["nsp_logits"] == ["b", 2]
    assert shapes["token_classification_logits"] == ["b", "t", 3]
    batch = as_inputs(draw_batches(with_masks=True)["3x17"])
    for x, output in zip(session.get_outputs(), session.run(None, batch), strict=True):
        sizes = {"b": 3, "t": 17, "m": 3}
        assert output.shape == tuple(sizes.get(size, size) for size in x.shape)


def test_tokens_do_not_depend_on_padding_and_other_texts() -> None:
    session = start(draw_model(SHAPE, None))
    batch = as_inputs(draw_batches(with_masks=False)["3x17"])
    (hidden,) = session.run(None, batch)
    garbage = np.random.default_rng(1).integers(5, 128, (3, 32))
    padded = {name: np.pad(array, ((0, 0), (0, 15))) for name, array in batch.items()}
    padded["input_ids"] = np.where(padded["attention_mask"] > 0, padded["input_ids"], garbage)
    (other,) = session.run(None, padded)
    for i, length in enumerate(batch["attention_mask"].sum(axis=1)):
        np.testing.assert_allclose(other[i, :length], hidden[i, :length], atol=1e-5)
        alone = {name: array[i : i + 1, :length] for name, array in batch.items()}
        np.testing.assert_allclose(session.run(None, alone)[0][0], hidden[i, :length], atol=1e-5)


def test_texts_longer_than_the_model_and_unknown_tokens_are_rejected() -> None:
    session = start(draw_model(SHAPE, None))
    ones = np.ones((1, 33), np.int64)
    for arrays in ((ones, ones), (128 * ones[:, :32], ones[:, :32])):
        inputs = dict(zip(("input_ids", "attention_mask"), arrays, strict=True))
        with pytest.raises(Exception, match=r"axis|out of data bounds"):
            session.run(None, inputs | {"token_type_ids": 0 * arrays[1]})


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder": "prefix"}, "model.decoder='prefix'"),
        ({"direction": "left_to_right"}, "model.direction='left_to_right'"),
        ({"direction": "pair"}, "model.direction='pair'"),
        ({"encoder": "lstm", "direction": "right_to_left"}, "model.encoder='lstm'"),
        ({"feature_layers": "0..1"}, "model.feature_layers='0..1'"),
        ({"bilstm": 8}, "model.bilstm=8"),
    ],
)
def test_models_that_onnx_cannot_express_are_rejected(fields, message) -> None:
    model = dataclasses.replace(draw("mlm"), config=dataclasses.replace(CONFIG, **fields))
    with pytest.raises(InputError) as error:
        make_onnx_model(Source(model, None))
    fix = "the ONNX format does not support it. Use --to stablehlo or savedmodel."
    assert str(error.value) == f"{message}: {fix}"


def test_fields_of_training_do_not_matter() -> None:
    fields = {"dtype": "bfloat16", "scan_layers": True, "remat": True, "attention_init": "local"}
    model = draw("mlm")
    others = dataclasses.replace(model.config, hidden_dropout_prob=0.5, **fields)
    expected, _ = make_onnx_model(Source(model, None))
    proto, _ = make_onnx_model(Source(dataclasses.replace(model, config=others), None))
    assert proto == expected


class Perceptron(nn.Module):
    """A head of a user: two layers with LayerNorm, and a part of the mean of all tokens."""

    sorts: bool = False
    reads: str = "example_ids"

    @nn.compact
    def __call__(self, x, batch, word):
        hidden = nn.gelu(nn.Dense(24)(x), approximate=False)
        hidden = nn.LayerNorm()(jnp.sort(hidden) if self.sorts else hidden)
        if x.shape[1] != 1:  # not pooled
            is_token = batch[self.reads][..., None] > 0
            hidden += jnp.mean(hidden, axis=1, where=is_token, keepdims=True)
        return nn.Dense(4)(hidden)


def register(monkeypatch, name: str, **fields: object) -> None:
    """Register a head of several layers, of tokens or of texts."""
    record = heads.HEADS["sequence_classification" if "texts" in name else "token_classification"]
    module = functools.partial(make_perceptron, **fields)
    monkeypatch.setitem(heads.HEADS, name, dataclasses.replace(record, name=name, module=module))


def make_perceptron(config: BertConfig, name: str, **fields: Any) -> Perceptron:
    return Perceptron(**fields, name=name)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["of_tokens", "of_texts"])
def test_heads_of_several_layers_match_bertjax(name: str, monkeypatch) -> None:
    register(monkeypatch, name)
    parts = (name, "answer_boundaries") if name == "of_tokens" else ("pooler", name)
    shape = dataclasses.replace(SHAPE, dtype="bfloat16")  # exports compute in float32
    model = draw_model(shape, None, *parts)
    proto, signature = make_onnx_model(Source(model, None))
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    parts = tuple(part for part in parts if part in heads.HEADS)
    apply = jax.jit(functools.partial(BertWithHeads(SHAPE, parts).apply, deterministic=True))
    for batch in draw_batches(with_masks=False).values():
        arrays = make_batch(signature.inputs, tuple(map(jnp.asarray, batch.values())))
        expected = apply({"params": model.params}, arrays)
        outputs = dict(zip(expected, session.run([*expected], as_inputs(batch)), strict=True))
        real = batch["attention_mask"] > 0
        for head in parts:
            output, logits = outputs[f"{head}_logits"], np.asarray(expected[f"{head}_logits"])
            if head == "of_texts":
                logits = logits[:, 0]
            elif head == "of_tokens":
                output, logits = output[real], logits[real]
            else:  # spans of one token
                output, logits = output[real][:, 0], logits[real][:, 0]
            np.testing.assert_allclose(output, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.seconds
def test_operations_and_arrays_of_heads_that_onnx_lacks_are_rejected(monkeypatch) -> None:
    register(monkeypatch, "sorted", sorts=True)
    register(monkeypatch, "labels", reads="token_labels")
    for name, message in (
        ("sorted", "^head 'sorted': operation sort: the ONNX format does not support it. Use --to"),
        ("labels", "^array 'token_labels': a head reads it of a batch, and an export has not got"),
    ):
        with pytest.raises(InputError, match=message):
            make_onnx_model(Source(draw_model(SHAPE, None, name), None))


def test_unknown_parameters_and_objectives_are_rejected(monkeypatch) -> None:
    model = draw("mlm")
    model.params["encoder"]["blocks"]["adapter"] = {"kernel": np.zeros((2, 64, 8), np.float32)}
    with pytest.raises(InputError, match=r"^module 'encoder/blocks/adapter': the ONNX format"):
        make_onnx_model(Source(model, None))

    class Task:
        class Objective(FinetuningObjective):  # type: ignore[misc]
            def apply(self, *_: Any) -> Any: ...

        objective_class = Objective

    monkeypatch.setattr("bertjax.tasks.registry.find_task", lambda name: Task)
    with pytest.raises(InputError, match=r"^task='mine:Task': Objective\.apply is not that of b"):
        make_onnx_model(Source(draw("mlm"), Config("mine:Task")))


@pytest.mark.seconds
def test_linear_heads_of_users_are_exported(monkeypatch) -> None:
    record = heads.HEADS["sequence_classification"]
    module = functools.partial(heads.LinearHead, features=4)
    monkeypatch.setitem(
        heads.HEADS, "mood", dataclasses.replace(record, name="mood", module=module)
    )
    session = start(draw_model(SHAPE, None, "pooler", "mood"))
    (output,) = session.get_outputs()
    assert (output.name, output.shape) == ("mood_logits", ["b", 4])


@pytest.mark.seconds
def test_models_above_the_limit_of_a_file_are_rejected(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(onnx_model, "_MAX_PARAM_BYTES", 1000)
    path = write_hf(draw("mlm"), tmp_path / "model")
    with pytest.raises(InputError, match=r"the parameters take [\d,]+ bytes, and a file of ONNX"):
        write_onnx(path, tmp_path / "exported")
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fill_mask", "extract_answers", *in_test_all(*METHODS[1:])])
def test_onnx_model_runs_with_onnxruntime_alone(method, tmp_path) -> None:
    source = write_model(tmp_path / "source", method)
    command = ["export", "--checkpoint", source, "--to", "onnx", "--output", tmp_path / "exported"]
    assert main([*map(str, command)]) == 0
    check_export(method, source, tmp_path, LOAD, "'jax', 'tensorflow'")
    tokenizer = load_tokenizer(tmp_path / "exported")
    assert tokenizer.fingerprint() == toy_tasks.TOKENIZER.fingerprint()


@pytest.mark.slow
@pytest.mark.parametrize("hidden_act", [name for name in ACTIVATIONS if name != "gelu"])
def test_activations_match_bertjax(hidden_act, tmp_path) -> None:
    shape = dataclasses.replace(SHAPE, hidden_act=hidden_act)
    source = write_hf(draw_model(shape, toy_tasks.TOKENIZER, "mlm"), tmp_path / "source")
    write_onnx(source, tmp_path / "exported")
    check_export("fill_mask", source, tmp_path, LOAD, "'jax', 'tensorflow'")


@pytest.mark.slow
def test_documented_example_runs(tmp_path, capsys) -> None:
    source, exported = write_model(tmp_path / "source", "classify"), tmp_path / "moods-onnx"
    command = ["export", "--checkpoint", source, "--to", "onnx", "--output", exported]
    assert main([*map(str, command)]) == 0
    summary = capsys.readouterr().out
    assert "input_ids [b, t], token_type_ids [b, t], attention_mask [b, t]\n" in summary
    assert "outputs: sequence_classification_logits [b, 3]" in summary
    config = json.loads((exported / "config.json").read_text())
    assert huggingface.read_labels(config, exported) == LABELS["classify"]
    lines = run(sys.executable, documented_program("onnxruntime"), tmp_path).splitlines()
    assert lines and {line.rpartition(" ")[2] for line in lines} <= {*LABELS["classify"]}


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="needs BERTJAX_PEERS")
@pytest.mark.parametrize("method", ["fill_mask", *in_test_all(*METHODS[1:])])
def test_onnx_model_matches_pytorch(method: str, tmp_path: pathlib.Path) -> None:
    source = write_model(tmp_path / "source", method)
    write_onnx(source, tmp_path / "exported")
    session = onnxruntime.InferenceSession(str(tmp_path / "exported" / "model.onnx"))
    (kind,) = json.loads((source / "config.json").read_text())["architectures"]
    batches = draw_batches(method == "fill_mask")
    # And with padding on the left, as of some tokenizers.
    flipped = {
        f"{size} flipped": {name: np.flip(array, axis=1) for name, array in batch.items()}
        for size, batch in batches.items()
    }
    batches |= flipped
    arrays = {f"{size}/{name}": a for size, batch in batches.items() for name, a in batch.items()}
    np.savez(tmp_path / "inputs.npz", **arrays)  # type: ignore[arg-type]
    run(PEERS[0], TORCH, tmp_path, source, kind)
    outputs = np.load(tmp_path / "torch.npz")
    for size, batch in batches.items():
        (output,) = session.run(None, as_inputs(batch))
        expected = outputs[size].reshape(output.shape)
        np.testing.assert_allclose(output, expected, atol=1e-5, rtol=1e-5)
