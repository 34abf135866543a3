"""Choosing one of several answers: SWAG and what has its layout (paper, section 4.4)."""

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import Model
from bertjax.tasks import finetuning, task
from bertjax.tasks.data import FIELDS, TFDS_SPLITS, find_tables, tokenizer_of
from bertjax.tasks.evaluations import PREDICTIONS
from bertjax.tasks.finetuning import Laid, show_examples
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.task import EXAMPLES, Evaluation, EvaluationSet, HostBatch, Input, Opened
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.multiple_choice import Choices, by_question, encode, from_rows
from data_pipelines.finetuning.packed_examples import Examples, Shape, Target
from data_pipelines.finetuning.table import Row, read_table, read_tfds_table
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.coverage import warn_of_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_PIECES = 16  # of an answer, at least, by which a row has places for answers


class Objective(finetuning.Objective):
    """The encoder with a score for each answer; those of a question lie in one row."""

    heads = ("choice",)
    outputs = ("choice_logits",)
    GROUPED = True

    def __init__(self, config: Config, multiple: int = 1) -> None:
        super().__init__(config, multiple)
        task.check_types(config, "question and answer")

    @property
    def row(self) -> Shape:
        # A question by itself has all its answers in one row all the same.
        return Shape(self.config.seq_len, max(2, self.config.seq_len // _PIECES))

    def targets(self) -> Mapping[str, Target]:
        return {"choice": Target("example", np.zeros(0, np.int32))}


class Task(finetuning.Task):
    """Questions with any number of answers, of which one is right."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS | {
        "longest": field(
            128, "the most pieces of an answer with its question; the longer text loses them first"
        )
    }
    headline = ("accuracy",)
    ability = "chooses one of several answers"
    objective: Objective

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        super().__init__(config, hosts, host, Objective)
        self.tokenizer = tokenizer_of(config)
        row, rows = self.objective.row, self.objective.eval_rows
        found = read_sets(config, "dev")
        warn_of_loss(self.tokenizer, {name: data.all_texts for name, data in found})
        self._sets = [
            Questions(name, data, self.tokenizer, config, row, rows, hosts, host)
            for name, data in found
        ]

    @functools.cached_property
    def examples(self) -> Examples:
        ((name, data),) = read_sets(self.config, "train")
        warn_of_loss(self.tokenizer, {name: data.all_texts})
        return _encoded(name, data, self.tokenizer, self.config, self.objective.row)

    def evaluation_sets(self) -> Sequence[EvaluationSet]:
        return self._sets

    def show(self, batch: HostBatch, row: int) -> str:
        """An answer a line, the number of its question before it, and a star at the right one."""
        groups, right = batch["groups"][row], batch["choice_targets"][row]
        marks = [f"{group}{' *' * int(mark)}" for group, mark in zip(groups, right, strict=True)]
        return show_examples(batch, row, self.tokenizer, marks)

    @staticmethod
    def of_model(model: Model) -> Mapping[str, Any] | None:
        return {"seq_len": model.config.max_positions} if "choice" in model.params else None

    @staticmethod
    def example(config: Config) -> str:
        return """--text '{"context": "She opens the", "choices": ["door", "sky"]}'"""

    @staticmethod
    def predict(
        opened: Opened, inputs: Sequence[Input], everything: bool = False
    ) -> Iterator[dict[str, Any]]:
        """The answer to each question, an object with "context" and "choices", or in SWAG's
        columns.
        """
        data = from_rows("input", map(_row, inputs), False)
        row = Objective(opened.config).row
        asked = Questions("input", data, opened.tokenizer, opened.config, row)
        logits = [found["choice_logits"] for found in opened.run(asked.batches())]
        for question, said in zip(data.questions, asked.said(logits), strict=True):
            yield {"context": question.context} | _answer(question.answers, said, everything)

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        texts = [
            (
                set_name,
                [
                    f"{question.context} [{' | '.join(question.answers)}]"
                    for question in data.questions
                ],
            )
            for set_name, data in read_sets(config, "dev")
        ]
        return report.render(name, directory, texts, "choice")


class Questions(Laid):
    """Held-out questions; see `Laid` for the arguments."""

    def __init__(
        self,
        name: str,
        data: Choices,
        tokenizer: Tokenizer,
        config: Config,
        row: Shape,
        rows: int = 0,
        hosts: int = 1,
        host: int = 0,
    ) -> None:
        self.name, self.data = name, data
        super().__init__(_encoded(name, data, tokenizer, config, row), row, rows, hosts, host)

    def said(self, logits: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The probability of each answer of each question, float64, from the logits [R, K, 1]."""
        each = np.asarray(self.split(logits, "example"), np.float64)[:, 0]
        found = []
        for scores in by_question(self.data, each):
            powers = np.exp(scores - scores.max())
            found.append(powers / powers.sum())
        return found

    def evaluation(
        self, means: Mapping[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        """`accuracy`, from 0 to 1; the file is `predictions`."""
        said = self.said([each["choice_logits"] for each in outputs])
        right = [
            each.argmax() == q.right for q, each in zip(self.data.questions, said, strict=True)
        ]
        entries = [
            {
                "id": str(number),
                "gold": str(question.right),
                "label": str(each.argmax()),
                "probability": round(float(each.max()), 6),
                "probabilities": {str(i): round(float(p), 6) for i, p in enumerate(each)},
            }
            for number, (question, each) in enumerate(zip(self.data.questions, said, strict=True))
        ]
        examples = [
            f"{question.context} → {question.answers[each.argmax()]} ({question.answers[gold]})"
            for question, each in itertools.islice(
                zip(self.data.questions, said, strict=True), EXAMPLES
            )
            if (gold := question.right) is not None
        ]
        return Evaluation(
            {"accuracy": float(np.mean(right))}, {PREDICTIONS: entries}, examples=examples
        )


def read_sets(config: Config, split: str) -> list[tuple[str, Choices]]:
    """Name and questions of each data set of a split, "train" or "dev".

    Raises:
      InputError: a file is missing, or not of a layout that is known.
    """
    if config.data["dir"].startswith(TFDS):
        source, part = config.data["dir"], config.data[split] or TFDS_SPLITS[split]
        return [(split, from_rows(source, read_tfds_table(source, part), True))]
    return [
        (name, from_rows(str(path), read_table(path), True))
        for name, path in find_tables(config, split)
    ]


def _row(asked: Input) -> Row:
    if isinstance(asked.said, str):
        raise InputError(
            f'{asked.place} is not of the form {{"context": "...", "choices": ["...", "..."]}}: '
            "write a JSON object a line."
        )
    return Row(asked.place, dict(asked.said))


def _answer(answers: Sequence[str], said: np.ndarray, everything: bool) -> dict[str, Any]:
    best = int(said.argmax())
    found: dict[str, Any] = {
        "label": best,
        "answer": answers[best],
        "probability": round(float(said[best]), 6),
    }
    return found | ({"probabilities": [round(float(p), 6) for p in said]} if everything else {})


def _encoded(
    name: str, data: Choices, tokenizer: Tokenizer, config: Config, row: Shape
) -> Examples:
    longest = config.data["longest"]
    examples, cut = encode(data, tokenizer, longest, row.pieces, row.examples)
    if cut:
        _log.warning(
            "%s: %d of %d answers are longer with their question than data.longest=%d, or than "
            "their share of seq_len=%d, and were cut.",
            name,
            cut,
            len(examples.lengths),
            longest,
            row.pieces,
        )
    return examples
