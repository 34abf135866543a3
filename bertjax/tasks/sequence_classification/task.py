"""Classification and regression of sentences and pairs (paper, section 4.1)."""

import dataclasses
import functools
import itertools
import json
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.loading import find_labels
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import finetuning
from bertjax.tasks.finetuning import show_examples
from bertjax.tasks.finetuning_data import has_training_table, load_task_tokenizer
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.sequence_classification.data import (
    FIELDS,
    columns_from_config,
    read_sets,
    splits_training_file,
)
from bertjax.tasks.sequence_classification.evaluation import (
    SequenceClassificationEvalSet,
    format_prediction,
)
from bertjax.tasks.task import EvalSet, HostBatch, Input, PredictorProtocol, check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.finetuning.encoding import EncodedTexts, check_truncation, encode_texts
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    TableColumns,
    class_weights,
    from_rows,
    label_names,
    make_target,
)
from data_pipelines.finetuning.table import TableRow
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

_PAIR_FORMAT = "{} ‖ {}"  # a pair, for a person
_PAIR_KEY = "text_pair"  # the key of a second text, where no other name is known
_MIN_TOKENS_PER_EXAMPLE = 8  # of an example, at least, by which a row has places for examples


class Objective(finetuning.Objective):
    """The encoder with a classifier on the pooled vector."""

    heads = ("sequence_classification",)
    eval_outputs = ("sequence_classification_logits",)

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        columns, glue = columns_from_config(config), config.data["glue"]
        count = config.model.num_labels
        if not count and (glue or columns.problem_type == "regression"):
            count = len(find_glue_task(glue).labels) if glue else 0
            model = dataclasses.replace(config.model, num_labels=count or 1)
            config = dataclasses.replace(config, model=model)
        super().__init__(config, batch_size_multiple)
        check_truncation(config.data["truncation"], bool(columns.text_pair))
        if columns.text_pair:
            check_type_vocab_size(config, "the texts of a pair")
        self.problem_type = columns.problem_type
        finetuning.check_num_labels(config)

    @property
    def row(self) -> PackedShape:
        length = self.config.max_seq_length
        return PackedShape(
            length, max(1, length // _MIN_TOKENS_PER_EXAMPLE) if self.config.packing else 1
        )

    def targets(self) -> Mapping[str, Target]:
        none = SequenceClassificationDataset("", [], [])
        return {"labels": make_target(none, [""] * self.config.model.num_labels, self.problem_type)}


class Task(finetuning.Task):
    """SequenceClassificationDataset or pairs, each of a class, of several labels or with a number."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    primary_metrics: tuple[str, ...] = (
        "accuracy",
        "f1",
        "macro_f1",
        "matthews_correlation",
        "pearson",
        "spearman",
        "micro_f1",
        "subset_accuracy",
        "majority_accuracy",  # which `is_degenerate` asks for
    )
    description = "tells the class, the labels or a number of texts"
    objective: Objective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.labels = self._find_labels()
        model = dataclasses.replace(config.model, num_labels=len(self.labels) or 1)
        super().__init__(
            dataclasses.replace(config, model=model), num_processes, process_id, Objective
        )
        self.tokenizer = load_task_tokenizer(config)
        if config.data["glue"]:
            first = find_glue_task(config.data["glue"]).metrics
            self.primary_metrics = tuple(dict.fromkeys((*first, *self.primary_metrics)))
        row, rows = self.objective.row, self.objective.eval_batch_size
        found = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.all_texts for name, data in found})
        self._sets = [
            SequenceClassificationEvalSet(
                name,
                data,
                _encode(name, data, self.tokenizer, config),
                self.labels,
                self.objective.problem_type,
                row,
                rows,
                num_processes,
                process_id,
            )
            for name, data in found
        ]

    @classmethod
    def describe_model(cls, config: Config) -> str:
        said = {
            "single_label_classification": "the class",
            "multi_label_classification": "the labels",
            "regression": "a number",
        }
        return f"tells {said[columns_from_config(config).problem_type]} of texts"

    def _find_labels(self) -> tuple[str, ...]:
        """Those that training gives, in the order of the model that the run begins with, if that
        has the same; that model's where there is nothing to train on.
        """
        data, init = self.config.data, self.config.init
        if columns_from_config(self.config).problem_type == "regression":
            return ()
        known = find_labels(init) if init else ()
        if data["glue"]:
            own = find_glue_task(data["glue"]).labels
        elif known and not has_training_table(self.config):
            own = known
        else:
            # Chance may hold out all examples of a rare label.
            held_out = read_sets(self.config, "eval") if splits_training_file(self.config) else []
            own = label_names(self._train, *(each for _, each in held_out))
        return known if set(known) == set(own) else own

    @functools.cached_property
    def _train(self) -> SequenceClassificationDataset:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> Examples:
        data, problem_type = self._train, self.objective.problem_type
        warn_of_coverage_loss(self.tokenizer, {"train": data.all_texts})
        encoded = _encode("train", data, self.tokenizer, self.config)
        found = make_target(data, self.labels, problem_type)
        spec = self.config.data["class_weights"]
        if spec and problem_type != "single_label_classification":
            raise InputError(
                f"data.class_weights={spec!r} is for problem_type=single_label_classification: leave it out."
            )
        if spec:
            weights = class_weights(spec, self.labels, found.values)
            found = dataclasses.replace(found, weights=weights[found.values])
        return encoded.with_target("labels", found)

    def eval_sets(self) -> Sequence[EvalSet]:
        return self._sets

    def format_sequence(self, batch: HostBatch, row: int) -> str:
        """An example a line, its label or number before it."""
        said = [self._format_label(value) for value in batch["labels"][row]]
        return show_examples(batch, row, self.tokenizer, said)

    def _format_label(self, value: np.ndarray) -> str:
        if self.objective.problem_type == "regression":
            return f"{value:g}"
        if self.objective.problem_type == "multi_label_classification":
            return ", ".join(itertools.compress(self.labels, value)) or "-"
        return self.labels[int(value)]

    @staticmethod
    def is_degenerate(scores: Mapping[str, float]) -> bool:
        """At or below what the majority class would give (Mosbach et al. 2021); of numbers, where
        they go with the gold ones in no way.
        """
        if "pearson" in scores:
            return not scores["pearson"] > 0
        return (
            not scores["subset_accuracy" if "subset_accuracy" in scores else "accuracy"]
            > scores["majority_accuracy"]
        )

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        if "sequence_classification" not in model.params:
            return None
        return {
            "max_seq_length": model.config.max_position_embeddings,
            "data": {"problem_type": model.problem_type},
        }

    @staticmethod
    def sample_arguments(config: Config) -> str:
        columns = columns_from_config(config)
        names = (*columns.text, *columns.text_pair)
        if len(names) == 1:
            return "--text 'Where is my card?'"
        return f"--text {shlex.quote(json.dumps(dict.fromkeys(names, '...')))}"

    @staticmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What is said of each text, or object with the columns that were trained."""
        # What is asked needs no name of its own.
        columns = dataclasses.replace(columns_from_config(predictor.config), id="")
        labels, rows = (
            model_label_names(predictor),
            [_to_table_row(each, columns) for each in inputs],
        )
        published = not any(predictor.config.data[name] for name in ("dir", "train_file"))
        if published and any(_PAIR_KEY in row.values for row in rows):
            # It says not what its texts are.
            columns = dataclasses.replace(columns, text_pair=(_PAIR_KEY,))
        found = predict_texts(predictor, from_rows("input", rows, columns, False))
        for row, each in zip(rows, found, strict=True):
            kept = {name: row.values[name] for name in (*columns.text, *columns.text_pair)}
            yield kept | format_prediction(each, labels, columns.problem_type, return_all_scores)

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        sets = [
            (
                each,
                data.texts
                if data.text_pairs is None
                else list(map(_PAIR_FORMAT.format, data.texts, data.text_pairs)),
            )
            for each, data in read_sets(config, "eval")
        ]
        return report.render(name, directory, sets, columns_from_config(config).problem_type)


def model_label_names(predictor: PredictorProtocol) -> tuple[str, ...]:
    """The names of a model's labels, or their numbers where it has no names."""
    return predictor.labels or tuple(f"LABEL_{i}" for i in range(predictor.config.model.num_labels))


def predict_texts(predictor: PredictorProtocol, data: SequenceClassificationDataset) -> np.ndarray:
    """What a model says of sentences without labels; see `Labelled.said`."""
    objective = Objective(predictor.config)
    encoded = _encode(data.name, data, predictor.tokenizer, predictor.config)
    labels, row = model_label_names(predictor), objective.row
    item = SequenceClassificationEvalSet(
        data.name, data, encoded, labels, objective.problem_type, row
    )
    return item.predictions(
        [found["sequence_classification_logits"] for found in predictor.run(item.batches())]
    )


def _to_table_row(item: Input, columns: TableColumns) -> TableRow:
    """What is asked as a row of a table."""
    location, said = item
    if not isinstance(said, str):
        return TableRow(location, dict(said))
    if columns.text_pair or len(columns.text) > 1:
        names = (*columns.text, *columns.text_pair)
        keys = ", ".join(f'"{name}": "..."' for name in names)
        raise InputError(
            f"{location} is text, and there are {len(names)} to give: write {{{keys}}}."
        )
    return TableRow(location, {columns.text[0]: said})


def _encode(
    name: str, data: SequenceClassificationDataset, tokenizer: Tokenizer, config: Config
) -> EncodedTexts:
    found = encode_texts(data, tokenizer, config.max_seq_length, config.data["truncation"])
    if found.num_truncated:
        _log.warning(
            "%s: %d of %d texts are longer than max_seq_length=%d and were cut (truncation=%s).",
            name,
            found.num_truncated,
            len(data),
            config.max_seq_length,
            config.data["truncation"],
        )
    return found
