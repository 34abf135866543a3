"""Question answering on SQuAD 1.1, 2.0 or files in their layout (BERT paper, sections 4.2, 4.3)."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    TFDS_SPLITS,
    find_files,
    load_task_tokenizer,
)
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.question_answering import report
from bertjax.tasks.question_answering.evaluation import QuestionAnsweringEvalSet, build_windows
from bertjax.tasks.question_answering.objective import FILES, QuestionAnsweringObjective
from bertjax.tasks.question_answering.pipeline import QuestionAnsweringPipeline
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.squad import QuestionAnsweringDataset, read_squad, read_squad_tfds
from data_pipelines.finetuning.windows import (
    PassageCache,
    PassageWindows,
)
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss

_MAX_SEQ_LENGTH = 384  # google-research/bert; doc_stride is a third, max_query_length a sixth


class QuestionAnsweringTask(FinetuningTask):
    """Extractive question answering on passages, as in SQuAD 1.1 and 2.0."""

    objective_class = QuestionAnsweringObjective
    pipeline_classes = (QuestionAnsweringPipeline,)
    objective: QuestionAnsweringObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "version": field(1, "SQuAD version: 1 for 1.1, 2 for 2.0 with unanswerable questions"),
        "doc_stride": field(128, "tokens of the passage between the starts of two windows"),
        "max_query_length": field(64, "tokens of a question; longer questions are truncated"),
    }
    primary_metrics = ("exact", "f1")

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        super().__init__(config, num_processes, process_id)
        self.tokenizer = load_task_tokenizer(config)
        sets = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.passages for name, data in sets})
        self._sets = [
            QuestionAnsweringEvalSet(
                name,
                data,
                self.tokenizer,
                self.objective.window_options,
                self.objective.sequence_shape,
                self.objective.eval_batch_size,
                num_processes,
                process_id,
            )
            for name, data in sets
        ]

    @functools.cached_property
    def examples(self) -> PassageWindows:
        """Encoded training examples."""
        ((name, data),) = read_sets(self.config, "train")
        warn_of_coverage_loss(self.tokenizer, {name: data.passages})
        passages = PassageCache(self.tokenizer)
        return build_windows(name, data, self.tokenizer, self.objective.window_options, passages)

    def eval_sets(self) -> Sequence[QuestionAnsweringEvalSet]:
        """Return the eval sets."""
        return self._sets

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return a line for each window, its answer between >> and <<."""
        lines = []
        for slot in np.flatnonzero(batch["answer_positions_weights"][index]):
            ids = batch["input_ids"][index]
            columns = np.flatnonzero(batch["example_ids"][index] == slot + 1)
            start, end = batch["answer_positions"][index, slot]
            parts = [ids[columns[0] : start], ids[start : end + 1], ids[end + 1 : columns[-1] + 1]]
            before, answer, after = (self.tokenizer.decode(part.tolist()) for part in parts)
            lines.append(f"{before} >>{answer}<< {after}".strip())
        return "\n".join(lines)

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        """Return configuration fields for a model with this head."""
        if "question_answering" not in model.params:
            return None
        max_seq_length = min(_MAX_SEQ_LENGTH, model.config.max_position_embeddings)
        return {
            "max_seq_length": max_seq_length,
            "data": {"doc_stride": max_seq_length // 3, "max_query_length": max_seq_length // 6},
        }

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        return report.render(name, directory, read_sets(config, "eval"))


def read_sets(config: Config, split: str) -> list[tuple[str, QuestionAnsweringDataset]]:
    """Return name and questions of each data set of a split, "train" or "eval"."""
    data = config.data
    if data["dir"].startswith(TFDS):
        dataset = read_squad_tfds(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
        return [(split, _check_version(config, split, data["dir"], dataset))]
    return [
        (name, _check_version(config, split, path, read_squad(path)))
        for name, path in find_files(config, split, FILES[data["version"]][split])
    ]


def _check_version(
    config: Config, split: str, path: epath.PathLike, data: QuestionAnsweringDataset
) -> QuestionAnsweringDataset:
    if data.version != config.data["version"]:
        has = "has" if data.version == 2 else "has no"
        raise InputError(
            f"data.version={config.data['version']}: {path} {has} unanswerable questions. Set "
            f"version={data.version}."
        )
    without_gold = [question.id for question in data.questions if not question.answers]
    if split == "eval" and data.version == 1 and without_gold:
        raise InputError(
            f"{path}: {len(without_gold)} questions have no gold answer, {without_gold[0]!r} "
            "first. Leave them out; `bertjax predict` answers them."
        )
    return data
