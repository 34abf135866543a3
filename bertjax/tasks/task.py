"""Contract of a task, which the trainer, the evaluator and reports use.

A task has three parts. Its objective (`bertjax.steps.objective`) follows from the configuration
alone. Its data are training batches by step and named eval sets. Its evaluation turns outputs into
predictions, metrics, files and a report. Its pipelines (`bertjax.tasks.pipeline`) serve predictors.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.stored_logits import StoredLogits
from bertjax.formats.tensors import NumpyModel
from bertjax.model.bert_config import BertConfig
from bertjax.steps.objective import Objective
from bertjax.tasks.distillation import make_logits_objective, open_logits
from bertjax.tasks.pipeline import HostBatch, Outputs, Pipeline, RunFunction, check_methods
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.vocabulary.tokenization import Tokenizer

NUM_EXAMPLES_SHOWN = 8  # of an eval set, in TensorBoard
EVALUATION_FILE = "evaluation.json"  # checkpoints and configuration of an evaluation
_STORED_TYPES = (bool, int, float, str, type(None))  # of a field in an export
_MIN_SEQ_LENGTH, _SHARED_SEQ_LENGTH = 16, 64  # tokens, of one text and of several


class Evaluation(NamedTuple):
    """Result of an evaluation.

    Attributes:
      scores: metric name -> value.
      files: file name without `.json` -> its content; a string is written under its full name.
      examples: the first `NUM_EXAMPLES_SHOWN` examples with their predictions, a line each.
    """

    scores: dict[str, float]
    files: Mapping[str, Any] = {}
    examples: Sequence[str] = ()


class EvalSet(Protocol):
    """A named eval set.

    It may have `score_names`, the names of its evaluation's scores beside the means. Without them a
    run with `best_metric` may have to evaluate before its first step. It may have `keep_outputs`,
    from the number of a batch and its outputs, perhaps of several runs along a first axis, to the
    outputs that `evaluation` reads. It may generate texts, too: see `GeneratingEvalSet`.
    """

    @property
    def name(self) -> str:
        """Name in metrics and files."""

    def batches(self) -> Iterable[HostBatch]:
        """Return this process's sequences of each batch; every example occurs once."""

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the metrics and files of this eval set.

        Args:
          means: means of the objective's sums over all batches, and the total `loss`.
          outputs: for each batch the objective's `eval_outputs` of all processes' sequences.
        """


@runtime_checkable
class GeneratingEvalSet(EvalSet, Protocol):
    """Eval set for whose examples a model also generates texts."""

    @property
    def num_generated(self) -> int:
        """Number of these examples; 0 for none."""

    def evaluate_generated(self, run: RunFunction) -> Evaluation:
        """Return further scores and files, which are those of the generated texts.

        Args:
          run: computes batches that the task's pipeline prepares.
        """


class Task(abc.ABC):
    """A task with its data.

    Class attributes:
      objective_class: type of `objective`.
      pipeline_classes: pipelines of the task's models; see `pipeline_class`.
      DATA_FIELDS: fields of the configuration's `data`, each a `data_pipelines.fields.field`.
      INFERENCE_FIELDS: dotted fields of the configuration that change answers, such as
        "data.doc_stride". Exports store them, and the calibration, `decoding` and `extraction`.
      primary_metrics: metrics that are averaged over several eval sets; the first ranks runs.
      calibration: scores that the pipeline uses, such as a threshold; a checkpoint has them.

    Attributes:
      objective: loss and shapes.
      tokenizer: tokenizer of the data.
      labels: names of the classes in the order of their ids, of one head after the other; empty
        if the task has none.
      stored_logits: logits of a teacher, once `open_logits` has opened them; or None.
      config: configuration, completed by what only the data determine.

    Args:
      config: configuration of the run.
      num_processes: processes that share the sequences of each batch.
      process_id: index of this process.

    Raises:
      InputError: the data are missing or invalid.
    """

    def __init_subclass__(cls) -> None:
        check_methods(cls)
        data = getattr(cls, "DATA_FIELDS", {})
        known = {f"data.{x}" for x in data if isinstance(data[x].default, _STORED_TYPES)}
        for field in dataclasses.fields(Config):
            if field.default_factory is dataclasses.MISSING:  # no section
                known.add(field.name)
        if unknown := [x for x in cls.INFERENCE_FIELDS if x not in known]:
            raise TypeError(
                f"{cls.__name__}.INFERENCE_FIELDS: {unknown[0]!r} is no field of a number or text."
            )

    objective_class: ClassVar[type[Objective]]
    pipeline_classes: ClassVar[tuple[type[Pipeline[Any]], ...]]
    DATA_FIELDS: ClassVar[Mapping[str, Field]]
    INFERENCE_FIELDS: ClassVar[tuple[str, ...]] = ()
    primary_metrics: tuple[str, ...] = ()
    calibration: tuple[str, ...] = ()
    objective: Objective
    tokenizer: Tokenizer
    labels: tuple[str, ...] = ()
    stored_logits: StoredLogits | None = None
    config: Config

    @abc.abstractmethod
    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None: ...

    @classmethod
    def pipeline_class(cls, config: Config) -> type[Pipeline[Any]]:
        """Return the pipeline of the models of a configuration."""
        return cls.pipeline_classes[0]

    @classmethod
    @abc.abstractmethod
    def config_for_model(cls, model: NumpyModel) -> Mapping[str, Any] | None:
        """Return configuration fields for a model of another format; None for another task's."""

    @classmethod
    def make_train_objective(
        cls,
        config: Config,
        objective: Any,
        parts: Iterable[str] | None = None,
        load_teacher: Callable[[], Any] | None = None,
    ) -> Objective:
        """Return the objective of the train step; see `make_logits_objective`."""
        return make_logits_objective(config, objective, parts, load_teacher)

    @classmethod
    def max_text_length(cls, config: Config) -> int:
        """Return the tokens, special ones included, at which a text or a pair is cut."""
        return config.max_seq_length

    # Data.

    @property
    @abc.abstractmethod
    def examples_per_epoch(self) -> int:
        """Number of training examples; of sequences, if packing is part of the data."""

    @property
    @abc.abstractmethod
    def data_fingerprint(self) -> str:
        """Hex digest of the training data."""

    @property
    @abc.abstractmethod
    def data_summary(self) -> str:
        """Phrase that describes the training data."""

    @property
    def corpus_descriptions(self) -> Mapping[str, str]:
        """Size and license of each training corpus by its name, for a model card."""
        return {}

    def with_config(self, config: Config) -> "Task":
        """Return a task with the same data for a configuration that differs in its seeds."""
        self.open_logits()
        other = type(self)(config)
        other.stored_logits = self.stored_logits
        return other

    def prepare(self, steps: int | None) -> None:
        """Prepare training; packing sets the objective's batch size here.

        Args:
          steps: steps of the run; None if a time budget ends it.

        Raises:
          InputError: `distill.logits` does not fit the data.
        """
        self.open_logits()

    def open_logits(self) -> None:
        """Open the logits of `distill.logits`, if there are any and they are not open yet."""
        if self.config.distill.logits and self.stored_logits is None:
            self.stored_logits = open_logits(
                self.config, self.objective, self.tokenizer, self.labels
            )

    def with_logits(self, batches: Iterable[HostBatch]) -> Iterable[HostBatch]:
        """Return training batches with the stored logits of their examples, if there are any."""
        stored, tokenizer = self.stored_logits, self.tokenizer
        if stored is None:
            return batches
        return (stored.add_to(batch, tokenizer) for batch in batches)

    @abc.abstractmethod
    def train_batches(self, start: int, stop: int | None) -> Iterable[HostBatch]:
        """Return this process's sequences of the batches of steps [start, stop)."""

    @abc.abstractmethod
    def eval_sets(self) -> Sequence[EvalSet]:
        """Return all eval sets."""

    # Evaluation.

    @abc.abstractmethod
    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return a sequence of a batch as text for a person."""

    @staticmethod
    def is_degenerate(scores: Mapping[str, float], metric: str) -> bool:
        """Return whether a run with these scores, ranked by a metric, learned nothing."""
        return False

    @classmethod
    def report(cls, name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation.

        Args:
          name: title.
          config: configuration of the evaluation.
          directory: output of `bertjax evaluate`.
        """
        raise InputError(
            f"{directory}: this task's evaluations have no report; scores.json holds all metrics. "
            "Give a workdir."
        )


