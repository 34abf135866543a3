"""Pipeline that classifies texts and pairs of texts."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.pipeline import (
    Content,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    RunFunction,
    bar_block,
    text_block,
    truncation_mark,
)
from bertjax.tasks.sequence_classification.data import columns_from_config
from bertjax.tasks.sequence_classification.evaluation import (
    SequenceClassificationEvalSet,
    format_prediction,
)
from bertjax.tasks.sequence_classification.objective import SequenceClassificationObjective
from bertjax.tasks.task import check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    dataset_from_rows,
)
from data_pipelines.finetuning.table import TableRow

_PAIR_KEY = "text_pair"  # of a second text for a published model, whose columns have no names
_DESCRIPTIONS = {
    "single_label_classification": "predicts the class of texts",
    "multi_label_classification": "predicts the labels of texts",
    "regression": "predicts a number for texts",
}
# Columns of each input that its answer repeats, and the encoded texts.
Context = tuple[list[dict[str, Any]], SequenceClassificationEvalSet]


class SequenceClassificationPipeline(Pipeline[Context]):
    """Class, labels or number of a text."""

    method = "classify"
    description = "predicts the class, the labels or a number of texts"
    objective: SequenceClassificationObjective

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.description = _DESCRIPTIONS[self.objective.problem_type]
        self.labels = self.labels or tuple(
            f"LABEL_{i}" for i in range(self.config.model.num_labels)
        )

    @staticmethod
    def parse_arguments(texts: Content | Iterable[Content]) -> Any:
        """Return the text with its "label" and "score", its "labels", or a "score" alone.

        These are the answers for one class, several labels and regression. `return_all_scores`
        adds "scores", the probability of each label.

        Args:
          texts: a text, or an object with the columns that were trained, or several. A published
            model of pairs takes {"text", "text_pair"}.

        Raises:
          InputError: the model has another head or one token type for a pair, or a text is empty.
        """
        return texts

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the columns of the texts, and the second text that `preprocess` may reject."""
        columns = columns_from_config(self.config)
        return {*columns.text, *columns.text_pair, _PAIR_KEY}

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches of the texts."""
        # Inputs have no ids.
        columns = dataclasses.replace(columns_from_config(self.config), id="")
        rows = [_to_table_row(item, columns) for item in inputs]
        is_published = not any(self.config.data[name] for name in ("dir", "train_file"))
        names = (*columns.text, *columns.text_pair)
        data = dataset_from_rows("input", rows, columns, False)
        texts = [{name: _or_none(row.values[name]) for name in names} for row in rows]
        # Rows of a published model may be texts and pairs; null stands for no second text.
        if pairs := {
            number: row
            for number, row in enumerate(rows)
            if _PAIR_KEY not in names and row.values.get(_PAIR_KEY) is not None
        }:
            text_pairs: list[str | None] = [None] * len(rows)
            for number, row in pairs.items():
                if not is_published:
                    _reject_pair(row.location, columns)
                text_pairs[number] = row.text((_PAIR_KEY,))
                texts[number][_PAIR_KEY] = row.values[_PAIR_KEY]
            data = dataclasses.replace(data, text_pairs=text_pairs)
        eval_set = self._encode(data)
        return eval_set.batches(), (texts, eval_set)

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield each text with its prediction."""
        texts, eval_set = context
        options = self.labels, self.objective.problem_type, return_all_scores
        pairs = zip(texts, eval_set.predictions(outputs), strict=True)
        for number, (columns, prediction) in enumerate(pairs):
            mark = truncation_mark(number in eval_set.truncated)
            yield columns | format_prediction(prediction, *options) | mark

    def predict_dataset(self, run: RunFunction, data: SequenceClassificationDataset) -> np.ndarray:
        """Return probabilities [N, C], or numbers [N], of texts without labels, float64."""
        eval_set = self._encode(data)
        return eval_set.predictions(run(eval_set.batches()))

    def _encode(self, data: SequenceClassificationDataset) -> SequenceClassificationEvalSet:
        if data.text_pairs is not None:
            check_type_vocab_size(self.config.model, "the texts of a pair")
        return SequenceClassificationEvalSet(
            data.name, data, self.tokenizer, self.objective, self.labels
        )

    def sample_input(self, text: str = "Where is my card?", word: str = "...") -> Content:
        """Return a text, or an object with the columns that were trained."""
        columns = columns_from_config(self.config)
        first, *others = (*columns.text, *columns.text_pair)
        return {first: text, **dict.fromkeys(others, word)} if others else text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the prediction, and a chart of all labels."""
        if self.objective.problem_type == "regression":
            return [text_block(str(answer["score"]))]
        labels = answer.get("labels", [answer.get("label")])
        text = text_block(", ".join(labels) or "No label.", muted=not labels)
        return [text, bar_block(answer["scores"].items())]


def _or_none(value: Any) -> Any:
    """Return a value, None for NaN, which pandas writes for a missing text and JSON lacks."""
    return None if value != value else value


def _reject_pair(location: str, columns: TableColumns) -> None:
    """Raise InputError for a second text that the model would ignore."""
    names = (*columns.text, *columns.text_pair)
    raise InputError(
        f'{location}: "{_PAIR_KEY}": the model reads {", ".join(names)}. Leave it out, or train '
        f"with data.text_pair={_PAIR_KEY}."
    )


def _to_table_row(item: PredictInput, columns: TableColumns) -> TableRow:
    location, content = item
    if not isinstance(content, str):
        values = dict(content)
        for names in (columns.text, columns.text_pair):
            if len(names) > 1 and not values.keys().isdisjoint(names):
                values = dict.fromkeys(names) | values  # joined, some may be missing
        return TableRow(location, values)
    if columns.text_pair or len(columns.text) > 1:
        names = (*columns.text, *columns.text_pair)
        keys = ", ".join(f'"{name}": "..."' for name in names)
        raise InputError(
            f"{location}: the input is one text, and the model reads {len(names)}. Give {{{keys}}}."
        )
    return TableRow(location, {columns.text[0]: content})
