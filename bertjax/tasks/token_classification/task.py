"""Token classification, such as named entity recognition (BERT paper, section 5.3)."""

import dataclasses
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
    find_tables,
    has_training_table,
    load_task_tokenizer,
    resolve_labels,
)
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import EvalSet
from bertjax.tasks.token_classification import report
from bertjax.tasks.token_classification.evaluation import (
    TokenClassificationEvalSet,
    encode_sentences,
)
from bertjax.tasks.token_classification.objective import TokenClassificationObjective
from bertjax.tasks.token_classification.pipeline import TokenClassificationPipeline
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.table import read_tfds_table
from data_pipelines.finetuning.token_classification import (
    TAGGED_SUFFIXES,
    TokenClassificationDataset,
    label_names,
    make_tagged_dataset,
    read_tagged_file,
    sentences_from_rows,
)
from data_pipelines.finetuning.word_alignment import WordExamples
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.coverage import warn_of_coverage_loss


class TokenClassificationTask(FinetuningTask):
    """Token classification: a tag for each word, as for named entities."""

    objective_class = TokenClassificationObjective
    pipeline_classes = (TokenClassificationPipeline,)
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "fix_tags": field(
            False, "accept tags that break their scheme, as conlleval does, instead of an error"
        ),
        "context": field(
            "sentence", '"document" encodes each sentence with the text around it in its document'
        ),
        "strict": field(False, "count entities as seqeval's strict mode, instead of conlleval"),
    }
    primary_metrics = ("f1", "precision", "recall", "accuracy")

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        self.config = config
        self.labels = resolve_labels(
            config,
            has_training_table(config, TAGGED_SUFFIXES),
            lambda: label_names(self._train),
        )
        model = dataclasses.replace(config.model, num_labels=len(self.labels))
        config = dataclasses.replace(config, model=model)
        super().__init__(config, num_processes, process_id)
        self.tokenizer = load_task_tokenizer(config)
        sets = read_sets(config, "eval")
        warn_of_coverage_loss(self.tokenizer, {name: data.words for name, data in sets})
        self._sets = [
            TokenClassificationEvalSet(
                name,
                data.sentences,
                self.tokenizer,
                config,
                self.labels,
                self.objective.sequence_shape,
                self.objective.eval_batch_size,
                num_processes,
                process_id,
            )
            for name, data in sets
        ]

    @functools.cached_property
    def _train(self) -> TokenClassificationDataset:
        ((_, data),) = read_sets(self.config, "train")
        return data

    @functools.cached_property
    def examples(self) -> WordExamples:
        """Encoded training examples."""
        warn_of_coverage_loss(self.tokenizer, {"train": self._train.words})
        return encode_sentences(
            "train", self._train.sentences, self.tokenizer, self.config, self.labels
        )

    def eval_sets(self) -> Sequence[EvalSet]:
        """Return the eval sets."""
        return self._sets

    def format_sequence(self, batch: HostBatch, index: int) -> str:
        """Return a line for each sentence; tags other than O precede the first token of a word."""
        tags, weights = batch["token_labels"][index], batch["token_labels_weights"][index]
        lines = []
        for slot in range(1, int(batch["example_ids"][index].max()) + 1):
            tokens = []
            for column in np.flatnonzero(batch["example_ids"][index] == slot):
                tag = self.labels[tags[column]] if weights[column] else "O"
                token = self.tokenizer.tokens[batch["input_ids"][index, column]]
                tokens.append(token if tag == "O" else f"[{tag}] {token}")
            lines.append(" ".join(tokens))
        return "\n".join(lines)

    @staticmethod
    def is_degenerate(scores: Mapping[str, float]) -> bool:
        """Return whether no entity was found."""
        return not scores["f1"] > 0

    @staticmethod
    def config_for_model(model: NumpyModel) -> Mapping[str, Any] | None:
        """Return configuration fields for a model with this head."""
        return (
            {"max_seq_length": model.config.max_position_embeddings}
            if "token_classification" in model.params
            else None
        )

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        sets = {set_name: len(data.sentences) for set_name, data in read_sets(config, "eval")}
        return report.render(name, directory, sets)


def read_sets(config: Config, split: str) -> list[tuple[str, TokenClassificationDataset]]:
    """Return name and sentences of each data set of a split, "train" or "eval".

    Raises:
      InputError: a file is missing, or has an unknown layout.
    """
    source, fix_tags = config.data["dir"], config.data["fix_tags"]
    if source.startswith(TFDS):
        tfds_split = config.data[f"{split}_file"] or TFDS_SPLITS[split]
        rows = sentences_from_rows(read_tfds_table(source, tfds_split))
        return [(split, make_tagged_dataset(f"{source} {tfds_split}", rows, fix_tags))]
    return [
        (name, read_tagged_file(path, fix_tags))
        for name, path in find_tables(config, split, TAGGED_SUFFIXES)
    ]
