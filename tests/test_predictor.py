"""Predictors: inputs that a model cannot take, and results that are no numbers."""

import dataclasses
import io
import json
import logging
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy_tasks
from random_models import draw_model
from served_models import Served
from test_interface import ARGUMENTS, HEADS, LABELS, SHAPE

import bertjax
from bertjax.cli.files import as_json
from bertjax.cli.main import main
from bertjax.errors import CommandError
from bertjax.formats import huggingface, loading
from bertjax.inference.convert import convert
from bertjax.inference.predictor import Predictor
from bertjax.mesh.finite import check_finite
from bertjax.serving.server import bind_socket
from bertjax.tasks.pipeline import PredictInput, check_keys
from data_pipelines.errors import InputError

PAIR = {"text": "ba do", "text_pair": "ki"}
ONE_TYPE = "model.type_vocab_size=1: sequences have two segments, the texts of a pair. Use a model"
NOT_FINITE = "the model computes numbers that are not finite. Check its parameters"


def write(path: pathlib.Path, method: str, **fields: Any) -> pathlib.Path:
    model = draw_model(dataclasses.replace(SHAPE, **fields), toy_tasks.TOKENIZER, *HEADS[method])
    path.mkdir()
    huggingface.write(dataclasses.replace(model, labels=LABELS.get(method, ())), path)  # type: ignore[arg-type]
    return path


def damage(path: pathlib.Path, value: float) -> None:
    model = huggingface.read(path)  # type: ignore[arg-type]
    model.params["encoder"]["embeddings"]["norm"]["bias"][0] = value
    huggingface.write(model, path)  # type: ignore[arg-type]


def test_check_finite_accepts_numbers_only() -> None:
    check_finite(np.ones(3), "logits")
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(CommandError, match=f"^logits: {NOT_FINITE}"):
            check_finite(np.array([1.0, value]), "logits")
        with pytest.raises(CommandError, match="a result is not finite"):
            as_json({"score": [value]})
    assert as_json({"score": 1.5}) == '{"score": 1.5}'


@pytest.mark.slow
def test_model_of_one_token_type_rejects_pairs(tmp_path, capsys) -> None:
    path = write(tmp_path / "model", "classify", type_vocab_size=1)
    model = bertjax.load(path)
    for call in (
        lambda: model.classify(PAIR),
        lambda: model.predict([PAIR, PAIR]),
        lambda: model.batch(["ba"], ["do"]),
    ):
        with pytest.raises(InputError, match=ONE_TYPE):
            call()
    assert main(["predict", "--checkpoint", str(path), "--text", json.dumps(PAIR)]) == 2
    assert ONE_TYPE in capsys.readouterr().err
    with bind_socket("127.0.0.1", 0) as listener:
        served = Served(path, listener)
        body = json.dumps({"inputs": PAIR}).encode()
        status, content = served.send("POST", "/predict", body)
        assert status == 400 and ONE_TYPE in content["error"]
        assert served.predict("ba do")["label"] in LABELS["classify"]
        served.server.close()


QUESTION = {"question": "ba?", "context": "do ki"}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("method", "content", "message"),
    [
        (
            "classify",
            {"text": "ba", "txet_pair": "ki"},
            "'txet_pair'. Leave it out, or write",
        ),
        ("tag", {"text": "ba", "text_pair": "ki"}, "'text_pair'. Leave it out, or write 'text'"),
        ("answer", QUESTION | {"contxt": "lu"}, "'contxt'. Leave it out, or write 'context'"),
        ("fill_mask", {"text": "[MASK]", "top_k": 3}, "'top_k'. Leave it out, or write 'text'"),
    ],
)
def test_keys_that_no_model_reads_are_rejected_in_a_request_and_logged_in_a_file(
    method: str, content: dict, message: str, tmp_path, caplog
) -> None:
    predictor = Predictor(write(tmp_path / "model", method))
    item = PredictInput("input 0", content)
    with pytest.raises(
        InputError, match=f"^input 0: the model does not read the key {re.escape(message)}"
    ):
        list(predictor.predict([item]))
    with caplog.at_level(logging.INFO, "bertjax"):
        for _ in predictor.predict([item, item], chunk_size=1, from_file=True):
            pass
    key = message.partition(".")[0]
    assert [m for m in caplog.messages if key in m] == [f"the model does not read the keys {key}."]


