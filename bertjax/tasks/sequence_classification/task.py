"""Classification and regression of texts and pairs of texts (BERT paper, section 4.1)."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import FinetuningTask, format_examples
from bertjax.tasks.finetuning_data import find_tables, has_training_table, resolve_labels
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.sequence_classification.data import (
    FIELDS,
    columns_from_config,
    read_sets,
    read_unlabeled,
    splits_training_file,
)
from bertjax.tasks.sequence_classification.evaluation import (
    SequenceClassificationEvalSet,
    encode_dataset,
)
from bertjax.tasks.sequence_classification.objective import SequenceClassificationObjective
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.finetuning.encoding import class_weights, make_target
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    label_names,
)


class SequenceClassificationTask(FinetuningTask):
    """Classification or regression of texts and pairs of texts."""

    objective_class = SequenceClassificationObjective
    pipeline_classes = (SequenceClassificationPipeline,)
    objective: SequenceClassificationObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    INFERENCE_FIELDS = ("max_seq_length", "data.truncation")
    primary_metrics: tuple[str, ...] = (
        "accuracy",
        "f1",
        "macro_f1",
        "matthews_correlation",
        "pearson",
        "spearman",
        "micro_f1",
        "subset_accuracy",
        "majority_accuracy",  # accuracy of the most frequent class; `is_degenerate` reads it
    )
    read_sets = staticmethod(read_sets)
    read_unlabeled = staticmethod(read_unlabeled)

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        super().__init__(config, num_processes, process_id)
        if config.data["glue"]:
            glue_metrics = find_glue_task(config.data["glue"]).metrics
            self.primary_metrics = tuple(dict.fromkeys((*glue_metrics, *self.primary_metrics)))

    def find_labels(self) -> tuple[str, ...]:
        """Return the labels; none for a regression."""
        config, glue = self.config, self.config.data["glue"]
        if columns_from_config(config).problem_type == "regression":
            return ()

        def train_labels() -> tuple[str, ...]:
            if glue:
                return find_glue_task(glue).labels
            # A random split may leave all examples of a rare label in the eval split.
            eval_sets = read_sets(config, "eval") if splits_training_file(config) else []
            return label_names(self.train_data, *(data for _, data in eval_sets))

        return resolve_labels(config, bool(glue) or has_training_table(config), train_labels)

    @property
    def data_summary(self) -> str:
        """Name and size of the training data, and what of its file is evaluated instead."""
        if not splits_training_file(self.config):
            return super().data_summary
        ((_, path),) = find_tables(self.config, "train")
        count = sum(
            len(eval_set.data)
            for eval_set in self._eval_sets
            if isinstance(eval_set, SequenceClassificationEvalSet)
        )
        return (
            f"{super().data_summary}; {count:,} other examples of {path.name} are the eval split, "
            "chosen by a hash of their texts, the same for every seed (data.eval_fraction="
            f"{self.config.data['eval_fraction']:g})"
        )

    def encode(self, name: str, data: SequenceClassificationDataset) -> Examples:
        """Return the texts with their labels, weighted as configured."""
        problem_type = self.objective.problem_type
        encoded = encode_dataset(name, data, self.tokenizer, self.config)
        target = make_target(data, self.labels, problem_type)
        spec = self.config.data["class_weights"]
        if spec and problem_type != "single_label_classification":
            raise InputError(
                f"data.class_weights={spec!r}: needs problem_type=single_label_classification. "
                "Leave it out."
            )
        if spec and data.values is not None:
            weights = class_weights(spec, self.labels, target.values)
            target = dataclasses.replace(target, weights=weights[target.values])
        return encoded.with_target("labels", target)

    def make_eval_set(
        self, name: str, data: SequenceClassificationDataset, *packing: Any
    ) -> SequenceClassificationEvalSet:
        """Return an eval set of the texts.

        Raises:
          InputError: examples of a class were left out as if they had no label.
        """
        if left_out := data.missing_labels & {*self.labels}:
            raise InputError(
                f"{data.name}: label {min(left_out)!r} is a class of the model, and marks missing "
                "labels here. Set data.missing_labels=''."
            )
        return SequenceClassificationEvalSet(
            name, data, self.tokenizer, self.objective, self.labels, *packing
        )

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return the examples of a sequence as lines, each with its label first."""
        labels = [self._format_label(value) for value in batch["labels"][index]]
        return format_examples(batch, index, self.tokenizer, labels)

    def _format_label(self, value: np.ndarray) -> str:
        if self.objective.problem_type == "regression":
            return f"{value:g}"
        if self.objective.problem_type == "multi_label_classification":
            return ", ".join(itertools.compress(self.labels, value)) or "-"
        return self.labels[int(value)]

    @staticmethod
    def is_degenerate(scores: Mapping[str, float], metric: str) -> bool:
        """Return whether accuracy is at most that of the majority class (Mosbach et al. 2021).

        A regression is degenerate without a positive correlation. Runs of single-label
        classification that another metric ranks are so without a positive Matthews correlation:
        with weights of rare classes a good model may be less accurate than the majority class.
        """
        if "pearson" in scores:
            return not scores["pearson"] > 0
        if "matthews_correlation" in scores and metric != "accuracy":
            return not scores["matthews_correlation"] > 0
        accuracy = scores["subset_accuracy" if "subset_accuracy" in scores else "accuracy"]
        return not accuracy > scores["majority_accuracy"]

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with this head; None for other models."""
        fields = super().config_for_model(model)
        return fields and fields | {"data": {"problem_type": model.problem_type}}

    @classmethod
    def report(cls, name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        sets = []
        for set_name, data in read_sets(config, "eval"):
            texts = data.texts
            if data.text_pairs is not None:
                texts = list(map("{} ‖ {}".format, texts, data.text_pairs))
            sets.append((set_name, texts))
        return report.render(name, directory, sets, columns_from_config(config).problem_type)
