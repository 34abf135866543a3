"""Embeddings of texts, words and tokens, computed by an encoder without a head."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.mesh.device_mesh import max_predict_sequences, split_batch
from bertjax.mesh.feed import Batch
from bertjax.model import pooling
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig, hidden_state_indices
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.encoders import make_encoder
from bertjax.model.heads import PROJECTION
from bertjax.tasks.finetuning import FinetuningObjective, PackedEvalSet
from bertjax.tasks.pipeline import RunFunction
from bertjax.tasks.task import bucket_size, packed_sequence_length
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import PackedShape, pack_examples
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.ranges import concatenate_ranges
from data_pipelines.vocabulary.tokenization import Tokenizer

LEVELS = ("text", "word", "token")
_MAX_BATCH_TOKENS = 1024  # of a CPU device
_PROJECTION_SEED = 0xDE45E  # folded into the key of the parameters


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """Options of embeddings.

    Attributes:
      layers: see `bertjax.model.bert_config.hidden_state_indices`; a text has their mean.
      level: unit that gets an embedding: "text", "word" or "token".
      pooling: see `bertjax.model.pooling`; of a text's tokens.
      normalize: whether a text's embedding is scaled to length 1.
      max_seq_length: tokens of a text, after which it is truncated; None for the positions of the
        model.
      do_lower_case: whether texts are lower-cased before the tokenizer reads them.
      prompt: text before each text.
      projection_size: components that a linear layer computes of a text's pooled vector; 0 without
        one.
    """

    layers: tuple[int, ...] = (-1,)
    level: str = "text"
    pooling: str = "mean"
    normalize: bool = False
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""
    projection_size: int = 0

    def __post_init__(self) -> None:
        for name, values in (("level", LEVELS), ("pooling", pooling.POOLING_MODES)):
            if (value := getattr(self, name)) not in values:
                raise InputError(f"{name}={value}: unknown value. Use {', '.join(values)}.")
        if not self.layers:
            raise InputError("layers=(): there are none. Give some, such as -1,-2.")
        if self.normalize and self.level != "text":
            raise InputError(
                f"normalize=True: level={self.level} has no such option. Leave it out."
            )
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise InputError(f"max_seq_length={self.max_seq_length}: no space for text. Raise it.")


def check_pooling(field: str, mode: str, model: BertConfig) -> None:
    """Raise InputError if a pooling mode is unknown or reads a [CLS] that sees no text."""
    if mode not in pooling.POOLING_MODES:
        raise InputError(f"{field}={mode}: unknown value. Use {', '.join(pooling.POOLING_MODES)}.")
    if mode == "cls" and model.direction in ("left_to_right", "pair"):
        raise InputError(
            f"{field}=cls: from left to right [CLS] sees no text (model.direction="
            f"{model.direction}). Use mean."
        )


def apply_encoder(
    model: BertConfig,
    params: Any,
    batch: Mapping[str, Any],
    key: Array | None = None,
    layers: Sequence[int] | None = None,
) -> Array:
    """Return the hidden states of a batch [B, T, H], or of some layers [len(layers), B, T, H].

    Args:
      model: configuration of the encoder.
      params: parameters, of which "encoder" is read.
      batch: arrays of the batch.
      key: key of dropout; None to turn dropout off.
      layers: layers to return; None for the last.
    """
    hidden_states = make_encoder(model, "encoder").apply(
        {"params": params["encoder"]},
        *(batch[name] for name in ENCODER_INPUTS),
        deterministic=key is None,
        layers=layers,
        rngs=None if key is None else {"dropout": key},
    )
    return cast(Array, hidden_states)


def with_projection(params: Any, model: BertConfig, size: int, key: Array) -> Any:
    """Return parameters, with those of a projection to `size` components if that is not 0."""
    if not size:
        return params
    key = jax.random.fold_in(key, _PROJECTION_SEED)
    return {**params, PROJECTION: pooling.init_projection(key, model.output_size, size)}


class EmbeddingsObjective(FinetuningObjective):
    """Encoder whose output `embeddings` is [B, K, H] for texts, or [B, T, L, H] for tokens."""

    heads = ()
    eval_outputs = ("embeddings",)

    def __init__(self, config: Config, batch_size_multiple: int, options: EmbeddingOptions) -> None:
        # A text is a source, and no head reads its vectors.
        names = ("decoder", "sampled_softmax", *LAYER_MIX_FIELDS)
        defaults = {name: getattr(BertConfig, name) for name in names}
        model = dataclasses.replace(config.model, **defaults)
        check_pooling("pooling", options.pooling, model)
        super().__init__(dataclasses.replace(config, model=model), batch_size_multiple)
        hidden_state_indices(options.layers, model.num_hidden_layers)
        self.options = options

    def init_params(self, key: Array) -> Any:
        """Return random parameters of the encoder, and of the projection if there is one."""
        params = super().init_params(key)
        return with_projection(params, self.config.model, self.options.projection_size, key)

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return {"text": Target("example", np.zeros(0, np.int32))}

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return the outputs of a forward pass."""
        options = self.options
        layers = apply_encoder(self.config.model, params, batch, layers=options.layers)
        if options.level != "text":
            return {"embeddings": jnp.moveaxis(layers, 0, 2).astype(jnp.float32)}
        mean = jnp.mean(layers.astype(jnp.float32), axis=0)
        num_texts = batch["cls_positions"].shape[1]
        embeddings = pooling.pool(mean, batch["example_ids"], num_texts, options.pooling)
        if options.projection_size:
            embeddings = pooling.project(embeddings, params[PROJECTION])
        return {"embeddings": pooling.l2_normalize(embeddings) if options.normalize else embeddings}