@pytest.mark.seconds
def test_file_has_an_answer_or_an_error_for_every_line(tmp_path, monkeypatch, capsys) -> None:
    path = write(tmp_path / "model", "classify")
    lines = ["ba do", "", "{ki", '{"text": "lu"}', "", '{"other": "me"}', "no"]
    (tmp_path / "lines.jsonl").write_text("".join(f"{line}\n" for line in lines))
    used = ["predict", "--checkpoint", str(path), "--input"]
    assert main([*used, str(tmp_path / "lines.jsonl")]) == 0
    out, err = capsys.readouterr()
    answers = [json.loads(line) for line in out.splitlines()]
    errors = [answer.get("error", "").partition(".")[0] for answer in answers]
    assert [bool(error) for error in errors] == [False, True, True, False, True, True, False]
    assert errors[1] == "line 2: blank" and errors[2].startswith("line 3: not JSON")
    assert "lines.jsonl: 4 of 7 inputs are invalid" in err and "The first: line 2: blank." in err
    monkeypatch.setattr("sys.stdin", io.StringIO("ba do\n\n{ki\n"))
    assert main([*used, "-"]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 and "line 3: not JSON" in err
    (tmp_path / "lines.jsonl").write_text("\n{ki\n")
    assert main([*used, str(tmp_path / "lines.jsonl")]) == 2
    assert "line 1: blank. Write an input" in capsys.readouterr().err


@pytest.mark.seconds
@pytest.mark.parametrize("method", ARGUMENTS)
def test_model_reads_all_keys_of_its_sample_and_its_form(method: str, tmp_path) -> None:
    pipeline = Predictor(write(tmp_path / "model", method)).pipeline
    sample, fields = pipeline.sample_input(), [field.name for field in pipeline.form_fields()]
    keys = {} if isinstance(sample, str) else sample
    names = {*keys, *filter(None, fields)}
    check_keys(pipeline, PredictInput("input 0", dict.fromkeys(names, "ba")))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["classify", "fill_mask"])
def test_results_that_are_not_finite_are_one_line(method: str, tmp_path, capsys) -> None:
    path = write(tmp_path / "model", method)
    damage(path, 3e38)  # finite, and the computation overflows
    text = "ba [MASK] do"
    assert main(["predict", "--checkpoint", str(path), "--text", text]) == 1
    out, err = capsys.readouterr()
    assert not out and f"logits: {NOT_FINITE}" in err.splitlines()[-1]
    loaded = bertjax.load(path)
    with pytest.raises(CommandError, match=NOT_FINITE):
        loaded.predict(text)
    with pytest.raises(CommandError, match=f"^embeddings: {NOT_FINITE}"):
        loaded.encode("ba do")
    with (
        bind_socket("127.0.0.1", 0) as listener,
        pytest.raises(CommandError, match=f"logits: {NOT_FINITE}"),  # of the sample input
    ):
        Served(path, listener)


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_model_with_parameters_that_are_not_finite_is_rejected(value, tmp_path, capsys) -> None:
    ours, theirs, lines = tmp_path / "ours", tmp_path / "theirs", tmp_path / "lines.txt"
    lines.write_text("ba do\n")
    write(theirs, "classify")
    damage(theirs, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_finite_params", lambda *_: None)
        convert(theirs, ours, "hf", "bertjax")
    for path in (ours, theirs):
        used = ["--checkpoint", path]
        for command in (
            ["predict", *used, "--text", "ba"],
            ["embed", *used, "--input", lines, "--output", tmp_path / "new.npz"],
            ["export", "--to", "stablehlo", *used, "--output", tmp_path / "new.stablehlo"],
            ["serve", *used, "--port", "0"],
            ["convert", "--to", "hf", path, tmp_path / "new"],
            ["convert", "--to", "bertjax", path, tmp_path / "new"],
        ):
            assert main(list(map(str, command))) == 2, command
            (line,) = capsys.readouterr().err.splitlines()[-1:]
            problem = "encoder/embeddings/norm/bias has numbers that are not finite"
            assert line == f"bertjax: {path}: {problem}. Use another checkpoint."
    assert sorted(tmp_path.iterdir()) == [lines, ours, theirs]


@pytest.mark.parametrize(("answers", "how"), [(["a"], "fewer"), ([], "fewer"), (["a"] * 3, "more")])
def test_pipeline_of_a_user_returns_an_answer_to_each_input(answers: list[str], how: str) -> None:
    """Else answers would go to other inputs, of other clients of a server."""
    predictor = object.__new__(Predictor)
    predictor.run = None  # type: ignore[assignment, method-assign]
    predictor.pipeline = SimpleNamespace(  # type: ignore[assignment]
        max_batch_inputs=4, predict=lambda run, inputs, all_scores: iter([{}] * len(answers))
    )
    inputs = [PredictInput("1", "x"), PredictInput("2", "y")]
    with pytest.raises(RuntimeError, match=f"returned {how} answers than the 2 inputs"):
        list(predictor.predict(inputs))
    errors = ["", "no text", ""]  # of the lines of a file, of which two are valid
    with pytest.raises(RuntimeError, match=f"returned {how} answers than the 2 inputs"):
        list(predictor._predict_valid([*inputs, *inputs[:1]], errors, False))
