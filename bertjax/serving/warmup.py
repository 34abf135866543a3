"""Compilation of the shapes that requests need, and a prediction, before the first request."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from bertjax.inference.predictor import Predictor
from bertjax.serving.options import Limits
from bertjax.tasks.pipeline import HostBatch, Pipeline, PredictInput
from bertjax.tasks.task import bucket_size
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_MIN_SEQ_LENGTH = 16  # tokens
# Share of a sequence that one input fills: two of them do not fit into one.
_INPUT_FRACTION = 0.7
# Up to so many of the shortest texts have sequences of fewer tokens than several longer ones.
_MAX_SHORT_INPUTS = 16
_log = logging.getLogger("bertjax")


def compile_ahead(predictor: Predictor, limits: Limits) -> None:
    """Compile the shapes of inputs of all lengths, for batches of all sizes within the limits."""
    pipeline = predictor.pipeline
    num_inputs = min(bucket_size(limits.max_inputs), pipeline.max_batch_inputs)
    short = _sample(pipeline, 1)
    for count in range(1, min(num_inputs, _MAX_SHORT_INPUTS) + 1):
        _compile_for(predictor, [short] * count)
    lengths = [_MIN_SEQ_LENGTH]
    while lengths[-1] < pipeline.max_input_tokens:
        lengths.append(2 * lengths[-1])
    for number, length in enumerate(lengths, 1):
        num_words = int(_INPUT_FRACTION * min(length, pipeline.max_input_tokens)) - 3
        for count in (1, num_inputs):
            _compile_for(predictor, [_sample(pipeline, num_words)] * count)
        _log.info("compiled for inputs of up to %d tokens (%d/%d)", length, number, len(lengths))
    # An input with a token for each character, which may be split into many sequences. Several
    # inputs of as many characters together may fill a few more: hence the last summand.
    num_words = limits.max_characters + pipeline.max_input_tokens
    try:
        with _without_warnings():  # that the sample is truncated
            largest = _largest_batch(pipeline, [_sample(pipeline, num_words)])
    except Exception as error:  # of a user's pipeline that takes no text of any length
        _log.warning("not compiled for texts of %d words: %s", num_words, error)
    else:
        _compile_batch(predictor, largest)


def _sample(pipeline: Pipeline[Any], num_words: int) -> PredictInput:
    word = _one_token_word(pipeline.tokenizer)
    text = " ".join([word] * max(1, num_words))
    return PredictInput("warm-up", pipeline.sample_input(text, word))


def _compile_for(predictor: Predictor, inputs: Sequence[PredictInput]) -> None:
    """Compile for the largest batch of these inputs, and all smaller ones of its length."""
    _compile_batch(predictor, _largest_batch(predictor.pipeline, inputs))


def _largest_batch(
    pipeline: Pipeline[Any], inputs: Sequence[PredictInput]
) -> tuple[HostBatch, Any] | None:
    """Return the largest batch of inputs and their context, or None if the inputs have none."""
    try:
        batches, context = pipeline.preprocess(inputs)
        largest = max(batches, key=_num_sequences, default=None)
    except InputError:  # a pipeline whose inputs are not as long as its sample
        return None
    if largest is None or largest["input_ids"].shape[1] > pipeline.max_input_tokens:
        return None
    return largest, context


def _compile_batch(predictor: Predictor, largest: tuple[HostBatch, Any] | None) -> None:
    """Compile for a batch, and all smaller ones of its length."""
    if largest is None:
        return
    batch, context = largest
    count = bucket_size(_num_sequences(batch))  # to which batches are padded
    while count:
        predictor.compile(_resize(batch, count), predictor.pipeline.decoding(context))
        count //= 2


def _num_sequences(batch: HostBatch) -> int:
    return len(batch["input_ids"])


def _resize(batch: HostBatch, count: int) -> HostBatch:
    """Return a batch of the same shape but for the number of its sequences."""
    return {name: np.resize(array, (count, *array.shape[1:])) for name, array in batch.items()}


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drop the lines that this thread logs."""
    thread = threading.get_ident()

    def is_kept(record: logging.LogRecord) -> bool:
        return record.thread != thread

    _log.addFilter(is_kept)
    try:
        yield
    finally:
        _log.removeFilter(is_kept)


def predict_sample(predictor: Predictor) -> None:
    """Predict the sample input of the pipeline, as a check of the model.

    Raises:
      CommandError: the model computes numbers that are not finite.
    """
    try:
        list(predictor.predict([PredictInput("warm-up", predictor.pipeline.sample_input())]))
    except InputError as error:  # of a pipeline whose default sample does not fit
        _log.info("no warm-up prediction: %s", error)


def _one_token_word(tokenizer: Tokenizer) -> str:
    """Return a text of one token, so that n copies of it have n tokens."""
    for token in tokenizer.tokens:
        text = token.strip("▁#")
        if text.isalpha() and len(tokenizer.encode(f"{text} {text}")) == 2:
            return text
    return "a"
