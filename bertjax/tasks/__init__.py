"""The tasks that the one train loop serves. A new task is one new file and one line here."""

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from etils import epath

from bertjax.model.encoder import BertConfig
from bertjax.training.checkpoint import find_checkpoint
from bertjax.training.config import Config, parse_config, read_config
from bertjax.training.step import Batch, Sums
from data_pipelines.vocabulary.tokenization import Tokenizer

EVALUATION_FILE = "evaluation.json"  # what was evaluated, beside the scores

# task name -> module with `Objective` and `Task`, classes that follow the protocols, and
# `DATA_FIELDS`, the defaults of its `data` fields.
MODULES = {"pretrain": "bertjax.tasks.pretrain", "squad": "bertjax.tasks.squad"}


class Objective(Protocol):
    """What is compiled: a model and its loss, from the configuration alone, without data."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        """Raises ValueError in one sentence where the configuration makes no model.

        Args:
          multiple: of rows, which devices share; a task that chooses its rows gives some of it.
        """

    def init_params(self, key: Any) -> Any:
        """Random parameters from a JAX key."""

    def loss(self, params: Any, batch: Batch, key: Any) -> Sums:
        """Sums over the batch; see `bertjax.training.step.LossFunction`."""

    def batch_shapes(self) -> dict[str, Any]:
        """Name -> `jax.ShapeDtypeStruct` of the arrays of a global batch."""

    def flops_per_step(self) -> float:
        """Model operations of one step over the global batch."""


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
        """Opens and checks the data; raises ValueError in one sentence."""

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
        """Raises ValueError where the tokenizer of a model at `path` is not that of the data."""

    @staticmethod
    def predict(config: Config, path: epath.Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """An answer to each line from the checkpoint at `path`; needs no training data."""

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """The output of an evaluation as a page of HTML; raises ValueError where there is none."""


def find(name: str) -> type[Task]:
    """The class of a task in `MODULES`."""
    return importlib.import_module(MODULES[name]).Task


def objective(config: Config, multiple: int = 1) -> Objective:
    """The objective of the configuration's task; see `Objective`."""
    return importlib.import_module(MODULES[config.task]).Objective(config, multiple)


def check_vocabulary(name: epath.PathLike, tokenizer: Tokenizer, model: BertConfig) -> None:
    """Raises ValueError where the tokenizer of `name` has more pieces than the model vectors."""
    pieces = len(tokenizer.pieces)
    if pieces > model.vocab_size:
        raise ValueError(
            f"the vocabulary of {name} has {pieces:,} pieces and model.vocab_size="
            f"{model.vocab_size:,}: raise it to at least that."
        )


def rows_of(objective: Objective) -> int:
    """Rows of a global batch, over all hosts and devices."""
    return int(next(iter(objective.batch_shapes().values())).shape[0])


def data_fields() -> dict[str, dict[str, Any]]:
    """Task name -> its `data` fields with their defaults."""
    return {name: importlib.import_module(module).DATA_FIELDS for name, module in MODULES.items()}


def predict(checkpoint: epath.PathLike, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """An answer to each line of input, by the task that the checkpoint was trained for.

    Args:
      checkpoint: a checkpoint, or a workdir whose newest one is used.
    Raises:
      ValueError: a line is not what the task takes; it is named by its number.
    """
    path = find_checkpoint(checkpoint)
    config = read_config(path / "config.json", data_fields())
    return find(config.task).predict(config, path, lines)


def report(name: str, directory: epath.Path) -> str:
    """The output of an evaluation as a page of HTML.

    Raises:
      ValueError: its task has no such page, or the files are not what `bertjax evaluate` wrote.
    """
    path = directory / EVALUATION_FILE
    try:
        config = parse_config(json.loads(path.read_text())["config"], data_fields())
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not what an evaluation wrote ({error}): repeat it.") from error
    return find(config.task).report(name, config, directory)
