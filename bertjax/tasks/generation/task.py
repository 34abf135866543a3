"""Sequence to sequence generation, such as questions for a passage or summaries."""

from collections.abc import Mapping
from typing import Any, ClassVar

from bertjax.config.config import Config
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks.finetuning import FinetuningTask, format_examples
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    LABEL_SMOOTHING,
    TFDS_SPLITS,
    find_tables,
)
from bertjax.tasks.generation.evaluation import TEXT_SCORES, GenerationEvalSet, encode_dataset
from bertjax.tasks.generation.objective import MLM_PROBABILITY, GenerationObjective
from bertjax.tasks.generation.pipeline import GenerationPipeline
from bertjax.tasks.pipeline import HostBatch
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.generation.masked_targets import mask_targets
from data_pipelines.finetuning.generation.pairs import GenerationDataset, dataset_from_rows
from data_pipelines.finetuning.table import read_table, read_tfds_table
from data_pipelines.text.tfds import TFDS

_MAX_TARGET_LENGTH = 48  # of questions in Dong et al. 2019


class GenerationTask(FinetuningTask):
    """Generation of a target text from a source text."""

    objective_class = GenerationObjective
    pipeline_classes = (GenerationPipeline,)
    objective: GenerationObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "source": field("source", "column of the sources"),
        "target": field("target", "column of the targets"),
        "max_target_length": field(
            _MAX_TARGET_LENGTH,
            "tokens of a target with [SEP], and of all targets in a sequence; the rest of "
            "`max_seq_length` is for the source",
        ),
        "label_smoothing": LABEL_SMOOTHING,
        "mlm_probability": field(
            MLM_PROBABILITY,
            "fraction of the tokens of each target that are masked and predicted in a training "
            "step with `decoder=masked_prefix`, in (0, 1]",
        ),
        "num_generated": field(
            0,
            "sources of an eval set, the first ones, whose targets an evaluation generates for "
            "`bleu` and `rouge_l`; 0 for none, -1 for all",
        ),
    }
    INFERENCE_FIELDS = ("max_seq_length", "data.max_target_length")
    primary_metrics = ("mlm_perplexity", *TEXT_SCORES)

    @staticmethod
    def read_sets(config: Config, split: str) -> list[tuple[str, GenerationDataset]]:
        """Return name and pairs of each data set of a split, "train" or "eval"."""
        data, columns = config.data, (config.data["source"], config.data["target"])
        if data["dir"].startswith(TFDS):
            rows = read_tfds_table(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
            return [(split, dataset_from_rows(data["dir"], rows, *columns))]
        return [
            (name, dataset_from_rows(str(path), read_table(path), *columns))
            for name, path in find_tables(config, split)
        ]

    def encode(self, name: str, data: GenerationDataset) -> Examples:
        """Return the pairs as examples."""
        return encode_dataset(name, data, self.tokenizer, self.objective)

    def train_batch(self, step: int) -> HostBatch:
        """Return the batch of a step, with masked targets if the model predicts them."""
        batch, config = super().train_batch(step), self.config
        if not config.model.predicts_masks:
            return batch
        probability, seed = config.data["mlm_probability"], config.data_order_seed
        return mask_targets(batch, probability, self.tokenizer, seed, step)

    def make_eval_set(self, name: str, data: GenerationDataset, *packing: Any) -> GenerationEvalSet:
        """Return an eval set of the pairs."""
        return GenerationEvalSet(name, data, self.tokenizer, self.objective, *packing)

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return one pair a line after its number."""
        numbers = range(1, int(batch["example_ids"][index].max()) + 1)
        return format_examples(batch, index, self.tokenizer, numbers)

    @classmethod
    def config_for_model(cls, model: NumpyModel) -> dict[str, Any] | None:
        """Return configuration fields for a model with a decoder."""
        if not model.config.decoder or "mlm" not in model.params:
            return None
        positions = model.config.max_position_embeddings
        target_length = min(_MAX_TARGET_LENGTH, positions // 2)
        length = min(model.max_text_length + target_length, positions)
        return {"max_seq_length": length, "data": {"max_target_length": target_length}}

    @classmethod
    def max_text_length(cls, config: Config) -> int:
        """Return the tokens at which a source is cut."""
        return config.max_seq_length - int(config.data["max_target_length"])
