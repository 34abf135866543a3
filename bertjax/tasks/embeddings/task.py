"""Training of embeddings on pairs, triplets, scored pairs and texts alone."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.embeddings.data import (
    FIELDS,
    config_for_data,
    config_for_init,
    encode_dataset,
    read_sets,
)
from bertjax.tasks.embeddings.evaluation import EmbeddingsEvalSet
from bertjax.tasks.embeddings.losses import RANKING_LOSS
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.embeddings.pipeline import EmbeddingsPipeline
from bertjax.tasks.finetuning import FinetuningTask, format_examples
from bertjax.tasks.finetuning_data import has_training_table
from bertjax.tasks.pipeline import HostBatch
from data_pipelines.fields import Field
from data_pipelines.finetuning.embeddings.dataset import EmbeddingsDataset
from data_pipelines.finetuning.embeddings.distinct_batches import SLOTS, TupleBatches
from data_pipelines.finetuning.examples import Examples


class EmbeddingsTask(FinetuningTask):
    """Embeddings of texts whose cosines are large for similar texts."""

    objective_class = TrainedEmbeddingsObjective
    pipeline_classes = (EmbeddingsPipeline,)
    objective: TrainedEmbeddingsObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    primary_metrics: tuple[str, ...] = ("spearman", "accuracy", "pearson", "loss")
    read_sets = staticmethod(read_sets)

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        config = config_for_init(config)
        if has_training_table(config):
            self.config = config
            config = config_for_data(config, self.train_data)
        super().__init__(config, num_processes, process_id)
        eval_sets: Sequence[Any] = self.eval_sets()
        if not any(eval_set.has_scores for eval_set in eval_sets):
            self.primary_metrics = ("accuracy", "loss")

    def encode(self, name: str, data: EmbeddingsDataset) -> Examples:
        """Return the texts of the examples."""
        reads_scores = self.objective.reads_scores
        return encode_dataset(name, data, self.tokenizer, self.config, reads_scores)

    def make_batches(self, *args: Any, **kwargs: Any) -> TupleBatches:
        """Return the training batches, without equal texts if these would be negatives."""
        return TupleBatches(self.objective.loss.loss == RANKING_LOSS, *args, **kwargs)

    def make_eval_set(self, name: str, data: EmbeddingsDataset, *packing: Any) -> EmbeddingsEvalSet:
        """Return an eval set of the examples."""
        return EmbeddingsEvalSet(name, data, self.tokenizer, self.objective, *packing)

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return the texts of a sequence as lines, each after its example and its column."""
        numbers = [divmod(int(slot), self.objective.num_texts) for slot in batch[SLOTS][index]]
        places = [f"example {example + 1} text {column + 1}" for example, column in numbers]
        return format_examples(batch, index, self.tokenizer, places)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> None:
        """Return None: a published encoder does not tell what it was trained for."""
