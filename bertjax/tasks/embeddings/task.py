"""Training of embeddings on pairs, triplets, scored pairs, texts alone, or against a teacher."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.steps.objective import Objective
from bertjax.tasks.embeddings.data import (
    FIELDS,
    PROMPTS,
    config_for_data,
    config_for_init,
    encode_dataset,
    encode_teacher_texts,
    read_sets,
)
from bertjax.tasks.embeddings.distillation import EmbeddingsDistillation, config_for_teacher
from bertjax.tasks.embeddings.evaluation import EmbeddingsEvalSet
from bertjax.tasks.embeddings.losses import RANKING_LOSS, TEACHER_LOSS
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.embeddings.pipeline import EmbeddingsPipeline
from bertjax.tasks.embeddings.retrieval.evaluation import RetrievalEvalSet
from bertjax.tasks.embeddings.stored_embeddings import StoredEmbeddings
from bertjax.tasks.embeddings.teacher_evaluation import TeacherEvalSet
from bertjax.tasks.finetuning import FinetuningTask, format_examples
from bertjax.tasks.finetuning_data import has_training_table
from bertjax.tasks.pipeline import HostBatch
from data_pipelines.fields import Field
from data_pipelines.finetuning.embeddings.beir import RetrievalDataset
from data_pipelines.finetuning.embeddings.dataset import EmbeddingsDataset
from data_pipelines.finetuning.embeddings.distinct_batches import SLOTS, TupleBatches
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.training_batches import StepBatches, TrainingBatches


class EmbeddingsTask(FinetuningTask):
    """Embeddings of texts whose cosines are large for similar texts."""

    objective_class = TrainedEmbeddingsObjective
    pipeline_classes = (EmbeddingsPipeline,)
    objective: TrainedEmbeddingsObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    INFERENCE_FIELDS = ()  # the formats of sentence-transformers have the settings
    primary_metrics: tuple[str, ...] = ("spearman", "accuracy", "pearson", "loss")
    read_sets = staticmethod(read_sets)

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        config = config_for_teacher(config_for_init(config))
        if has_training_table(config):
            self.config = config
            config = config_for_data(config, self.train_data)
        super().__init__(config, num_processes, process_id)
        eval_sets: Sequence[Any] = self.eval_sets()
        metrics = [name for eval_set in eval_sets for name in eval_set.primary_metrics]
        self.primary_metrics = tuple(dict.fromkeys(metrics)) or self.primary_metrics

    @classmethod
    def make_train_objective(
        cls,
        config: Config,
        objective: TrainedEmbeddingsObjective,
        parts: Iterable[str] | None = None,
        load_teacher: Callable[[], Any] | None = None,
    ) -> Objective:
        """Return the objective with the embeddings of the teacher, if there is one."""
        if config.distill.teacher and not config.distill.logits:
            return EmbeddingsDistillation(objective, config, load_teacher)
        return super().make_train_objective(config, objective, parts, load_teacher)

    def encode(self, name: str, data: EmbeddingsDataset) -> Examples:
        """Return the texts of the examples, with stored embeddings of the teacher if configured."""
        if self.learns_teacher:
            embeddings = self.find_stored(data)
            return encode_teacher_texts(name, data, self.tokenizer, self.config, embeddings)
        reads_scores = self.objective.reads_scores
        return encode_dataset(name, data, self.tokenizer, self.config, reads_scores)

    @property
    def learns_teacher(self) -> bool:
        """True if the loss compares texts with their embeddings by a teacher."""
        return self.objective.loss.loss == TEACHER_LOSS

    def find_stored(self, data: EmbeddingsDataset) -> np.ndarray | None:
        """Return the stored embeddings of texts, float32 [N, D]; None with a teacher in the step.

        Raises:
          InputError: a text has none.
        """
        if not (path := self.config.distill.embeddings):
            return None
        return StoredEmbeddings(path).find(data.all_texts, data.locations)

    def make_batches(self, *args: Any, **kwargs: Any) -> StepBatches:
        """Return the training batches, without equal texts if these would be negatives."""
        if self.learns_teacher:
            return TrainingBatches(*args, **kwargs)
        return TupleBatches(self.objective.loss.loss == RANKING_LOSS, *args, **kwargs)

    def make_eval_set(
        self, name: str, data: EmbeddingsDataset | RetrievalDataset, *packing: Any
    ) -> EmbeddingsEvalSet | TeacherEvalSet | RetrievalEvalSet:
        """Return an eval set of the examples, or of queries and documents.

        Texts alone are compared with a teacher.
        """
        if isinstance(data, RetrievalDataset):
            return RetrievalEvalSet(name, data, self.tokenizer, self.objective, *packing)
        if self.learns_teacher and data.is_unlabeled:
            teacher, objective = self.find_stored(data), self.objective
            examples = encode_teacher_texts(name, data, self.tokenizer, self.config)
            return TeacherEvalSet(name, data, examples, objective, teacher, *packing)
        return EmbeddingsEvalSet(name, data, self.tokenizer, self.objective, *packing)

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return the texts of a sequence as lines, each after its example and its column."""
        if self.learns_teacher:
            return format_examples(batch, index, self.tokenizer, ["text"] * batch[SLOTS].shape[1])
        numbers = [divmod(int(slot), self.objective.num_texts) for slot in batch[SLOTS][index]]
        places = [f"example {example + 1} text {column + 1}" for example, column in numbers]
        return format_examples(batch, index, self.tokenizer, places)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return the fields of an encoder of sentence-transformers; None for another model.

        Texts with a prompt for all, or lower-cased before the tokenizer, are left to `embed`.
        """
        pooling = model.pooling
        if pooling is None or pooling.prompt or pooling.do_lower_case:
            return None
        names = ("pooling", "normalize", "projection_size", *PROMPTS)
        data = {name: getattr(pooling, name) for name in names} | {"loss": RANKING_LOSS}
        return {"max_seq_length": pooling.max_seq_length or model.max_text_length, "data": data}