def check_type_vocab_size(model: BertConfig, segments: str) -> None:
    """Raise InputError if the model has one token type and sequences have two segments."""
    if model.type_vocab_size < 2:
        raise InputError(
            f"model.type_vocab_size={model.type_vocab_size}: sequences have two segments, "
            f"{segments}. Use a model with two token types."
        )


def check_vocabulary(name: epath.PathLike, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise InputError if the tokenizer of `name` has more tokens than the model embeddings."""
    num_tokens = len(tokenizer.tokens)
    if num_tokens > vocab_size:
        raise InputError(
            f"model.vocab_size={vocab_size:,}: the vocabulary of {name} has {num_tokens:,} tokens. "
            "Raise it to at least that."
        )


def shapes_of_batch(arrays: HostBatch, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a batch of `size` sequences that has these arrays."""
    return {
        name: jax.ShapeDtypeStruct((size, *array.shape[1:]), array.dtype)
        for name, array in arrays.items()
    }


def packed_sequence_length(longest: int, total: int, maximum: int | None = None) -> int:
    """Return the tokens of sequences that hold some texts, a power of two.

    Several short texts share a sequence of 64 tokens, and a single one has a shorter sequence.

    Args:
      longest: tokens of the longest text.
      total: tokens of all texts.
      maximum: maximal tokens of a sequence.
    """
    minimum = min(_SHARED_SEQ_LENGTH, bucket_size(total, _MIN_SEQ_LENGTH))
    return bucket_size(longest, minimum, maximum)


def bucket_size(size: int, minimum: int = 1, maximum: int | None = None) -> int:
    """Return the power of two >= `size` and `minimum`, at most `maximum`; so few shapes compile."""
    power = 1 << max(int(size) - 1, minimum - 1, 0).bit_length()
    return power if maximum is None else min(power, maximum)
