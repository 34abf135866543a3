"""Choosing one of several answers: SWAG and what has its layout (paper, section 4.4)."""

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import finetuning, task
from bertjax.tasks.finetuning import PackedEvalSet, show_examples
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    TFDS_SPLITS,
    find_tables,
    load_task_tokenizer,
)
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.task import (
    NUM_EXAMPLES_SHOWN,
    EvalSet,
    Evaluation,
    HostBatch,
    Input,
    PredictorProtocol,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.multiple_choice import (
    MultipleChoiceDataset,
    encode_questions,
    from_rows,
    group_by_question,
)
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.table import TableRow, read_table, read_tfds_table
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_MIN_TOKENS_PER_EXAMPLE = 16  # of an answer, at least, by which a row has places for answers


class Objective(finetuning.Objective):
    """The encoder with a score for each answer; those of a question lie in one row."""

    heads = ("multiple_choice",)
    eval_outputs = ("multiple_choice_logits",)
    GROUPED = True

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        task.check_type_vocab_size(config, "question and answer")

    @property
    def row(self) -> PackedShape:
        # A question by itself has all its answers in one row all the same.
        return PackedShape(
            self.config.max_seq_length,
            max(2, self.config.max_seq_length // _MIN_TOKENS_PER_EXAMPLE),
        )

    def targets(self) -> Mapping[str, Target]:
        return {"choice_labels": Target("example", np.zeros(0, np.int32))}


class Task(finetuning.Task):
    """MultipleChoiceEvalSet with any number of answers, of which one is right."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "max_choice_length": field(
            128, "the most pieces of an answer with its question; the longer text loses them first"
        )
    }
    primary_metrics = ("accuracy",)
    description = "chooses one of several answers"
    objective: Objective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        super().__init__(config, num_processes, process_id, Objective)
        self.tokenizer = load_task_tokenizer(config)
        row, rows = self.objective.row, self.objective.eval_batch_size
        found = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.all_texts for name, data in found})
        self._sets = [
            MultipleChoiceEvalSet(
                name, data, self.tokenizer, config, row, rows, num_processes, process_id
            )
            for name, data in found
        ]

    @functools.cached_property
    def examples(self) -> Examples:
        ((name, data),) = read_sets(self.config, "train")
        warn_of_coverage_loss(self.tokenizer, {name: data.all_texts})
        return _encode(name, data, self.tokenizer, self.config, self.objective.row)

    def eval_sets(self) -> Sequence[EvalSet]:
        return self._sets

    def format_sequence(self, batch: HostBatch, row: int) -> str:
        """An answer a line, the number of its question before it, and a star at the right one."""
        group_ids, right = batch["group_ids"][row], batch["choice_labels"][row]
        marks = [f"{group}{' *' * int(mark)}" for group, mark in zip(group_ids, right, strict=True)]
        return show_examples(batch, row, self.tokenizer, marks)

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        return (
            {"max_seq_length": model.config.max_position_embeddings}
            if "multiple_choice" in model.params
            else None
        )

    @staticmethod
    def sample_arguments(config: Config) -> str:
        return """--text '{"context": "She opens the", "choices": ["door", "sky"]}'"""

    @staticmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The answer to each question, an object with "context" and "choices", or in SWAG's
        columns.
        """
        data = from_rows("input", map(_to_table_row, inputs), False)
        row = Objective(predictor.config).row
        item = MultipleChoiceEvalSet("input", data, predictor.tokenizer, predictor.config, row)
        logits = [found["multiple_choice_logits"] for found in predictor.run(item.batches())]
        for question, said in zip(data.questions, item.said(logits), strict=True):
            yield {"context": question.context} | _format_prediction(
                question.choices, said, return_all_scores
            )

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        texts = [
            (
                set_name,
                [
                    f"{question.context} [{' | '.join(question.choices)}]"
                    for question in data.questions
                ],
            )
            for set_name, data in read_sets(config, "eval")
        ]
        return report.render(name, directory, texts, "multiple_choice")


class MultipleChoiceEvalSet(PackedEvalSet):
    """Held-out questions; see `PackedEvalSet` for the arguments."""

    def __init__(
        self,
        name: str,
        data: MultipleChoiceDataset,
        tokenizer: Tokenizer,
        config: Config,
        row: PackedShape,
        rows: int = 0,
        num_processes: int = 1,
        process_id: int = 0,
    ) -> None:
        self.name, self.data = name, data
        super().__init__(
            _encode(name, data, tokenizer, config, row), row, rows, num_processes, process_id
        )

    def said(self, logits: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The probability of each answer of each question, float64, from the logits [R, K, 1]."""
        each = np.asarray(self.unpack_outputs(logits, "example"), np.float64)[:, 0]
        found = []
        for scores in group_by_question(self.data, each):
            powers = np.exp(scores - scores.max())
            found.append(powers / powers.sum())
        return found

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """`accuracy`, from 0 to 1; the file is `predictions`."""
        said = self.said([each["multiple_choice_logits"] for each in outputs])
        right = [
            each.argmax() == q.label for q, each in zip(self.data.questions, said, strict=True)
        ]
        entries = [
            {
                "id": str(number),
                "gold": str(question.label),
                "label": str(each.argmax()),
                "probability": round(float(each.max()), 6),
                "probabilities": {str(i): round(float(p), 6) for i, p in enumerate(each)},
            }
            for number, (question, each) in enumerate(zip(self.data.questions, said, strict=True))
        ]
        examples = [
            f"{question.context} → {question.choices[each.argmax()]} ({question.choices[gold]})"
            for question, each in itertools.islice(
                zip(self.data.questions, said, strict=True), NUM_EXAMPLES_SHOWN
            )
            if (gold := question.label) is not None
        ]
        return Evaluation(
            {"accuracy": float(np.mean(right))}, {PREDICTIONS: entries}, examples=examples
        )


def read_sets(config: Config, split: str) -> list[tuple[str, MultipleChoiceDataset]]:
    """Name and questions of each data set of a split, "train" or "eval".

    Raises:
      InputError: a file is missing, or not of a layout that is known.
    """
    if config.data["dir"].startswith(TFDS):
        source, part = config.data["dir"], config.data[f"{split}_file"] or TFDS_SPLITS[split]
        return [(split, from_rows(source, read_tfds_table(source, part), True))]
    return [
        (name, from_rows(str(path), read_table(path), True))
        for name, path in find_tables(config, split)
    ]


def _to_table_row(item: Input) -> TableRow:
    if isinstance(item.said, str):
        raise InputError(
            f'{item.location} is not of the form {{"context": "...", "choices": ["...", "..."]}}: '
            "write a JSON object a line."
        )
    return TableRow(item.location, dict(item.said))


def _format_prediction(
    answers: Sequence[str], said: np.ndarray, return_all_scores: bool
) -> dict[str, Any]:
    best = int(said.argmax())
    found: dict[str, Any] = {
        "label": best,
        "answer": answers[best],
        "probability": round(float(said[best]), 6),
    }
    return found | (
        {"probabilities": [round(float(p), 6) for p in said]} if return_all_scores else {}
    )


def _encode(
    name: str, data: MultipleChoiceDataset, tokenizer: Tokenizer, config: Config, row: PackedShape
) -> Examples:
    longest = config.data["max_choice_length"]
    examples, num_truncated = encode_questions(data, tokenizer, longest, row.tokens, row.examples)
    if num_truncated:
        _log.warning(
            "%s: %d of %d answers are longer with their question than data.max_choice_length=%d, or than "
            "their share of max_seq_length=%d, and were cut.",
            name,
            num_truncated,
            len(examples.lengths),
            longest,
            row.tokens,
        )
    return examples
