"""Compilation of the shapes that requests need, and a prediction, before the first request."""

import logging

from bertjax.inference.predictor import Predictor
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_MIN_SEQ_LENGTH = 16  # tokens
# Share of a sequence that one input fills: two of them do not fit into one.
_INPUT_FRACTION = 0.7
_log = logging.getLogger("bertjax")


def compile_ahead(predictor: Predictor, max_inputs: int) -> None:
    """Compile the shapes of inputs of all lengths, for batches of up to `max_inputs` inputs."""
    pipeline, word = predictor.pipeline, _one_token_word(predictor.pipeline.tokenizer)
    lengths = [_MIN_SEQ_LENGTH]
    while lengths[-1] < pipeline.max_input_tokens:
        lengths.append(2 * lengths[-1])
    counts = [1 << i for i in range(max_inputs.bit_length())]
    for number, length in enumerate(lengths, 1):
        num_words = max(1, int(_INPUT_FRACTION * min(length, pipeline.max_input_tokens)) - 3)
        content = pipeline.sample_input(" ".join([word] * num_words), word)
        for count in counts:
            try:
                batches, context = pipeline.preprocess([PredictInput("warm-up", content)] * count)
            except InputError:  # a pipeline whose inputs are not as long as its sample
                return
            for batch in batches:
                predictor.compile(batch, pipeline.decoding(context))
        _log.info("compiled for inputs of up to %d tokens (%d/%d)", length, number, len(lengths))


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
