"""Classification and regression of texts and pairs of texts (BERT paper, section 4.1)."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import FinetuningTask, format_examples
from bertjax.tasks.finetuning_data import has_training_table, load_task_tokenizer, resolve_labels
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.sequence_classification import report
from bertjax.tasks.sequence_classification.data import (
    FIELDS,
    columns_from_config,
    read_sets,
    splits_training_file,
)
from bertjax.tasks.sequence_classification.evaluation import (
    SequenceClassificationEvalSet,
    encode_dataset,
)
from bertjax.tasks.sequence_classification.objective import SequenceClassificationObjective
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from bertjax.tasks.task import EvalSet
from data_pipelines.errors import InputError
from data_pipelines.fields import Field
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.glue import find_glue_task
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    class_weights,
    label_names,
    make_target,
)
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss

_PAIR_FORMAT = "{} ‖ {}"  # of a text and its pair in reports


class SequenceClassificationTask(FinetuningTask):
    """Classification or regression of texts and pairs of texts."""

    objective_class = SequenceClassificationObjective
    pipeline_classes = (SequenceClassificationPipeline,)
    objective: SequenceClassificationObjective
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
        "majority_accuracy",  # accuracy of the most frequent class; `is_degenerate` reads it
    )

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.labels = self._find_labels()
        model = dataclasses.replace(config.model, num_labels=len(self.labels) or 1)
        super().__init__(dataclasses.replace(config, model=model), num_processes, process_id)
        self.tokenizer = load_task_tokenizer(config)
        if config.data["glue"]:
            glue_metrics = find_glue_task(config.data["glue"]).metrics
            self.primary_metrics = tuple(dict.fromkeys((*glue_metrics, *self.primary_metrics)))
        sets = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.all_texts for name, data in sets})
        self._eval_sets = [
            SequenceClassificationEvalSet(
                name,
                data,
                encode_dataset(name, data, self.tokenizer, config),
                self.labels,
                self.objective.problem_type,
                self.objective.sequence_shape,
                self.objective.eval_batch_size,
                num_processes,
                process_id,
            )
            for name, data in sets
        ]

    def _find_labels(self) -> tuple[str, ...]:
        config, glue = self.config, self.config.data["glue"]
        if columns_from_config(config).problem_type == "regression":
            return ()

        def train_labels() -> tuple[str, ...]:
            if glue:
                return find_glue_task(glue).labels
            # A random split may leave all examples of a rare label in the eval split.
            eval_sets = read_sets(config, "eval") if splits_training_file(config) else []
            return label_names(self._train_data, *(data for _, data in eval_sets))

        return resolve_labels(config, bool(glue) or has_training_table(config), train_labels)

    @functools.cached_property
    def _train_data(self) -> SequenceClassificationDataset:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> Examples:
        """Encoded training examples."""
        data, problem_type = self._train_data, self.objective.problem_type
        warn_of_coverage_loss(self.tokenizer, {"train": data.all_texts})
        encoded = encode_dataset("train", data, self.tokenizer, self.config)
        target = make_target(data, self.labels, problem_type)
        spec = self.config.data["class_weights"]
        if spec and problem_type != "single_label_classification":
            raise InputError(
                f"data.class_weights={spec!r}: needs problem_type=single_label_classification. "
                "Leave it out."
            )
        if spec:
            weights = class_weights(spec, self.labels, target.values)
            target = dataclasses.replace(target, weights=weights[target.values])
        return encoded.with_target("labels", target)

    def eval_sets(self) -> Sequence[EvalSet]:
        """Return the eval sets."""
        return self._eval_sets

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
    def is_degenerate(scores: Mapping[str, float]) -> bool:
        """Return whether accuracy is at most that of the majority class (Mosbach et al. 2021).

        A regression is degenerate without a positive correlation.
        """
        if "pearson" in scores:
            return not scores["pearson"] > 0
        accuracy = scores["subset_accuracy" if "subset_accuracy" in scores else "accuracy"]
        return not accuracy > scores["majority_accuracy"]

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        """Return configuration fields for a model with this head; None for other models."""
        if "sequence_classification" not in model.params:
            return None
        return {
            "max_seq_length": model.config.max_position_embeddings,
            "data": {"problem_type": model.problem_type},
        }

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        sets = [
            (
                set_name,
                data.texts
                if data.text_pairs is None
                else list(map(_PAIR_FORMAT.format, data.texts, data.text_pairs)),
            )
            for set_name, data in read_sets(config, "eval")
        ]
        return report.render(name, directory, sets, columns_from_config(config).problem_type)