class TextEmbeddings(NamedTuple):
    """Embeddings of some texts.

    Attributes:
      embeddings: float32 [N, H] of texts, or [P, L, H] of the tokens or words of all texts.
      tokens: tokens or words of each text; None for texts.
      num_truncated: number of truncated texts.
    """

    embeddings: np.ndarray
    tokens: list[list[str]] | None
    num_truncated: int


def embed_texts(
    texts: Sequence[str], run: RunFunction, tokenizer: Tokenizer, objective: EmbeddingsObjective
) -> TextEmbeddings:
    """Return the embeddings of texts of any length, in their order.

    Texts of similar length share sequences, which are just long enough, with shorter ones where
    these fill what is left of them. Batches have a power of two
    of sequences, so there are few compiled programs.
    """
    options = objective.options
    texts = [f"{options.prompt}{text}" for text in texts]
    if options.do_lower_case:
        texts = [text.lower() for text in texts]
    level: Literal["example", "token"] = "example" if options.level == "text" else "token"
    dataset = SequenceClassificationDataset("input", [], list(texts))
    encoded = encode_texts(dataset, tokenizer, objective.config.max_seq_length, "head")
    examples = encoded.examples
    total = int(examples.lengths.sum())
    lengths = np.array([packed_sequence_length(size, total) for size in examples.lengths])
    lengths = _join_lengths(examples, lengths, objective)
    parts: list[Any] = [None] * len(texts)  # embeddings of each text
    for length in np.unique(lengths).tolist():
        indices = np.flatnonzero(lengths == length)
        shape = _sequence_shape(length, objective)
        batch_size = _max_sequences(shape, objective)
        eval_set = PackedEvalSet(
            _select_examples(examples, indices), shape, max_batch_size=batch_size
        )
        unpacked = eval_set.unpack_outputs(run(eval_set.batches()), "embeddings", level)
        for index, embeddings in zip(indices, unpacked, strict=True):
            parts[index] = embeddings
    if options.level == "text":
        return TextEmbeddings(np.stack(parts), None, encoded.num_truncated)
    ids_of_text = np.split(examples.ids, examples.starts[1:])
    tokens = [[tokenizer.tokens[i] for i in ids] for ids in ids_of_text]
    if options.level == "word":
        pooled = [
            _pool_words(text, ids, embeddings, tokenizer)
            for text, ids, embeddings in zip(texts, ids_of_text, parts, strict=True)
        ]
        tokens, parts = [words for words, _ in pooled], [embeddings for _, embeddings in pooled]
    return TextEmbeddings(np.concatenate(parts), tokens, encoded.num_truncated)


