"""Span prediction: SQuAD 1.1 and 2.0, and what has their layout (paper, sections 4.2 and 4.3)."""

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import finetuning
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    TFDS_SPLITS,
    find_files,
    load_task_tokenizer,
)
from bertjax.tasks.question_answering import report
from bertjax.tasks.question_answering.evaluation import (
    THRESHOLD,
    QuestionAnsweringEvalSet,
    build_windows,
    parse_question_inputs,
    to_question,
)
from bertjax.tasks.task import HostBatch, Input, PredictorProtocol, check_type_vocab_size
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.examples import Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.squad import QuestionAnsweringDataset, read_squad, read_squad_tfds
from data_pipelines.finetuning.windows import (
    PassageCache,
    PassageWindows,
    WindowOptions,
    answer_position_target,
)
from data_pipelines.text.sources import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss

_log = logging.getLogger("bertjax")

MAX_WINDOWS_PER_SEQUENCE = 8  # to a row, at the most
FILES = {
    1: {"train": "train-v1.1.json", "eval": "dev-v1.1.json"},
    2: {"train": "train-v2.0.json", "eval": "dev-v2.0.json"},
}
_SEQ_LEN = 384  # of the paper's; strides of 128, questions of 64


class Objective(finetuning.Objective):
    """The encoder with the span head."""

    heads = ("question_answering",)
    eval_outputs = ("question_answering_logits",)

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        check_type_vocab_size(config, "question and passage")
        self.version = int(config.data["version"])
        if self.version not in FILES:
            raise InputError(f"data.version={self.version} must be 1 (SQuAD 1.1) or 2 (SQuAD 2.0).")

    @property
    def options(self) -> WindowOptions:
        """How passages are cut; raises InputError where that cannot be."""
        data = self.config.data
        return WindowOptions(
            self.config.max_seq_length, data["doc_stride"], data["max_query_length"]
        )

    @property
    def row(self) -> PackedShape:
        return PackedShape(
            self.config.max_seq_length, MAX_WINDOWS_PER_SEQUENCE if self.config.packing else 1
        )

    def targets(self) -> Mapping[str, Target]:
        return answer_position_target(np.zeros((0, 2), np.int32))


class Task(finetuning.Task):
    """QuestionAnsweringDataset on passages that have their answers, or with version 2 may have."""

    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "version": field(1, "1 for SQuAD 1.1; 2 for 2.0, where questions may have no answer"),
        "doc_stride": field(
            128, "pieces of a passage from the start of a window to that of the next"
        ),
        "max_query_length": field(
            64, "the most pieces of a question; longer ones are cut at their end"
        ),
    }
    primary_metrics = ("exact", "f1")
    description = "answers questions on passages"
    together = 512
    objective: Objective

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        super().__init__(config, num_processes, process_id, Objective)
        self.tokenizer = load_task_tokenizer(config)
        options, row = self.objective.options, self.objective.row
        found = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.passages for name, data in found})
        self._sets = [
            QuestionAnsweringEvalSet(
                name,
                data,
                self.tokenizer,
                options,
                row,
                self.objective.eval_batch_size,
                num_processes,
                process_id,
            )
            for name, data in found
        ]

    @functools.cached_property
    def examples(self) -> PassageWindows:
        ((name, data),) = read_sets(self.config, "train")
        warn_of_coverage_loss(self.tokenizer, {name: data.passages})
        passages = PassageCache(self.tokenizer)
        return build_windows(name, data, self.tokenizer, self.objective.options, passages)

    def eval_sets(self) -> Sequence[QuestionAnsweringEvalSet]:
        return self._sets

    def format_sequence(self, batch: HostBatch, row: int) -> str:
        """A window a line, its answer in brackets."""
        lines = []
        for slot in np.flatnonzero(batch["answer_positions_weights"][row]):
            ids = batch["input_ids"][row]
            own = np.flatnonzero(batch["example_ids"][row] == slot + 1)
            start, end = batch["answer_positions"][row, slot]
            parts = [ids[own[0] : start], ids[start : end + 1], ids[end + 1 : own[-1] + 1]]
            before, answer, after = (self.tokenizer.decode(part.tolist()) for part in parts)
            lines.append(f"{before} >>{answer}<< {after}".strip())
        return "\n".join(lines)

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        if "question_answering" not in model.params:
            return None
        max_seq_length = min(_SEQ_LEN, model.config.max_position_embeddings)
        return {
            "max_seq_length": max_seq_length,
            "data": {"doc_stride": max_seq_length // 3, "max_query_length": max_seq_length // 6},
        }

    inputs = staticmethod(parse_question_inputs)

    @staticmethod
    def sample_arguments(config: Config) -> str:
        return "--question 'Where is Oslo?' --context 'Oslo lies in Norway.'"

    @staticmethod
    def predict(
        predictor: PredictorProtocol, inputs: Sequence[Input], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Answers objects with "question" and "context" with text, score and place."""
        objective = Objective(predictor.config)
        null_score_diff_threshold = _threshold(predictor) if objective.version == 2 else None
        data = QuestionAnsweringDataset([to_question(each) for each in inputs], 1)
        reading = QuestionAnsweringEvalSet(
            "input", data, predictor.tokenizer, objective.options, objective.row
        )
        logits = [found["question_answering_logits"] for found in predictor.run(reading.batches())]
        for prediction in reading.predictions(logits):
            answer = prediction.answer(null_score_diff_threshold)
            odds = (
                {}
                if null_score_diff_threshold is None
                else {"null_odds": round(prediction.null_odds, 4)}
            )
            yield {
                "id": prediction.question.id,
                "text": answer.text,
                "start": answer.start,
                "end": answer.end,
                "score": round(answer.score, 4),
            } | odds

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        return report.render(name, directory, read_sets(config, "eval"))


def _threshold(predictor: PredictorProtocol) -> float:
    if THRESHOLD not in predictor.calibration:
        _log.warning(
            "%s keeps no threshold, as it was not evaluated on one data set when it was saved: "
            "where no answer scores best, none is given.",
            predictor.path,
        )
    return predictor.calibration.get(THRESHOLD, 0.0)


def read_sets(config: Config, split: str) -> list[tuple[str, QuestionAnsweringDataset]]:
    """Name and questions of each data set of a split; several are for evaluation alone."""
    data = config.data
    if data["dir"].startswith(TFDS):
        found = read_squad_tfds(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
        return [(split, _check_version(config, split, data["dir"], found))]
    return [
        (name, _check_version(config, split, path, read_squad(path)))
        for name, path in find_files(config, split, FILES[data["version"]][split])
    ]


def _check_version(
    config: Config, split: str, path: epath.PathLike, found: QuestionAnsweringDataset
) -> QuestionAnsweringDataset:
    if found.version != config.data["version"]:
        has = "has" if found.version == 2 else "has no"
        raise InputError(
            f"{path} {has} questions that cannot be answered and "
            f"data.version={config.data['version']}: set version={found.version}."
        )
    bare = [question.id for question in found.questions if not question.answers]
    if split == "eval" and found.version == 1 and bare:
        raise InputError(
            f"{path} has {len(bare)} questions without a gold answer, {bare[0]!r} first, so it "
            "cannot be scored: leave them out; `bertjax predict` answers them."
        )
    return found
