"""Token classification, such as named entity recognition (BERT paper, section 5.3)."""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.finetuning_data import (
    COMMON_DATA_FIELDS,
    LABEL_SMOOTHING,
    TFDS_SPLITS,
    find_tables,
    has_training_table,
    load_task_tokenizer,
    resolve_labels,
)
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.token_classification import report
from bertjax.tasks.token_classification.evaluation import (
    TokenClassificationEvalSet,
    encode_sentences,
    has_word_tags,
)
from bertjax.tasks.token_classification.objective import TokenClassificationObjective
from bertjax.tasks.token_classification.pipeline import (
    TokenClassificationPipeline,
    read_sentences,
)
from data_pipelines.fields import Field, field
from data_pipelines.finetuning.table import read_tfds_table
from data_pipelines.finetuning.token_classification.dataset import (
    TAGGED_SUFFIXES,
    TokenClassificationDataset,
    label_names,
    make_tagged_dataset,
    read_tagged_file,
)
from data_pipelines.finetuning.token_classification.sentences import (
    ColumnNames,
    sentences_from_rows,
)
from data_pipelines.finetuning.word_alignment import WordExamples
from data_pipelines.text.tfds import TFDS


class TokenClassificationTask(FinetuningTask):
    """Token classification: a tag for each word, as for named entities."""

    objective_class = TokenClassificationObjective
    pipeline_classes = (TokenClassificationPipeline,)
    objective: TokenClassificationObjective
    DATA_FIELDS: ClassVar[Mapping[str, Field]] = COMMON_DATA_FIELDS | {
        "word_column": field(
            "", 'column of the words, or of the text with spans: name or number from 1; "" finds it'
        ),
        "tag_column": field(
            "",
            'column of the tags or the spans: name or number from 1; "" finds it if one is likely',
        ),
        "label_smoothing": LABEL_SMOOTHING,
        "fix_tags": field(
            False, "accept tags that break their scheme, as conlleval does, instead of an error"
        ),
        "context": field(
            "sentence", '"document" encodes each sentence with the text around it in its document'
        ),
        "strict": field(False, "count entities as seqeval's strict mode, instead of conlleval"),
    }
    primary_metrics: tuple[str, ...] = ("f1", "precision", "recall", "accuracy")

    def __init__(self, config: Config, num_processes: int = 1, process_id: int = 0) -> None:
        super().__init__(config, num_processes, process_id)
        if has_word_tags(self.labels):
            self.primary_metrics = ("accuracy",)

    @staticmethod
    def read_sets(config: Config, split: str) -> list[tuple[str, TokenClassificationDataset]]:
        """Return name and sentences of each data set of a split, "train" or "eval"."""
        source, fix_tags = config.data["dir"], config.data["fix_tags"]
        columns = ColumnNames(config.data["word_column"], config.data["tag_column"])
        if source.startswith(TFDS):
            tfds_split = config.data[f"{split}_file"] or TFDS_SPLITS[split]
            rows = sentences_from_rows(read_tfds_table(source, tfds_split), columns)
            return [(split, make_tagged_dataset(f"{source} {tfds_split}", rows, fix_tags))]
        tables = find_tables(config, split, TAGGED_SUFFIXES)
        load = functools.partial(load_task_tokenizer, config)
        return [(name, read_tagged_file(path, fix_tags, columns, load)) for name, path in tables]

    @staticmethod
    def read_unlabeled(config: Config) -> TokenClassificationDataset:
        """Return the sentences of `distill.unlabeled`; their tags are not read."""
        path = config.distill.unlabeled
        return TokenClassificationDataset(path, read_sentences(path, load_task_tokenizer(config)))

    @staticmethod
    def texts_of(data: TokenClassificationDataset) -> list[str]:
        """Return the words."""
        return data.words

    def find_labels(self) -> tuple[str, ...]:
        """Return the tags."""
        has_training_data = has_training_table(self.config, TAGGED_SUFFIXES)
        return resolve_labels(self.config, has_training_data, lambda: label_names(self.train_data))

    def encode(self, name: str, data: TokenClassificationDataset) -> WordExamples:
        """Return the sentences with their tags."""
        return encode_sentences(name, data.sentences, self.tokenizer, self.config, self.labels)

    def make_eval_set(
        self, name: str, data: TokenClassificationDataset, *packing: Any
    ) -> TokenClassificationEvalSet:
        """Return an eval set of the sentences."""
        return TokenClassificationEvalSet(
            name, data, self.tokenizer, self.objective, self.labels, *packing
        )

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
    def is_degenerate(scores: Mapping[str, float], metric: str) -> bool:
        """Return whether no entity was found, or no word of word tags is right."""
        return not scores.get("f1", scores["accuracy"]) > 0

    @classmethod
    def report(cls, name: str, config: Config, directory: epath.Path) -> str:
        """Return the HTML report of an evaluation."""
        sets = {set_name: len(data.sentences) for set_name, data in cls.read_sets(config, "eval")}
        return report.render(name, directory, sets)
