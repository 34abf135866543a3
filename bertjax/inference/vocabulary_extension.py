"""Extension of a model's vocabulary by the tokens that save most tokens of a domain's text."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.checkpointing.lookup import read_checkpoint
from bertjax.formats.detection import find_format
from bertjax.formats.loading import read_embedding_model
from bertjax.formats.model_card import model_card
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import write_huggingface
from bertjax.inference.trained_model import read_trained_model
from bertjax.mesh.sharding import map_named, named_leaves
from bertjax.model.bert import param_shapes
from bertjax.tasks import registry
from bertjax.workdir.draft import new_directory
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.vocabulary.counting import count_words, sample_documents, wordpiece_splitters
from data_pipelines.vocabulary.extension import (
    TokenCounts,
    choose_tokens,
    count_tokens,
    extend_tokenizer,
    replaced_ids,
)
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

EVAL_FRACTION = 0.1  # of the documents, on which the vocabularies are compared
NEW_EMBEDDINGS = ("mean", "normal")


class Extension(NamedTuple):
    """A model with a larger vocabulary.

    Attributes:
      model: the model.
      tokens: the new tokens, by the tokens that they save.
      ids: their ids.
      num_old: number of old tokens.
      before: size of the text that was not used to choose them, in old tokens.
      after: the same in new tokens.
    """

    model: NumpyModel
    tokens: list[str]
    ids: list[int]
    num_old: int
    before: TokenCounts
    after: TokenCounts


def write_extended_model(
    source: epath.PathLike,
    output: epath.PathLike,
    read_documents: Callable[[], Iterable[list[str]]],
    text_name: str,
    num_tokens: int,
    new_embeddings: str = "mean",
    workers: int | None = 1,
) -> Extension:
    """Write a model with a larger vocabulary as a directory of Hugging Face.

    A model of embeddings keeps its pooling, as a directory of sentence-transformers.

    The tokens are chosen on 90% of the documents. Both vocabularies are compared on the others.

    Args:
      source: model directory, checkpoint or workdir.
      output: new or empty directory.
      read_documents: returns the documents of a domain, each a list of lines; called twice.
      text_name: name of their text in the history of the model.
      num_tokens: number of new tokens.
      new_embeddings: see `extend_model`.
      workers: processes that count words; None for one per core.

    Raises:
      InputError: the source is not a model with a WordPiece vocabulary, Hugging Face's format
        cannot express it, or the text is too small. Nothing is left behind.
    """
    source_name, source = source, model_path(source)
    with new_directory(epath.Path(output), "--output") as draft:
        model = _read_wordpiece_model(source)
        tokenizer = model.tokenizer
        assert isinstance(tokenizer, WordPieceTokenizer)
        count = functools.partial(_count_words, read_documents, tokenizer, workers)
        eval_counts, counts = count(held_out=True), count(held_out=False)
        tokens = choose_tokens(counts, tokenizer, num_tokens)
        extended, ids = extend_model(model, tokens, new_embeddings)
        assert isinstance(extended.tokenizer, WordPieceTokenizer)
        before, after = (count_tokens(eval_counts, t) for t in (tokenizer, extended.tokenizer))
        change = (
            f"vocabulary: {num_tokens:,} tokens added to {source_name} for {text_name}: "
            f"{before.tokens / before.words:.3f} tokens per word before, "
            f"{after.tokens / after.words:.3f} after"
        )
        extended = dataclasses.replace(extended, history=(*model.history, change))
        write_huggingface(extended, draft, model_card(extended, draft, {}))
    return Extension(extended, tokens, ids, len(tokenizer.tokens), before, after)


def extend_model(
    model: NumpyModel, tokens: Sequence[str], new_embeddings: str = "mean"
) -> tuple[NumpyModel, list[int]]:
    """Return a model with further tokens, and their ids; see `extend_tokenizer`.

    All arrays with an axis for the vocabulary grow: the word embeddings and the MLM output bias.

    Args:
      model: the model; its tokenizer is WordPiece.
      tokens: new tokens that the old ones spell.
      new_embeddings: "mean" of the rows of the tokens that a new one replaces, in each array.
        "normal": word embeddings are drawn with the standard deviation `initializer_range`, and
        biases are 0.
    """
    tokenizer, config = model.tokenizer, model.config
    assert isinstance(tokenizer, WordPieceTokenizer)
    extended, ids = extend_tokenizer(tokenizer, tokens)
    size = max(config.vocab_size, len(extended.tokens))
    larger = dataclasses.replace(config, vocab_size=config.vocab_size + 1)
    # The projection of embeddings has no shape there: its size is no field of the model.
    larger_shapes = dict(named_leaves(param_shapes(larger)))
    replaced = replaced_ids(tokenizer, tokens)
    random = np.random.default_rng(0)

    def extend(name: str, array: np.ndarray) -> np.ndarray:
        if name not in larger_shapes or larger_shapes[name].shape == array.shape:
            return array
        rows = np.zeros((size, *array.shape[1:]), array.dtype)
        rows[: len(array)] = array
        if new_embeddings == "mean":
            rows[ids] = [array[old].mean(axis=0) for old in replaced]
        elif array.ndim > 1:
            rows[ids] = random.normal(0, config.initializer_range, rows[ids].shape)
        else:
            rows[ids] = 0
        return rows

    params = map_named(extend, model.params)
    config = dataclasses.replace(config, vocab_size=size)
    return dataclasses.replace(model, config=config, params=params, tokenizer=extended), ids


def _read_wordpiece_model(source: epath.Path) -> NumpyModel:
    """Return a model whose vocabulary can be extended, and that can be written.

    Raises:
      InputError: it is another model.
    """
    if (format_name := find_format(source)) == "bertjax":
        model = read_checkpoint(source, read_trained_model)
    else:
        registry.register_heads()
        model = registry.with_applied_settings(read_embedding_model(source, format_name))
    model.named_arrays("hf")  # fails before the text is read
    if model.tokenizer is None:
        raise InputError(f"{source}: has no vocabulary. Add vocab.txt.")
    if not isinstance(model.tokenizer, WordPieceTokenizer):
        raise InputError(
            f"{source}: has a SentencePiece model, which is not extended. Give a model with a "
            "WordPiece vocabulary."
        )
    return model


def _count_words(
    read_documents: Callable[[], Iterable[list[str]]],
    tokenizer: WordPieceTokenizer,
    workers: int | None,
    held_out: bool,
) -> Counter[str]:
    """Return the word counts of the documents for the comparison, or of all others."""
    splitters = wordpiece_splitters(tokenizer.cased, tokenizer.strip_accents)
    if not tokenizer.do_basic_tokenize:
        splitters = str.split, str.split
    documents = sample_documents(read_documents(), EVAL_FRACTION, complement=not held_out)
    if (first := next(documents, None)) is None:
        raise InputError(
            f"--input: too few documents to hold out {EVAL_FRACTION:.0%} of them. Give more; blank "
            "lines separate documents, or --documents lines."
        )
    lines: Iterable[str] = itertools.chain(first, itertools.chain.from_iterable(documents))
    if tokenizer.added_tokens:
        parts = itertools.chain.from_iterable(map(tokenizer.split_added_tokens, lines))
        lines = (part for part in parts if isinstance(part, str))
    return count_words(lines, *splitters, workers=workers)
