"""Answer extraction, step 1 of synthetic question answering (Alberti et al. 2019)."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.answer_extraction.evaluation import (
    RECALLS,
    AnswerExtractionEvalSet,
    build_windows,
)
from bertjax.tasks.answer_extraction.objective import SCORERS, AnswerExtractionObjective
from bertjax.tasks.answer_extraction.pipeline import AnswerExtractionPipeline
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, TFDS_SPLITS, find_files
from bertjax.tasks.inference_settings import is_trained_for
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.question_answering.objective import FILES
from data_pipelines.errors import InputError
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.question_answering.answer_spans import (
    MAX_ANSWER_LENGTH,
    Passage,
    SpanWindows,
    group_answers,
)
from data_pipelines.finetuning.question_answering.squad import read_squad, read_squad_tfds
from data_pipelines.finetuning.question_answering.windows import PassageCache
from data_pipelines.text.tfds import TFDS

_log = logging.getLogger("bertjax")

_MAX_SEQ_LENGTH = 384  # of question answering; doc_stride is a third


def _default_file(directory: str, split: str) -> str:
    """Return the name of SQuAD 1.1's file of a split, or 2.0's in a directory that has it alone."""
    names = [files[split] for files in FILES.values()]
    present = (name for name in names if directory and (epath.Path(directory) / name).exists())
    return next(present, names[0])


class AnswerExtractionTask(FinetuningTask):
    """Extraction of the spans of a passage that are worth asking about."""

    objective_class = AnswerExtractionObjective
    pipeline_classes = (AnswerExtractionPipeline,)
    objective: AnswerExtractionObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "scorer": field(
            "joint",
            'score of a span: "joint" from the vectors of its first and its last token together, '
            '"independent" as the sum of a start and an end logit',
        ),
        "doc_stride": field(128, "tokens of the passage between the starts of two windows"),
    }
    INFERENCE_FIELDS = ("max_seq_length", "data.doc_stride")
    primary_metrics = (*RECALLS,)

    @staticmethod
    def read_sets(config: Config, split: str) -> list[tuple[str, list[Passage]]]:
        """Return name and passages of each data set of a split, "train" or "eval"."""
        data = config.data
        if data["dir"].startswith(TFDS):
            dataset = read_squad_tfds(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
            datasets = [(split, dataset)]
        else:
            paths = find_files(config, split, _default_file(data["dir"], split))
            datasets = [(name, read_squad(path)) for name, path in paths]
        sets = []
        for name, dataset in datasets:
            passages, num_missing = group_answers(dataset.questions)
            if num_missing:
                _log.warning("%s: %d answers are not in their passages.", name, num_missing)
            sets.append((name, passages))
        return sets

    @staticmethod
    def texts_of(passages: list[Passage]) -> list[str]:
        """Return the passages."""
        return [passage.text for passage in passages]

    def encode(self, name: str, passages: list[Passage]) -> SpanWindows:
        """Return the windows that contain an answer.

        Raises:
          InputError: there are none.
        """
        cache = PassageCache(self.tokenizer)
        windows = build_windows(name, passages, self.tokenizer, self.objective, cache)
        windows = windows.with_answers()
        if not len(windows):
            raise InputError(
                f"{name}: no passage has an answer of at most {MAX_ANSWER_LENGTH} tokens. Name "
                "other data."
            )
        return windows

    def make_eval_set(
        self, name: str, passages: list[Passage], *packing: Any
    ) -> AnswerExtractionEvalSet:
        """Return an eval set of the passages."""
        return AnswerExtractionEvalSet(name, passages, self.tokenizer, self.objective, *packing)

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return a line for each window, after its answers."""
        ids, example_ids = batch["input_ids"][index], batch["example_ids"][index]
        bits = batch["answer_lengths"][index]
        lines = []
        for example in range(1, int(example_ids.max()) + 1):
            columns = np.flatnonzero(example_ids == example)
            answers = [
                self.tokenizer.decode(ids[column : column + length].tolist())
                for column in columns
                for length in range(1, MAX_ANSWER_LENGTH + 1)
                if bits[column] >> (length - 1) & 1
            ]
            lines.append(f"{'; '.join(answers)}: {self.tokenizer.decode(ids[columns].tolist())}")
        return "\n".join(lines)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with a head of this task."""
        scorer = next((name for name, head in SCORERS.items() if head in model.params), None)
        if scorer is None:
            return None
        length = model.max_text_length
        is_ours = is_trained_for(model, "answer_extraction", cls)
        if not is_ours or model.max_seq_length is None:  # else of its run, or an edit of that
            length = min(_MAX_SEQ_LENGTH, length)
        return {"max_seq_length": length, "data": {"scorer": scorer, "doc_stride": length // 3}}
