"""Shapes that the server compiles before its first request."""

from collections.abc import Callable
from typing import Any

import pytest
from test_interface import write_model

from bertjax.inference.predictor import Predictor
from bertjax.serving.options import Limits
from bertjax.serving.warmup import compile_ahead
from bertjax.tasks import finetuning
from bertjax.tasks.pipeline import Content, PredictInput

NUM_POSITIONS = 512


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Directory of models."""
    root = tmp_path_factory.mktemp("models")
    for method in ("answer", "classify"):
        write_model(root / method, method, NUM_POSITIONS)
    return root


def question(num_words: int) -> Content:
    return {"question": "ba?", "context": "ba " * num_words}


def compiled_ahead(
    path: Any, limits: Limits, compile_step: Callable[[Any], None] = lambda shapes: None
) -> Predictor:
    """Return a predictor after its warm-up, whose programs are not compiled."""
    predictor = Predictor(path)
    assert predictor._runner
    functions: Any = predictor._runner._step_functions
    functions.compile_predict_step = compile_step
    compile_ahead(predictor, limits)
    return predictor


def shapes_of(predictor: Predictor) -> set[tuple[int, int]]:
    """Return sequences and tokens of the compiled programs."""
    assert predictor._runner
    return {dict(key[1:])["input_ids"] for key in predictor._runner._compiled}


def missing_shapes(predictor: Predictor, contents: list[Content]) -> set[tuple[int, int]]:
    """Return the shapes of a request that were not compiled."""
    before = shapes_of(predictor)
    batches, _ = predictor.pipeline.preprocess([PredictInput("input", x) for x in contents])
    for batch in batches:
        predictor.compile(batch)
    return shapes_of(predictor) - before


@pytest.mark.seconds
@pytest.mark.parametrize("max_inputs", [1, 8, 48])
@pytest.mark.parametrize("device_sequences", [16, 64])  # of a CPU, and of an accelerator
def test_batches_of_all_sizes_within_the_limits_are_compiled(
    root, monkeypatch, max_inputs: int, device_sequences: int
) -> None:
    monkeypatch.setattr(finetuning, "max_predict_sequences", lambda *_: device_sequences)
    limits = Limits(max_inputs=max_inputs, max_characters=20_000)
    predictor = compiled_ahead(root / "answer", limits)
    for num_words in (1, 10, 30, 100, 180, 300, 1000, 3000, 6666, 10_000):
        assert not missing_shapes(predictor, [question(num_words)]), num_words
        request = [question(min(num_words, 6000 // max_inputs))] * max_inputs
        assert not missing_shapes(predictor, request), num_words


@pytest.mark.seconds
def test_programs_are_no_larger_than_requests(root) -> None:
    shapes = shapes_of(compiled_ahead(root / "answer", Limits(max_inputs=8, max_characters=1500)))
    # 8 devices, and windows of 384 tokens that begin every 128 tokens.
    assert shapes == {(8, length) for length in (16, 32, 64, 128, 256, 384)} | {(16, 384)}


@pytest.mark.seconds
def test_compilation_that_fails_ends_the_warmup(root) -> None:
    """A server that is ready would answer requests of this shape with an error."""

    def compile_step(shapes: dict[str, Any]) -> None:
        if shapes["input_ids"].shape[0] > 8:
            raise MemoryError

    with pytest.raises(MemoryError):
        compiled_ahead(root / "answer", Limits(max_inputs=8, max_characters=1500), compile_step)


@pytest.mark.seconds
def test_warmup_logs_no_truncation(root, caplog) -> None:
    compiled_ahead(root / "classify", Limits())
    assert "truncated" not in caplog.text
