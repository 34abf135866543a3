"""Answers to inputs that lost tokens say so, in every interface."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import toy_tasks
from random_models import draw_model
from served_models import exchange
from test_interface import SHAPE, write_model

import bertjax
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.tasks.pipeline import truncation_mark

MARK = {"truncated": True}


def write(path: pathlib.Path, method: str) -> pathlib.Path:
    """Write a model of 128 tokens."""
    if method != "generate":
        return write_model(path, method, max_length=128)
    shape = dataclasses.replace(SHAPE, num_labels=0, decoder="prefix", max_position_embeddings=128)
    path.mkdir()
    huggingface.write(draw_model(shape, toy_tasks.TOKENIZER, "mlm"), path)  # type: ignore[arg-type]
    return path


# An input whose text has n words, and how many of them a pipeline keeps.
INPUTS: dict[str, tuple[Any, Any]] = {
    "classify": (lambda n: "ba " * n, lambda pipeline: 128 - 2),
    "answer": (
        lambda n: {"question": "ba " * n, "context": "do ki lu"},
        lambda pipeline: pipeline.config.data["max_query_length"],
    ),
    # The two choices of a question share a sequence.
    "choose": (
        lambda n: {"context": "ba " * n, "choices": ["do", "ki"]},
        lambda pipeline: 128 // 2 - 4,
    ),
    "generate": (
        lambda n: {"text": "ba " * n, "max_new_tokens": 2},
        lambda pipeline: pipeline.objective.max_source_length - 2,
    ),
}


def test_truncation_mark_is_absent_from_whole_inputs() -> None:
    assert truncation_mark(True) == MARK and truncation_mark(False) == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", INPUTS)
def test_answer_is_marked_if_and_only_if_the_input_lost_tokens(method: str, tmp_path) -> None:
    model = bertjax.load(write(tmp_path / "model", method))
    make, count_kept = INPUTS[method]
    kept = count_kept(model._predictor.pipeline)
    inputs = [make(n) for n in (1, kept + 1, kept, kept + 9)]
    answers = model.predict(inputs)
    assert ["truncated" in answer for answer in answers] == [False, True, False, True]
    assert answers[1]["truncated"] is True
    repeated = {"text", "context", "question", "id", "truncated"}  # of the input, and the mark
    at_limit, beyond = (
        {name: value for name, value in answer.items() if name not in repeated}
        for answer in answers[2:]
    )
    assert at_limit == pytest.approx(beyond, abs=1e-4)


@pytest.mark.slow
def test_tasks_with_windows_mark_nothing(tmp_path) -> None:
    text = "ba do " * 40
    assert "truncated" not in bertjax.load(write_model(tmp_path / "tag", "tag")).tag(text)
    model = bertjax.load(write_model(tmp_path / "answer", "answer"))
    assert "truncated" not in model.answer("ba?", text)


@pytest.mark.slow
def test_server_and_command_mark_truncated_inputs(served, capsys, tmp_path) -> None:
    it = served("classify")
    texts = ["ba", "ba " * 40]
    body = json.dumps({"inputs": texts}).encode()
    _, content, _ = exchange(it.port, "POST", "/predict", body)
    assert [answer.get("truncated") for answer in content["answers"]] == [None, True]
    counted = [
        line
        for line in it.send("GET", "/metrics")[1].splitlines()
        if line.startswith("bertjax_truncated_inputs_total")
    ]
    assert counted == ['bertjax_truncated_inputs_total{model="default"} 1.0']
    (tmp_path / "texts").write_text("\n".join(texts))
    path = str(it.predictor.path)
    assert main(["predict", "--checkpoint", path, "--input", str(tmp_path / "texts")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("truncated") for line in lines] == [None, True]
