"""What requests will need is compiled before the first of them comes."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.inference.predictor import Predictor
from bertjax.tasks.sequence_classification.data import columns_from_config
from bertjax.tasks.task import HostBatch, Input, PredictorProtocol
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_SHORTEST = 16  # pieces of a row, of any task
_INPUT_FRACTION = 0.7  # of a row, by one input: two of them do not share one
_log = logging.getLogger("bertjax")


class _Compiled(Exception):
    """What was asked is compiled."""


class _CompilingModel:
    """A model that compiles what it would run."""

    def __init__(self, predictor: Predictor) -> None:
        self.path, self.config, self.tokenizer = (
            predictor.path,
            predictor.config,
            predictor.tokenizer,
        )
        self.labels, self.calibration = predictor.labels, predictor.calibration
        self._predictor = predictor

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            self._predictor.compile(batch)
        raise _Compiled


def warm(predictor: Predictor, max_inputs: int) -> None:
    """Compiles what inputs of all lengths need, up to `max_inputs` of them at once."""
    compiler, word = _CompilingModel(predictor), _one_token_word(predictor.tokenizer)
    pretrained = predictor.config.task == "pretraining"
    longest = (
        predictor.config.model.max_position_embeddings
        if pretrained
        else predictor.config.max_seq_length
    )
    lengths = [_SHORTEST]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    for number, length in enumerate(lengths, 1):
        words = max(1, int(_INPUT_FRACTION * min(length, longest)) - 3)
        said = _sample_input(compiler, word, " ".join([word] * words))
        count = 1
        while count <= max_inputs:
            try:
                list(predictor.task.predict(compiler, [Input("warm-up", said)] * count))
            except _Compiled:
                pass
            except InputError:  # a task of one's own, that asks for something else
                return
            count *= 2
        _log.info("compiled for inputs of up to %d pieces (%d/%d)", length, number, len(lengths))


def _sample_input(predictor: PredictorProtocol, word: str, text: str) -> str | Mapping[str, Any]:
    """An input of about the length of a text."""
    config = predictor.config
    if config.task == "pretraining":
        return text if config.model.causal else f"{text} [MASK]"
    if config.task == "question_answering":
        return {"question": word, "context": text}
    if config.task == "multiple_choice":
        half = " ".join(text.split()[::2])
        return {"context": half, "choices": [word, word]}
    if config.task == "sequence_classification":
        columns = columns_from_config(config)
        first, *others = (*columns.text, *columns.text_pair)
        return {first: text, **dict.fromkeys(others, word)}
    return text


def _one_token_word(tokenizer: Tokenizer) -> str:
    """A text of one piece, which so many times is of so many."""
    for token in tokenizer.tokens:
        text = token.strip("▁#")
        if text.isalpha() and len(tokenizer.encode(f"{text} {text}")) == 2:
            return text
    return "a"