def _sequence_shape(length: int, objective: EmbeddingsObjective) -> PackedShape:
    """Return the shape of a sequence of at most `length` tokens."""
    num_tokens = min(length, objective.config.max_seq_length)
    return PackedShape(num_tokens, max(1, num_tokens // objective.MIN_TOKENS_PER_EXAMPLE))


def _max_sequences(shape: PackedShape, objective: EmbeddingsObjective) -> int:
    """Return the maximal number of sequences of a batch."""
    return max_predict_sequences(
        shape.tokens, objective.batch_size_multiple, max(1, _MAX_BATCH_TOKENS // shape.tokens)
    )


def _join_lengths(
    examples: Examples, lengths: np.ndarray, objective: EmbeddingsObjective
) -> np.ndarray:
    """Return the tokens of each text's sequence, raised for short texts where that is faster.

    A text of more than half of a sequence leaves much of it empty, which short texts can fill. Then
    their attention takes longer: in sequences of L tokens L / (6 H) of the matrix products with a
    hidden size of H, and three times that by the clock of a CPU.

    Args:
      examples: the texts.
      lengths: int [N], tokens of a sequence for texts of similar length.
      objective: the objective, which has the limits of a sequence.
    """
    num_tokens = 2 * objective.config.model.hidden_size

    def cost(length: int, texts: np.ndarray) -> float:
        shape = _sequence_shape(length, objective)
        count = pack_examples(examples, np.flatnonzero(texts), shape).num_sequences
        batches, rest = divmod(count, most := _max_sequences(shape, objective))
        padded = batches * most + sum(map(bucket_size, split_batch(rest, 1)))
        return padded * shape.tokens * (1 + shape.tokens / num_tokens)

    lengths = lengths.copy()
    for shorter, longer in itertools.pairwise(np.unique(lengths).tolist()):
        short, long = lengths == shorter, lengths == longer
        if cost(longer, short | long) < cost(shorter, short) + cost(longer, long):
            lengths[short] = longer
    return lengths


def _select_examples(examples: Examples, indices: np.ndarray) -> Examples:
    """Return some of the examples, with the target of `EmbeddingsObjective`."""
    target = Target("example", np.zeros(len(indices), np.int32))
    if len(indices) == len(examples):
        return dataclasses.replace(examples, targets={"text": target})
    tokens = concatenate_ranges(examples.starts[indices], examples.lengths[indices])
    return Examples(
        examples.ids[tokens],
        examples.lengths[indices],
        examples.prefix_lengths[indices],
        {"text": target},
    )


def _pool_words(
    text: str, ids: np.ndarray, embeddings: np.ndarray, tokenizer: Tokenizer
) -> tuple[list[str], np.ndarray]:
    """Return the words of a text, and the mean embedding of each one's tokens [words, L, H]."""
    ids, embeddings = ids[1:-1], embeddings[1:-1]
    starts = np.flatnonzero(~tokenizer.is_continuation[ids])
    if len(ids) and (not len(starts) or starts[0]):
        starts = np.concatenate([[0], starts])
    if not len(starts):
        return [], embeddings
    ends = [*starts[1:], len(ids)]
    counts = np.diff([*starts, len(ids)])
    means = np.add.reduceat(embeddings, starts) / counts[:, None, None].astype(np.float32)
    _, offsets = tokenizer.encode_with_offsets(text)
    words = [
        text[offsets[start][0] : offsets[end - 1][1]]
        for start, end in zip(starts, ends, strict=True)
    ]
    return words, means
