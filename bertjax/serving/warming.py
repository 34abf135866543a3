"""What requests will need is compiled before the first of them comes."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.inference.predictor import Predictor
from bertjax.tasks.sequence_classification.data import columns_of
from bertjax.tasks.task import HostBatch, Input, Opened
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_SHORTEST = 16  # pieces of a row, of any task
_FILLED = 0.7  # of a row, by one input: two of them do not share one
_log = logging.getLogger("bertjax")


class _Ready(Exception):
    """What was asked is compiled."""


class _Compiler:
    """A model that compiles what it would run."""

    def __init__(self, opened: Predictor) -> None:
        self.path, self.config, self.tokenizer = opened.path, opened.config, opened.tokenizer
        self.labels, self.calibration = opened.labels, opened.calibration
        self._opened = opened

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            self._opened.compile(batch)
        raise _Ready


def warm(opened: Predictor, most: int) -> None:
    """Compiles what inputs of all lengths need, up to `most` of them at once."""
    compiler, word = _Compiler(opened), _word(opened.tokenizer)
    pretrained = opened.config.task == "pretrain"
    longest = opened.config.model.max_positions if pretrained else opened.config.seq_len
    lengths = [_SHORTEST]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    for number, length in enumerate(lengths, 1):
        words = max(1, int(_FILLED * min(length, longest)) - 3)
        said = _question(compiler, word, " ".join([word] * words))
        count = 1
        while count <= most:
            try:
                list(opened.task.predict(compiler, [Input("warm-up", said)] * count))
            except _Ready:
                pass
            except InputError:  # a task of one's own, that asks for something else
                return
            count *= 2
        _log.info("compiled for inputs of up to %d pieces (%d/%d)", length, number, len(lengths))


def _question(opened: Opened, word: str, text: str) -> str | Mapping[str, Any]:
    """An input of about the length of a text."""
    config = opened.config
    if config.task == "pretrain":
        return text if config.model.causal else f"{text} [MASK]"
    if config.task == "squad":
        return {"question": word, "context": text}
    if config.task == "choice":
        half = " ".join(text.split()[::2])
        return {"context": half, "choices": [word, word]}
    if config.task == "sentences":
        columns = columns_of(config)
        first, *others = (*columns.text, *columns.pair)
        return {first: text, **dict.fromkeys(others, word)}
    return text


def _word(tokenizer: Tokenizer) -> str:
    """A text of one piece, which so many times is of so many."""
    for piece in tokenizer.pieces:
        text = piece.strip("▁#")
        if text.isalpha() and len(tokenizer.encode(f"{text} {text}")) == 2:
            return text
    return "a"
