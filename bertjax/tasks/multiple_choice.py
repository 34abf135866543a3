"""Multiple choice: SWAG and data sets in its layout (paper, section 4.4)."""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath
from scipy.special import softmax

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import (
    FinetuningObjective,
    FinetuningTask,
    PackedEvalSet,
    format_examples,
)
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, TFDS_SPLITS, find_tables
from bertjax.tasks.pipeline import (
    Content,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    bar_block,
    pair_arguments,
    round_scores,
    text_block,
    truncation_mark,
)
from bertjax.tasks.saved_evaluation import PREDICTIONS
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation, check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.multiple_choice import (
    MultipleChoiceDataset,
    dataset_from_rows,
    encode_questions,
    group_by_question,
)
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.table import TableRow, read_table, read_tfds_table
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")
_MIN_CHOICE_LENGTH = 5  # a token each of context and choice, [CLS], two [SEP]


class MultipleChoiceObjective(FinetuningObjective):
    """Encoder with a score for each choice; the choices of a question share a sequence."""

    # Without packing a sequence would hold all choices of a question, but their number is unknown.
    UNUSED_FIELDS = FinetuningObjective.UNUSED_FIELDS | {"packing"}
    heads = ("multiple_choice",)
    eval_outputs = ("multiple_choice_logits",)
    GROUPED = True
    MIN_TOKENS_PER_EXAMPLE = 16

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        self.segments = "context and choice"
        check_type_vocab_size(config.model, self.segments)
        if (length := config.data["max_choice_length"]) < _MIN_CHOICE_LENGTH:
            raise InputError(
                f"data.max_choice_length={length}: no space for context and choice. Use at least "
                f"{_MIN_CHOICE_LENGTH}."
            )

    @property
    def sequence_shape(self) -> PackedShape:
        """Tokens and examples that a sequence holds at most."""
        length = self.config.max_seq_length
        return PackedShape(length, max(2, length // self.MIN_TOKENS_PER_EXAMPLE))

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return {"choice_labels": Target("example", np.zeros(0, np.int32))}


class MultipleChoicePipeline(Pipeline["MultipleChoiceEvalSet"]):
    """Probability of each choice of a question."""

    method = "choose"
    description = "chooses one of several answers"
    objective: MultipleChoiceObjective

    @staticmethod
    def parse_arguments(
        context: str | Iterable[str], choices: Iterable[str] | Iterable[Iterable[str]]
    ) -> Any:
        """Return the most probable choice: {"context", "label", "answer", "score"}.

        `label` is its index. `return_all_scores` adds "scores", one for each choice.

        Args:
          context: a context, or several.
          choices: choices of the context, or of each context.

        Raises:
          InputError: the model has another head, there are not as many lists of choices as
            contexts, or a question has fewer than two choices.
        """
        if isinstance(context, str):
            return {"context": context, "choices": _as_list(choices)}
        return pair_arguments(context=context, choices=map(_as_list, choices))

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of a list of choices; other layouts have keys of their own."""
        return {"context", "question", "choices"} if "choices" in content else content.keys()

    def preprocess(
        self, inputs: Sequence[PredictInput]
    ) -> tuple[Iterator[HostBatch], "MultipleChoiceEvalSet"]:
        """Return packed batches of choices, each with its context and question."""
        data = dataset_from_rows("input", map(_to_table_row, inputs), False)
        eval_set = MultipleChoiceEvalSet("input", data, self.tokenizer, self.objective)
        return eval_set.batches(), eval_set

    def postprocess(
        self, context: "MultipleChoiceEvalSet", outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the most probable choice of each question."""
        predictions = context.predictions(outputs)
        pairs = zip(context.data.questions, predictions, strict=True)
        for number, (question, scores) in enumerate(pairs):
            label = int(scores.argmax())
            answer: dict[str, Any] = {
                "context": question.context,
                **({"question": question.question} if question.question else {}),
                "label": label,
                "answer": question.choices[label],
                "score": round(float(scores[label]), 6),
            }
            if return_all_scores:
                answer["scores"] = round_scores(scores)
            yield answer | truncation_mark(number in context.truncated)

    def sample_input(self, text: str = "", word: str = "") -> Content:
        """Return a context with two choices."""
        if not text:
            return {"context": "She opens the", "choices": ["door", "sky"]}
        # A sequence holds the context once for each choice.
        return {"context": " ".join(text.split()[::2]), "choices": [word, word]}

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answer, and a chart of all choices."""
        row = _to_table_row(PredictInput("input", content))
        (question,) = dataset_from_rows("input", [row], False).questions
        bars = bar_block(zip(question.choices, answer["scores"], strict=True))
        return [text_block(answer["answer"]), bars]


class MultipleChoiceTask(FinetuningTask):
    """Questions with any number of choices, one of which is right."""

    objective_class = MultipleChoiceObjective
    pipeline_classes = (MultipleChoicePipeline,)
    objective: MultipleChoiceObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "max_choice_length": field(
            128,
            "tokens of a context with one choice; the longer text loses tokens first, beside a "
            "question the context",
        )
    }
    INFERENCE_FIELDS = ("max_seq_length", "data.max_choice_length")
    primary_metrics = ("accuracy",)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with the head of this task."""
        if super().config_for_model(model) is None:
            return None
        fields = {"max_seq_length": model.config.max_position_embeddings}
        return {**fields, "data": {"max_choice_length": model.max_text_length}}

    @classmethod
    def max_text_length(cls, config: Config) -> int:
        """Return the tokens at which a context with one choice is cut."""
        return min(int(config.data["max_choice_length"]), config.max_seq_length)

    @staticmethod
    def read_sets(config: Config, split: str) -> list[tuple[str, MultipleChoiceDataset]]:
        """Return name and questions of each data set of a split, "train" or "eval"."""
        source = config.data["dir"]
        if source.startswith(TFDS):
            part = config.data[f"{split}_file"] or TFDS_SPLITS[split]
            return [(split, dataset_from_rows(source, read_tfds_table(source, part), True))]
        return [
            (name, dataset_from_rows(str(path), read_table(path), True))
            for name, path in find_tables(config, split)
        ]

    @staticmethod
    def read_unlabeled(config: Config) -> MultipleChoiceDataset:
        """Return the questions of `distill.unlabeled`; their labels are not read."""
        path = config.distill.unlabeled
        return dataset_from_rows(path, read_table(path), False)

    def encode(self, name: str, data: MultipleChoiceDataset) -> Examples:
        """Return the choices of the questions."""
        return encode(name, data, self.tokenizer, self.objective)[0]

    def make_eval_set(
        self, name: str, data: MultipleChoiceDataset, *packing: Any
    ) -> "MultipleChoiceEvalSet":
        """Return an eval set of the questions."""
        return MultipleChoiceEvalSet(name, data, self.tokenizer, self.objective, *packing)

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return one choice a line after the number of its question, with a star if it is right."""
        group_ids, labels = batch["group_ids"][index], batch["choice_labels"][index]
        marks = [
            f"{group}{' *' * int(mark)}" for group, mark in zip(group_ids, labels, strict=True)
        ]
        return format_examples(batch, index, self.tokenizer, marks)

    @classmethod
    def report(cls, name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        texts = [
            (
                set_name,
                [f"{q.context_and_question} [{' | '.join(q.choices)}]" for q in data.questions],
            )
            for set_name, data in cls.read_sets(config, "eval")
        ]
        return report.render(name, directory, texts, "multiple_choice")


class MultipleChoiceEvalSet(PackedEvalSet):
    """Eval set of questions.

    Args:
      name: name of the data set.
      data: its questions.
      tokenizer: tokenizer of the model.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.
    """

    score_names = ("accuracy",)

    def __init__(
        self,
        name: str,
        data: MultipleChoiceDataset,
        tokenizer: Tokenizer,
        objective: MultipleChoiceObjective,
        *packing: Any,
    ) -> None:
        self.name, self.data = name, data
        examples, truncated = encode(name, data, tokenizer, objective)
        self.truncated = frozenset(truncated)  # indices of the questions that lost tokens
        super().__init__(examples, objective.sequence_shape, *packing)

    def predictions(self, outputs: Iterable[Outputs]) -> list[np.ndarray]:
        """Return the probabilities of each question's choices, float64."""
        logits = self.unpack_outputs(outputs, "multiple_choice_logits", "example")
        choice_logits = np.asarray(logits, np.float64)[:, 0]
        return [softmax(group) for group in group_by_question(self.data, choice_logits)]

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return `accuracy` in [0, 1] and the file `predictions`."""
        pairs = [*zip(self.data.questions, self.predictions(outputs), strict=True)]
        entries = [
            {
                "id": str(number),
                "gold": str(question.label),
                "label": str(scores.argmax()),
                "score": round(float(scores.max()), 6),
                "scores": {str(i): score for i, score in enumerate(round_scores(scores))},
            }
            for number, (question, scores) in enumerate(pairs)
        ]
        examples = [
            f"{question.context_and_question} → {question.choices[scores.argmax()]} "
            f"({question.choices[gold]})"
            for question, scores in itertools.islice(pairs, NUM_EXAMPLES_SHOWN)
            if (gold := question.label) is not None
        ]
        accuracy = np.mean([scores.argmax() == question.label for question, scores in pairs])
        return Evaluation({"accuracy": float(accuracy)}, {PREDICTIONS: entries}, examples=examples)


def _as_list(choices: Any) -> list[Any]:
    if isinstance(choices, str):
        raise InputError(f"choices={choices!r}: a text is no list of choices. Give a list.")
    return list(choices)


def _to_table_row(item: PredictInput) -> TableRow:
    if isinstance(item.content, str):
        raise InputError(
            f"{item.location}: the input is a text. Give an object "
            '{"context": "...", "choices": ["...", "..."]}.'
        )
    return TableRow(item.location, dict(item.content))


def encode(
    name: str, data: MultipleChoiceDataset, tokenizer: Tokenizer, objective: MultipleChoiceObjective
) -> tuple[Examples, list[int]]:
    """Return what `encode_questions` does; log how many choices were truncated."""
    shape, max_length = objective.sequence_shape, objective.config.data["max_choice_length"]
    examples, truncated = encode_questions(data, tokenizer, max_length, *shape[:2])
    if truncated:
        _log.warning(
            "%s: truncated %d of %d choices, which with their context are longer than "
            "data.max_choice_length=%d or their share of max_seq_length=%d.",
            name,
            len(truncated),
            len(examples.lengths),
            max_length,
            shape.tokens,
        )
    return examples, truncated
