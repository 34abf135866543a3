"""What every task is to be, so that one train loop, evaluation and predictor serve them all.

A task is three things. Its objective (`bertjax.steps.objective`) follows from the configuration
alone. Its data are training batches by step and named sets of held-out data. And it says what
becomes of outputs: scores, files, answers and a page.
"""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.steps.objective import Objective
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.finetuning.table import parse_object
from data_pipelines.vocabulary.tokenization import Tokenizer

NUM_EXAMPLES_SHOWN = 8  # of held-out data, that a person is shown
EVALUATION_FILE = "evaluation.json"  # what was evaluated, beside the scores

HostBatch = dict[str, np.ndarray]


class Evaluation(NamedTuple):
    """What comes of held-out data.

    Attributes:
      scores: numbers by their names.
      files: for each file that goes with them, by its name without `.json`, its content; a string
        is a text, under its whole name.
      calibration: numbers that prediction is to use, such as a threshold; kept in a checkpoint.
      examples: the first `NUM_EXAMPLES_SHOWN` and what is said of each, a line each, for a person.
    """

    scores: dict[str, float]
    files: Mapping[str, Any] = {}
    calibration: Mapping[str, float] = {}
    examples: Sequence[str] = ()


class EvalSet(Protocol):
    """Held-out data of one name."""

    @property
    def name(self) -> str: ...

    def batches(self) -> Iterable[HostBatch]:
        """This host's rows of each batch, every example once."""

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """What comes of this set.

        Args:
          means: of the sums over its batches, and the total `loss`.
          outputs: of each of its batches in turn, for all hosts' rows, what the objective's
            `outputs` names.
        """


class Input(NamedTuple):
    """What is to be answered.

    Attributes:
      place: where it stands, for messages, such as "line 3".
      said: a text, or an object with what the task asks for.
    """

    location: str
    said: str | Mapping[str, Any]


class PredictorProtocol(Protocol):
    """A checkpoint that was opened to predict."""

    @property
    def path(self) -> epath.Path: ...
    @property
    def config(self) -> Config: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def calibration(self) -> Mapping[str, float]: ...

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]:
        """What the objective's `apply` gives for each batch, whatever its rows and lengths."""


class Task(abc.ABC):
    """A task with its data.

    Class attributes:
      DATA_FIELDS: its `data` fields, each made by `data_pipelines.fields.field`.
      headline: scores that stand for several held-out sets by their means over them.
      ability: what its models do, as in "it tags words", whatever their heads.
      together: inputs that are answered at once, at most.

    Attributes:
      objective: what is compiled.
      tokenizer: of the data.
      labels: names of its classes, in the order of their numbers; empty where it has none.
      config: the configuration, with what the data alone tell.
    """

    DATA_FIELDS: ClassVar[Mapping[str, Field]]
    primary_metrics: tuple[str, ...] = ()
    description: ClassVar[str] = "answers what its task asks"
    together: ClassVar[int] = 4096
    objective: Objective
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()
    config: Config

    @abc.abstractmethod
    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        """Opens and checks the data; raises InputError in one sentence.

        Args:
          hosts, host: how many share the rows of each batch, and which of them this is.
        """

    @classmethod
    def describe_model(cls, config: Config) -> str:
        """What a model of this configuration does, where not all models of the task do the same."""
        return cls.description

    @property
    @abc.abstractmethod
    def examples_per_epoch(self) -> int:
        """Of one pass over the training data, `batch_size` being those of a step: rows where
        packing is part of the data, else what is packed into them.
        """

    @property
    @abc.abstractmethod
    def data_fingerprint(self) -> str:
        """Hex digest that changes with the training data."""

    @property
    @abc.abstractmethod
    def told(self) -> str:
        """The training data in a phrase, for a person."""

    @property
    def data_card(self) -> Mapping[str, str]:
        """What a model card tells of the training data, by their names."""
        return {}

    def with_config(self, config: Config) -> "Task":
        """The same data in the order of another configuration, which differs in its seeds."""
        return type(self)(config)

    @staticmethod
    def is_degenerate(scores: Mapping[str, float]) -> bool:
        """Whether scores are those of a run that has learned nothing."""
        return False

    def prepare(self, steps: int | None) -> None:  # noqa: B027 (most have their rows by then)
        """Called once before training: a task that chooses its rows gives its objective those that
        so many steps need; None where the clock ends the run.
        """

    @abc.abstractmethod
    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        """This host's rows of the global batches of steps start..stop-1, or of all from `start`."""

    @abc.abstractmethod
    def eval_sets(self) -> Sequence[EvalSet]:
        """All held-out data; none where there are none."""

    @abc.abstractmethod
    def format_sequence(self, batch: HostBatch, row: int) -> str:
        """A row of a batch as text for a person."""

    @staticmethod
    @abc.abstractmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        """Fields of a configuration that could have made a model; None where its heads are not of
        this task.
        """

    @staticmethod
    def inputs(lines: Iterable[str]) -> Iterable[Input]:
        """What the lines of a file ask: each a text, or a JSON object; blank ones are passed over.

        They are read as they are asked for, but where it takes all of them to know what is asked;
        then it is a list.

        Raises:
          InputError: a line is no such object; it is named by its number.
        """
        for number, line in enumerate(lines, 1):
            if text := line.strip():
                location = f"line {number}"
                values = parse_object(location, text).values if text.startswith("{") else text
                yield Input(location, values)

    @staticmethod
    @abc.abstractmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterable[dict[str, Any]]:
        """An answer to each of some inputs, no more than `together`; needs no training data.

        Args:
          everything: tells also what the answer was chosen from.
        Raises:
          InputError: an input is not what the task takes; its place is named.
        """

    @staticmethod
    def sample_arguments(config: Config) -> str:
        """Arguments of `bertjax predict` that a model of the configuration answers."""
        return "--input FILE"

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """The output of an evaluation as a page of HTML."""
        raise InputError(
            f"{directory} is an evaluation that scores.json says all of: give a workdir."
        )


def check_type_vocab_size(config: Config, segments: str) -> None:
    """Raises InputError where a model cannot tell the second part of a row from the first."""
    if config.model.type_vocab_size < 2:
        raise InputError(
            f"model.type_vocab_size={config.model.type_vocab_size} tells one part of a row, and "
            f"here are two, {segments}: take a model with two."
        )


def check_vocabulary(name: epath.PathLike, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises InputError where the tokenizer of `name` has more pieces than the model vectors."""
    tokens = len(tokenizer.tokens)
    if tokens > vocab_size:
        raise InputError(
            f"the vocabulary of {name} has {tokens:,} pieces and model.vocab_size="
            f"{vocab_size:,}: raise it to at least that."
        )


def next_power_of_two(size: int) -> int:
    """The next power of two: sizes that are rounded to it are few, and so are compiled programs."""
    return 1 << max(int(size) - 1, 0).bit_length()
