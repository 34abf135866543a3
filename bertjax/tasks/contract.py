"""What every task is to be, so that one train loop serves them all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from etils import epath

from bertjax.model.encoder import BertConfig
from bertjax.training.config import Config
from bertjax.training.objective import Objective
from bertjax.training.step import Batch
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

EVALUATION_FILE = "evaluation.json"  # what was evaluated, beside the scores


class Evaluation(NamedTuple):
    """What comes of held-out data.

    Attributes:
      scores: numbers by their names.
      files: for each file that goes with them, by its name without `.json`, its content.
    """

    scores: dict[str, float]
    files: Mapping[str, Any]


class Task(Objective, Protocol):
    """What training and evaluation need to know of a task: its objective and its data.

    Attributes:
      rows_per_epoch: examples of one pass over the training data, `batch_size` being those of a
        step: rows where packing is part of the data, else what is packed into them.
      eval_rows: rows of each batch of held-out data, over all hosts.
      data_fingerprint: hex digest that changes with the training data.
    """

    @property
    def rows_per_epoch(self) -> int: ...
    @property
    def eval_rows(self) -> int: ...
    @property
    def data_fingerprint(self) -> str: ...

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        """Opens and checks the data; raises InputError in one sentence."""

    def train_batches(self, start: int, stop: int) -> Iterable[dict[str, np.ndarray]]:
        """This host's rows of the global batches of steps start..stop-1."""

    def eval_batches(self) -> Iterable[dict[str, np.ndarray]]:
        """This host's rows of each batch of held-out data, every example once."""

    def outputs(self, params: Any, batch: Batch) -> dict[str, Any]:
        """Arrays that an evaluation needs of each batch besides its sums; may be empty."""

    def evaluation(
        self, means: dict[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """What comes of held-out data.

        Args:
          means: of the sums over all batches, and the total `loss`.
          outputs: of each batch of `eval_batches` in turn, those of all hosts together.
        """

    def save(self, directory: epath.Path, found: Evaluation | None) -> None:
        """Writes what opens a checkpoint besides its arrays: vocabulary, labels.

        Args:
          found: the evaluation of those very arrays, if there was one.
        """

    def show(self, batch: dict[str, np.ndarray], row: int) -> str:
        """A row of a batch as text for a person."""

    def check_tokenizer(self, tokenizer: Tokenizer | None, path: epath.Path) -> None:
        """Raises InputError where the tokenizer of a model at `path` is not that of the data."""

    @staticmethod
    def predict(config: Config, path: epath.Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """An answer to each line from the checkpoint at `path`; needs no training data."""

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """The output of an evaluation as a page of HTML; raises InputError where there is none."""


def check_vocabulary(name: epath.PathLike, tokenizer: Tokenizer, model: BertConfig) -> None:
    """Raises InputError where the tokenizer of `name` has more pieces than the model vectors."""
    pieces = len(tokenizer.pieces)
    if pieces > model.vocab_size:
        raise InputError(
            f"the vocabulary of {name} has {pieces:,} pieces and model.vocab_size="
            f"{model.vocab_size:,}: raise it to at least that."
        )
