"""Data sets of embeddings, and their texts as examples of tokens."""

import dataclasses
import itertools
import logging
from typing import Any

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.tasks.embeddings.losses import (
    COSENT_LOSS,
    DEFAULT_SCALE,
    RANKING_LOSS,
    REGRESSION_LOSS,
    SCORED_LOSSES,
    TEACHER_LOSS,
)
from bertjax.tasks.embeddings.objective import TEACHER, make_targets
from bertjax.tasks.finetuning_data import COMMON_DATA_FIELDS, TFDS_SPLITS, find_tables
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.finetuning.embeddings.beir import (
    RetrievalDataset,
    is_retrieval_directory,
    read_retrieval_dataset,
)
from data_pipelines.finetuning.embeddings.dataset import (
    EmbeddingsDataset,
    dataset_from_rows,
    texts_from_rows,
)
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.sequence_classification import (
    SequenceClassificationDataset,
    split_column_names,
)
from data_pipelines.finetuning.table import read_table, read_tfds_table
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")
PROMPTS = ("query_prompt", "document_prompt")
FIELDS = COMMON_DATA_FIELDS | {
    "texts": field(
        "",
        'columns of the texts of the training file in their order, joined by "+"; "" for all but '
        "that of the scores",
    ),
    "eval_texts": field("", 'the same for eval files; "" for all'),
    "score": field(
        "", 'column of the similarity of a pair; "" for one named score, scores, label or labels'
    ),
    "num_texts": field(
        0, "texts of an example, two for a text alone without a teacher; 0 counts the columns"
    ),
    "loss": field(
        "",
        "`multiple_negatives_ranking`, `cosent`, `cosine_similarity`, or `mse` against a teacher; "
        '"" for `mse` with a teacher, `cosent` if pairs have scores, else the first',
    ),
    "scale": field(
        DEFAULT_SCALE, "factor of the cosines in the loss, the inverse of a temperature"
    ),
    "symmetric": field(
        False, "also ranks the anchors for each positive (`multiple_negatives_ranking`)"
    ),
    "matryoshka_dims": field(
        "",
        "numbers of first components that are embeddings by themselves, such as "
        '"768,256,64", whose losses are added; of `mse` the scores alone; "" for all components',
    ),
    "pooling": field(
        "",
        '"mean", "cls" or "max" of the vectors of a text\'s tokens; "" for that of `init`, or mean',
    ),
    "projection_size": field(
        0,
        "components that a linear layer computes of a pooled vector; 0 for those of `init`, or of "
        "a teacher of another size, else no such layer",
    ),
    "normalize": field(True, "scales the model's embeddings to length 1"),
    "query_prompt": field(
        "", 'text before each query of a retrieval and each anchor; "" for that of `init`, or none'
    ),
    "document_prompt": field(
        "", 'text before each document, positive and negative; "" for that of `init`, or none'
    ),
    "qrels": field("test", "split of a retrieval data set, a file in its folder `qrels`"),
    "top_k": field(100, "documents that a retrieval ranks for each query, 10 or more"),
}


def read_sets(config: Config, split: str) -> list[tuple[str, EmbeddingsDataset | RetrievalDataset]]:
    """Return name and examples of each data set of a split, "train" or "eval".

    An eval set is a table, or a directory in the layout of BEIR: `data.dir` or one that
    `data.eval_file` names.

    Raises:
      InputError: a file is missing, or see `dataset_from_rows` and `read_retrieval_dataset`.
    """
    data, is_train = config.data, split == "train"
    columns = split_column_names(data["texts" if is_train else "eval_texts"])
    reads_scores = not is_train or data["loss"] != RANKING_LOSS

    def read(name: str, source: str, rows: Any) -> tuple[str, EmbeddingsDataset]:
        if not (is_train and find_loss(config) == TEACHER_LOSS):
            return name, dataset_from_rows(source, rows, columns, data["score"], reads_scores)
        if data["score"]:
            raise InputError(
                f"data.score={data['score']!r}: data.loss={TEACHER_LOSS} reads no scores. Remove "
                "it."
            )
        return name, texts_from_rows(source, rows, columns)

    if data["dir"].startswith(TFDS):
        rows = read_tfds_table(data["dir"], data[f"{split}_file"] or TFDS_SPLITS[split])
        return [read(split, data["dir"], rows)]
    directory = epath.Path(data["dir"]) if data["dir"] and not is_train else None
    if directory and is_retrieval_directory(directory) and not data["eval_file"]:
        return [(split, read_retrieval_dataset(directory, data["qrels"]))]
    return [
        (name, read_retrieval_dataset(path, data["qrels"]))
        if not is_train and is_retrieval_directory(path)
        else read(name, str(path), read_table(path))
        for name, path in find_tables(config, split)
    ]


def find_loss(config: Config) -> str:
    """Return the loss of a configuration; "" if the columns of the data choose it."""
    if not config.data["loss"] and config.distill.is_on:
        return TEACHER_LOSS
    loss: str = config.data["loss"]
    return loss


