"""Question answering on SQuAD 1.1, 2.0 or files in their layout (BERT paper, sections 4.2, 4.3)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, TFDS_SPLITS, find_files
from bertjax.tasks.inference_settings import is_trained_for
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.question_answering import report
from bertjax.tasks.question_answering.evaluation import (
    THRESHOLD,
    QuestionAnsweringEvalSet,
    build_windows,
)
from bertjax.tasks.question_answering.objective import FILES, QuestionAnsweringObjective
from bertjax.tasks.question_answering.pipeline import QuestionAnsweringPipeline
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.question_answering.squad import (
    QuestionAnsweringDataset,
    read_squad,
    read_squad_tfds,
)
from data_pipelines.finetuning.question_answering.windows import PassageCache, PassageWindows
from data_pipelines.text.tfds import TFDS

_MAX_SEQ_LENGTH = 384  # google-research/bert; doc_stride is a third, max_query_length a sixth


def _check_version(
    config: Config, path: epath.PathLike, data: QuestionAnsweringDataset
) -> QuestionAnsweringDataset:
    if data.is_flat and data.version == 1 and config.data["version"] == 2:
        data = dataclasses.replace(data, version=2)  # rows that all have an answer
    if data.version != config.data["version"]:
        has = "has" if data.version == 2 else "has no"
        raise InputError(
            f"data.version={config.data['version']}: {path} {has} unanswerable questions. Set "
            f"version={data.version}."
        )
    without_gold = [question.id for question in data.questions if not question.answers]
    if data.version == 1 and without_gold:
        raise InputError(
            f"{path}: {len(without_gold)} questions have no gold answer, {without_gold[0]!r} "
            "first. Leave them out; `bertjax predict` answers them."
        )
    return data


class QuestionAnsweringTask(FinetuningTask):
    """Extractive question answering on passages, as in SQuAD 1.1 and 2.0."""

    objective_class = QuestionAnsweringObjective
    pipeline_classes = (QuestionAnsweringPipeline,)
    calibration = (THRESHOLD,)
    objective: QuestionAnsweringObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "version": field(1, "SQuAD version: 1 for 1.1, 2 for 2.0 with unanswerable questions"),
        "doc_stride": field(128, "tokens of the passage between the starts of two windows"),
        "null_score": field(
            "softmax",
            "score of no answer in version 2: that of [CLS] in the `softmax` of spans, or a "
            "`regression` of [CLS]: 1 without answer, 0 with one",
        ),
        "max_query_length": field(64, "tokens of a question; longer questions are truncated"),
    }
    INFERENCE_FIELDS = (
        "max_seq_length",
        *("data.version", "data.null_score", "data.doc_stride", "data.max_query_length"),
    )
    primary_metrics = ("exact", "f1")

    @staticmethod
    def read_sets(config: Config, split: str) -> list[tuple[str, QuestionAnsweringDataset]]:
        """Return name and questions of each data set of a split, "train" or "eval"."""
        data = config.data
        if data["dir"].startswith(TFDS):
            dataset = read_squad_tfds(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
            return [(split, _check_version(config, data["dir"], dataset))]
        return [
            (name, _check_version(config, path, read_squad(path)))
            for name, path in find_files(config, split, FILES[data["version"]][split])
        ]

    @staticmethod
    def read_unlabeled(config: Config) -> QuestionAnsweringDataset:
        """Return the questions of `distill.unlabeled`; their answers and ids are not read."""
        return read_squad(config.distill.unlabeled, labeled=False)

    @staticmethod
    def texts_of(data: QuestionAnsweringDataset) -> list[str]:
        """Return the passages."""
        return data.passages

    def encode(self, name: str, data: QuestionAnsweringDataset) -> PassageWindows:
        """Return the windows of the questions, with their answers."""
        passages = PassageCache(self.tokenizer)
        return build_windows(name, data, self.tokenizer, self.objective.window_options, passages)

    def make_eval_set(
        self, name: str, data: QuestionAnsweringDataset, *packing: Any
    ) -> QuestionAnsweringEvalSet:
        """Return an eval set of the questions."""
        return QuestionAnsweringEvalSet(name, data, self.tokenizer, self.objective, *packing)

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

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with this head."""
        if (fields := super().config_for_model(model)) is None:
            return None
        length = fields["max_seq_length"]
        is_ours = is_trained_for(model, "question_answering", cls)
        if not is_ours or model.max_seq_length is None:  # else of its run, or an edit of that
            length = min(_MAX_SEQ_LENGTH, length)
        data = {"doc_stride": length // 3, "max_query_length": length // 6}
        return {"max_seq_length": length, "data": data}

    @classmethod
    def report(cls, name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        return report.render(name, directory, cls.read_sets(config, "eval"))
