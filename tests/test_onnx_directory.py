"""Exports to ONNX predict in bertjax as the model does, with int8 weights nearly so."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_tasks
from exported_models import draw_batches
from model_files import write_hf
from random_models import draw_model
from run_outputs import answers_of, assert_equal_answers
from test_interface import ARGUMENTS, LABELS, SHAPE, call, write_model

import bertjax
from bertjax.cli.main import main
from bertjax.formats.sentence_transformers import find_pooling_config, write_modules
from bertjax.formats.tensors import PoolingConfig
from bertjax.inference.onnx_runner import OnnxRunner
from bertjax.serving.models import find_version
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from bertjax.inference.export import quantization  # noqa: E402 (imports onnx)
from bertjax.inference.export.onnx_model import write_onnx  # noqa: E402 (imports onnx)
from bertjax.inference.onnx_directory import OnnxModel  # noqa: E402

WORDS = ["ba", "do", "ki", "lu", "me"]


def export(path: pathlib.Path, method: str, *options: str) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the directory of a model and that of its export."""
    source, exported = write_model(path / "source", method), path / "exported"
    command = ["export", "--checkpoint", source, "--to", "onnx", "--output", exported, *options]
    assert main([*map(str, command)]) == 0
    return source, exported


def draw_inputs(method: str) -> list[Any]:
    """Return inputs of all lengths, several of which share a sequence."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 20))) for _ in range(40)]
    if method == "answer":
        return [{"question": "ba?", "context": text} for text in texts]
    if method == "choose":
        return [{"context": "ba", "choices": [" ".join(text.split()[:4]), "me"]} for text in texts]
    return [f"[MASK] {text} [MASK]" for text in texts] if method == "fill_mask" else texts


@pytest.mark.slow
@pytest.mark.parametrize("method", ARGUMENTS)
def test_answers_are_those_of_the_model(method: str, tmp_path) -> None:
    source, exported = export(tmp_path, method)
    model, onnx_model = bertjax.load(source), bertjax.load(exported)
    inputs = draw_inputs(method)
    assert_equal_answers(model.predict(inputs, True), onnx_model.predict(inputs, True))
    assert call(onnx_model, method).keys() == call(model, method).keys()
    assert onnx_model.labels == model.labels and onnx_model.params is None
    if method == "classify":
        assert_equal_answers(answers_of(source, ["ba do"]), answers_of(exported, ["ba do"]))
        with pytest.raises(InputError, match="has embeddings of texts, from its last layer, if it"):
            onnx_model.encode("ba")
        with pytest.raises(InputError, match="Call classify"):
            onnx_model.fill_mask("[MASK]")


@pytest.mark.seconds
def test_texts_that_share_a_sequence_have_the_outputs_of_texts_alone(tmp_path) -> None:
    path = write_hf(draw_model(SHAPE, toy_tasks.TOKENIZER, "mlm", "token_classification"), tmp_path)
    write_onnx(path, tmp_path / "exported")
    run = OnnxRunner((tmp_path / "exported" / "model.onnx").read_bytes(), "model.onnx")
    alone = draw_batches(with_masks=True)["3x17"]
    lengths = alone["attention_mask"].sum(axis=1)
    is_token = alone["attention_mask"] > 0
    batch = {name: alone[name][is_token][None] for name in ("input_ids", "token_type_ids")}
    batch["example_ids"] = np.repeat([1, 2, 3], lengths)[None]
    starts = np.cumsum(lengths) - lengths
    positions = (alone["masked_lm_positions"] + starts[:, None]).reshape(1, -1)
    # Slots need not be in the order of the texts.
    order = np.random.default_rng(0).permutation(positions.size)
    batch["masked_lm_positions"] = positions[:, order]
    batch["cls_positions"] = starts[None]
    (shared,) = run([batch])
    alone["example_ids"] = alone.pop("attention_mask")
    alone["cls_positions"] = np.zeros((3, 1), np.int32)
    (expected,) = run([alone])
    name = "token_classification_logits"
    np.testing.assert_allclose(shared[name][0], expected[name][is_token], atol=1e-5)
    logits = expected["mlm_logits"].reshape(positions.size, -1)[order]
    np.testing.assert_allclose(shared["mlm_logits"][0], logits, atol=1e-5)


@pytest.fixture
def encoder(tmp_path) -> pathlib.Path:
    """A directory of sentence-transformers with a prompt, for a lower-cased encoder."""
    path = write_hf(draw_model(SHAPE, toy_tasks.TOKENIZER), tmp_path / "encoder")
    pooling = PoolingConfig(path, "cls", True, 12, do_lower_case=True, prompt="ba ")
    draw = np.random.default_rng(0)
    projection = {"kernel": draw.normal(size=(32, 24)), "bias": draw.normal(size=24)}
    projection = {name: array.astype(np.float32) for name, array in projection.items()}
    write_modules(path, pooling, SHAPE.hidden_size, projection)
    return path


@pytest.mark.seconds
def test_embeddings_are_those_of_the_encoder(encoder, tmp_path) -> None:
    write_onnx(encoder, tmp_path / "exported")
    model, onnx_model = bertjax.load(encoder), bertjax.load(tmp_path / "exported")
    texts = draw_inputs("encode")
    assert onnx_model.encode("ba").shape == (24,)
    for options in ({}, {"pooling": "max"}, {"pooling": "mean", "normalize": True}):
        expected = model.encode(texts, **options)
        np.testing.assert_allclose(onnx_model.encode(texts, **options), expected, atol=1e-5)
    with pytest.raises(InputError, match="from its last layer"):
        onnx_model.encode("ba", layers=(0,), pooling="mean")


@pytest.mark.seconds
def test_encoders_of_sentence_transformers_predict_embeddings(encoder, tmp_path) -> None:
    with pytest.raises(InputError, match="the model has no head"):  # for its prompt
        bertjax.load(encoder).predict("ba do")
    settings = '{"prompts": {"query": "ki "}}'
    (encoder / "config_sentence_transformers.json").write_text(settings)
    (encoder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    write_onnx(encoder, tmp_path / "exported")
    for path in (encoder, tmp_path / "exported"):
        model = bertjax.load(path)
        answers = model.predict(["ba do", "ba " * 20])
        np.testing.assert_allclose(answers[0]["embedding"], model.encode("ba do"), atol=1e-6)
        assert [answer.get("truncated", False) for answer in answers] == [False, True]


@pytest.mark.seconds
def test_onnxruntime_has_a_thread_for_each_core_of_the_process(encoder, tmp_path) -> None:
    write_onnx(encoder, tmp_path / "onnx")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        runner = OnnxRunner((tmp_path / "onnx" / "model.onnx").read_bytes(), "model.onnx")
    finally:
        os.sched_setaffinity(0, cores)
    limited = runner._session.get_session_options().intra_op_num_threads
    assert limited == (1 if os.cpu_count() != 1 else 0)  # 0 is onnxruntime's default


def test_int8_gate_compares_scores_of_a_regression_by_their_variance() -> None:
    expected = [0.0, 1.0, 4.0, 5.0]
    assert quantization._explained_variance(expected, expected) == 1
    shifted = [score + 0.1 for score in expected]
    assert quantization._explained_variance(expected, shifted) == pytest.approx(1 - 0.04 / 17)
    assert quantization._explained_variance(expected, expected[::-1]) == 0
    with pytest.raises(InputError, match="all inputs have one score"):
        quantization._explained_variance([1.0, 1.0], [1.0, 2.0])


def test_int8_gate_compares_answers_to_inputs_together_and_alone(monkeypatch) -> None:
    inputs = [PredictInput(f"line {number}", "ba") for number in range(4)]

    def predict(run: str, items: list) -> Iterator[dict[str, Any]]:
        for item in items:
            is_alone = run == "int8" and len(items) == 1
            label = "sad" if is_alone and item.location == "line 2" else "glad"
            yield {"label": label, "score": 0.5 if is_alone or run == "float32" else 0.75}

    pipeline = SimpleNamespace(
        predict=predict, max_batch_inputs=3, objective=SimpleNamespace(problem_type="")
    )
    model = SimpleNamespace(pipeline=pipeline, predict=lambda items: predict("float32", items))
    monkeypatch.setattr(quantization, "Predictor", lambda path: model)
    graph = SimpleNamespace(run_function=lambda objective: "int8")
    monkeypatch.setattr(quantization, "OnnxModel", lambda path: graph)
    found = quantization._compare_answers("model", "graph", lambda pipeline: inputs)
    assert found == quantization.Comparison(4, 0.75, 0.25, "line 2")


@pytest.mark.seconds
def test_files_of_the_directory_give_its_version(encoder, tmp_path) -> None:
    exported = tmp_path / "exported"
    write_onnx(encoder, exported)
    before = find_version(OnnxModel(exported))
    link = tmp_path / "模型 1"  # the version is in a header of HTTP
    link.symlink_to(exported)
    assert re.fullmatch(r"%E6%A8%A1%E5%9E%8B%201-\w+", find_version(OnnxModel(link)))
    (exported / "config.json").write_text((exported / "config.json").read_text() + "\n")
    assert find_version(OnnxModel(exported)) != before
    (exported / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime cannot read it: .*Export it"):
        OnnxModel(exported)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("token_classification_logits", "logits", "no known head has the output 'logits'. Add"),
        ("token_type_ids", "position_ids", "reads 'position_ids', which no export of bertjax"),
    ],
)
def test_graphs_of_other_programs_are_rejected(old, new, message, tmp_path) -> None:
    path = write_hf(draw_model(SHAPE, toy_tasks.TOKENIZER, "token_classification"), tmp_path)
    write_onnx(path, tmp_path / "exported")
    file = tmp_path / "exported" / "model.onnx"
    model = onnx.load(file)
    for array in (*model.graph.input, *model.graph.output):
        array.name = array.name.replace(old, new)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace(old, new) for name in names]
    onnx.save(model, file)
    with pytest.raises(InputError, match=re.escape(message)):
        OnnxModel(tmp_path / "exported")


@pytest.mark.seconds
def test_an_export_has_no_parameters_to_train_or_convert(encoder, tmp_path, capsys) -> None:
    write_onnx(encoder, tmp_path / "exported")
    command = ["convert", tmp_path / "exported", tmp_path / "copy", "--to", "hf"]
    assert main([*map(str, command)]) == 2
    assert "an ONNX model. Give the model from which it was" in capsys.readouterr().err


# ---------------------------------------------------------------- int8


@pytest.mark.slow
def test_int8_weights_are_a_quarter_as_large_and_state_what_they_changed(tmp_path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(draw_inputs("classify")))
    source, exported = export(tmp_path, "classify", "--int8", str(lines))
    record = json.loads((exported / "quantization.json").read_text())
    assert record["weights"] == "int8" and record["num_examples"] == 40
    assert 0.95 <= record["agreement"] <= 1 and 0 < record["largest_difference"] < 0.1
    write_onnx(source, tmp_path / "float32")
    size = (tmp_path / "float32" / "model.onnx").stat().st_size
    assert (exported / "model.onnx").stat().st_size < 0.6 * size  # a graph, biases, scales
    inputs, int8 = draw_inputs("classify"), bertjax.load(exported)
    expected = [answer["label"] for answer in bertjax.load(source).predict(inputs)]
    agreements = [
        np.mean([answer["label"] == label for answer, label in zip(answers, expected, strict=True)])
        for answers in (int8.predict(inputs), [int8.predict(text) for text in inputs])
    ]
    assert min(agreements) == pytest.approx(record["agreement"])


@pytest.mark.seconds
def test_int8_weights_that_change_answers_are_not_written(tmp_path, capsys) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in draw_inputs("classify")))
    model = draw_model(SHAPE, toy_tasks.TOKENIZER, "token_classification")
    # A large component that nothing reads takes the 256 values of an activation.
    model.params["encoder"]["blocks"]["feed_forward_norm"]["bias"][-1, 0] = 1000.0
    model.params["token_classification"]["kernel"][0] = 0.0
    model = dataclasses.replace(model, labels=LABELS["tag"])
    source = write_hf(model, tmp_path / "source")
    files = sorted(tmp_path.iterdir())
    command = ["export", "--checkpoint", source, "--to", "onnx", "--output", tmp_path / "exported"]
    command += ["--int8", lines]
    assert main([*map(str, command)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    found = re.search(r"the answers of 40 examples agree to (0\.\d+), first that of line \d+", line)
    assert found and float(found[1]) < 0.95
    assert sorted(tmp_path.iterdir()) == files
    assert main([*map(str, command), "--min-agreement", "0"]) == 0


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to", "savedmodel", "--int8", "LINES"), "--int8=LINES: for --to onnx alone"),
        (("--int8", "LINES", "--min-agreement", "2"), "--min-agreement=2.0: not in [0, 1]"),
        (("--int8", "LINES", "--min-agreement", "nan"), "--min-agreement=nan: not in [0, 1]"),
        (("--int8", "absent"), "absent: no such file"),
        (("--int8", "EMPTY"), "--int8: the file has no inputs"),
        (("--int8", "WRONG"), "line 2: no text"),
    ],
)
def test_wrong_examples_are_rejected(encoder, options, message, tmp_path, capsys) -> None:
    contents = {"LINES": "ba", "EMPTY": "\n", "WRONG": 'ba\n{"mood": "glad"}'}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    options = [str(tmp_path / option) if option in contents else option for option in options]
    command = ["export", "--checkpoint", encoder, "--output", tmp_path / "exported"]
    command += options if "--to" in options else ["--to", "onnx", *options]
    assert main([*map(str, command)]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert message in line.replace(f"{tmp_path}/", "")
    assert not (tmp_path / "exported").exists()


def test_modules_keep_an_empty_prompt_beside_a_default(encoder, tmp_path) -> None:
    pooling = PoolingConfig(encoder, "mean", True, None, prompt="query: ", query_prompt="query: ")
    write_modules(encoder, pooling, SHAPE.hidden_size)
    read = find_pooling_config(encoder)
    assert (read.prompt, read.query_prompt, read.document_prompt) == ("query: ", "query: ", "")