def config_for_data(config: Config, data: EmbeddingsDataset) -> Config:
    """Return the configuration with the loss and the number of texts of the training data.

    Raises:
      InputError: the loss reads scores and the data have none or others, or a text alone would have
        twice the same embedding.
    """
    loss = find_loss(config) or (RANKING_LOSS if data.scores is None else COSENT_LOSS)
    if loss in SCORED_LOSSES and data.scores is None:
        raise InputError(
            f"data.loss={loss!r}: {data.name} has no scores. Name their column with data.score, or "
            f"set data.loss={RANKING_LOSS}."
        )
    for score, location in zip(data.scores or (), data.locations, strict=False):
        if loss == REGRESSION_LOSS and not -1 <= score <= 1:
            raise InputError(
                f"{location}: score {score:g} is no cosine. Scale the scores to 0 to 1, or set "
                f"data.loss={COSENT_LOSS}, which reads their order alone."
            )
    if data.scores is not None and len({*data.scores}) == 1:
        raise InputError(
            f"{data.name}: all pairs have the score {data.scores[0]:g}. Give pairs of two scores, "
            f"or set data.loss={RANKING_LOSS}."
        )
    model = config.model
    is_own_positive = data.is_unlabeled and loss != TEACHER_LOSS
    if is_own_positive and not max(model.hidden_dropout_prob, model.attention_probs_dropout_prob):
        raise InputError(
            "model.hidden_dropout_prob=0.0: without dropout a text alone has twice the same "
            "embedding, and nothing to learn. Set 0.1, or give pairs."
        )
    num_texts = 2 if is_own_positive else data.num_texts
    if config.data["num_texts"] not in (0, num_texts):
        raise InputError(
            f"data.num_texts={config.data['num_texts']}: {data.name} has {num_texts} texts in an "
            f"example, {', '.join(data.columns)}. Leave it out, or name columns with data.texts."
        )
    for name in PROMPTS if data.is_unlabeled else ():
        if prompt := config.data[name]:
            raise InputError(
                f"data.{name}={prompt!r}: a text alone is neither a query nor a document. Leave it "
                "out, or give pairs."
            )
    fields = {**config.data, "loss": loss, "num_texts": num_texts}
    return dataclasses.replace(config, data=fields)


def config_for_init(config: Config) -> Config:
    """Return the configuration with pooling, projection and prompts of the model of `init`.

    By default the pooling is the mean, without a projection.

    Raises:
      InputError: the model has a pooling that bertjax lacks, and `data.pooling` names none.
    """
    data, saved = config.data, None
    try:
        saved = find_pooling_config(config.init) if config.init else None
    except InputError:
        if not data["pooling"]:
            raise
    defaults: dict[str, Any] = {"pooling": "mean"}
    if saved is not None:
        inherited = ("pooling", "projection_size", *PROMPTS)
        defaults = {name: getattr(saved, name) for name in inherited}
    fields = {name: data[name] or value for name, value in defaults.items()}
    return dataclasses.replace(config, data={**data, **fields})


def encode_dataset(
    name: str, data: EmbeddingsDataset, tokenizer: Tokenizer, config: Config, reads_scores: bool
) -> Examples:
    """Return the texts as examples, a group for each tuple; log how many were truncated.

    A text alone is there twice: dropout makes it its own positive (SimCSE, Gao et al. 2021). The
    texts of a pair with a score have no prompts, as neither is a query.
    """
    query_prompt, document_prompt = (config.data[name] for name in PROMPTS)
    examples = data.texts
    if data.is_unlabeled:
        examples = [(text, text) for (text,) in data.texts]
    elif data.scores is None:
        examples = [
            (f"{query_prompt}{anchor}", *(f"{document_prompt}{text}" for text in others))
            for anchor, *others in data.texts
        ]
    num_texts = len(examples[0])
    scores = None
    if reads_scores:
        scores = np.repeat(np.array(data.scores or [0.0] * len(data)), num_texts)
    encoded = encode_each(name, [*itertools.chain(*examples)], tokenizer, config, scores)
    return dataclasses.replace(encoded, group_sizes=np.full(len(data), num_texts, np.int64))


def encode_each(
    name: str, texts: list[str], tokenizer: Tokenizer, config: Config, scores: np.ndarray | None
) -> Examples:
    """Return an example for each text; log how many were truncated.

    Args:
      name: name of the data set.
      texts: the texts.
      tokenizer: tokenizer of the model.
      config: configuration of the model.
      scores: score of each text, float [N]; None if the loss reads none.
    """
    dataset = SequenceClassificationDataset(name, [], texts)
    encoded = encode_texts(dataset, tokenizer, config.max_seq_length, "head")
    if encoded.truncated:
        _log.warning(
            "%s: %d of %d texts are truncated to max_seq_length=%d.",
            name,
            encoded.num_truncated,
            len(texts),
            config.max_seq_length,
        )
    return dataclasses.replace(encoded.examples, targets=make_targets(len(texts), scores))


def encode_teacher_texts(
    name: str,
    data: EmbeddingsDataset,
    tokenizer: Tokenizer,
    config: Config,
    embeddings: np.ndarray | None = None,
) -> Examples:
    """Return texts alone as examples; log how many were truncated.

    Args:
      name: name of the data set.
      data: its texts.
      tokenizer: tokenizer of the model.
      config: the configuration.
      embeddings: target of each text, its embedding by a teacher, float32 [N, D]; None without.
    """
    examples = encode_each(name, data.all_texts, tokenizer, config, None)
    if embeddings is None:
        return examples
    targets = {**examples.targets, TEACHER: Target("example", embeddings)}
    return dataclasses.replace(examples, targets=targets)
