"""The BERT encoder (Devlin et al. 2019, section 3): embeddings and post-LayerNorm blocks.

The parameters are a plain nested dictionary of float32 arrays. Those of the blocks are stacked:
each has a leading axis of `num_hidden_layers`, whether the program loops over it or is unrolled.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.model.attention.dispatch import attention
from bertjax.model.dropout import dropout, threshold
from bertjax.model.initialization import ATTENTION_INITS, Initializer, neighbours, normal, sinusoids
from bertjax.model.layers import (
    ACTIVATIONS,
    add_bias,
    embedding_lookup,
    gather,
    layer_norm,
    product,
)
from data_pipelines.errors import InputError
from data_pipelines.fields import field

DTYPES = ("float32", "bfloat16")


FEATURE_MIXES = ("concat", "sum")
LAYER_MIX_FIELDS = (
    "feature_layers",
    "feature_mix",
    "bilstm",
)  # what heads read in place of the last layer


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder and how it is computed; the defaults are BERT-Base uncased.

    Raises:
      InputError: a shape that cannot be.
    """

    vocab_size: int = field(30522, "vectors of pieces, at least as many as the vocabulary has")
    num_hidden_layers: int = field(12, "blocks of attention and feed-forward")
    hidden_size: int = field(768, "width of what goes from block to block")
    num_attention_heads: int = field(12, "heads of attention, a divisor of `hidden_size`")
    intermediate_size: int | None = field(
        None, "width of the feed-forward layer; None for 4 times `hidden_size`"
    )
    max_position_embeddings: int = field(512, "vectors of positions: no example is longer")
    type_vocab_size: int = field(2, "vectors of types: of sentence A and sentence B")
    hidden_dropout_prob: float = field(
        0.1,
        "dropout of embeddings, and of what each half of a block adds, to the nearest 1/256",
    )
    attention_probs_dropout_prob: float = field(
        0.1, "dropout of the probabilities of attention, to the nearest 1/256"
    )
    hidden_act: str = field(
        "gelu", '"gelu" (with erf, as the released checkpoints), "gelu_tanh" or "relu"'
    )
    layer_norm_eps: float = field(1e-12, "what LayerNorm adds to a variance")
    initializer_range: float = field(
        0.02, "parameters begin with a normal of this deviation, cut at two of them"
    )
    initialization: str = field(
        "normal",
        'vectors of positions, queries and keys begin as all parameters do, or with "neighbours" '
        "so that each head looks a few pieces to one side, which saves small runs the time of "
        "finding that out",
    )
    dtype: str = field(
        "float32", 'type of the computation, "float32" or "bfloat16"; parameters are float32 always'
    )
    scan_layers: bool = field(
        False,
        "compiles one block and loops over it, which compiles faster; else the loop is unrolled, "
        "which runs faster",
    )
    remat: bool = field(
        False,
        "recomputes each block in the backward pass instead of keeping what it produced; on CPUs "
        "that saves memory only with `scan_layers`",
    )
    causal: bool = field(False, "a piece sees only itself and what stands before it")
    feature_layers: str = field(
        "",
        'such as "-1" or "-4..-1", 0 being the embeddings: freezes the encoder, and heads read '
        'these layers of it (section 5.3 of the paper); "" for an encoder that learns',
    )
    feature_mix: str = field(
        "concat", 'heads read `feature_layers` side by side, or with "sum" their weighted sum'
    )
    bilstm: int = field(0, "units of a BiLSTM that heads read in place of the encoder; 0 for none")
    num_labels: int = field(
        0, "outputs of a head whose task does not fix them; the data say, where there are labels"
    )

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "max_position_embeddings",
        )
        for name in (*sizes, "type_vocab_size", "feed_forward_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number of at least 1.")
        for name in ("num_labels", "bilstm"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0.")
        if self.bilstm % 2:
            raise InputError(f"bilstm={self.bilstm} must be even: half of it is of each direction.")
        if self.feature_layers:
            parse_layers(self.feature_layers, self.num_hidden_layers)
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}: "
                f"choose a divisor of it, usually hidden_size / 64."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not 0 <= rate < 1 or (rate and not 0 < threshold(rate) < 256):
                raise InputError(
                    f"{name}={rate} must be 0 or lie from 0.002 to 0.998: of rates it takes "
                    "multiples of 1/256."
                )
        for name in ("layer_norm_eps", "initializer_range"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)} must be greater than 0.")
        for name, known in (
            ("hidden_act", ACTIVATIONS),
            ("dtype", DTYPES),
            ("feature_mix", FEATURE_MIXES),
            ("initialization", ATTENTION_INITS),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name}={getattr(self, name)!r} must be {' or '.join(known)}.")

    @property
    def feed_forward_size(self) -> int:
        """The width of the feed-forward layer: `intermediate_size`, by default 4 hidden sizes."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


class Dense(nn.Module):
    """A linear layer [..., n] -> [..., features] in the computation's dtype."""

    config: BertConfig
    features: int
    kernel_init: Initializer | None = None  # as all parameters

    @nn.compact
    def __call__(self, x: Array) -> Array:
        dtype = jnp.dtype(self.config.dtype)
        init = self.kernel_init or normal(self.config.initializer_range)
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return add_bias(product(x.astype(dtype), kernel.astype(dtype)), bias.astype(dtype))


class LayerNorm(nn.Module):
    """LayerNorm over the last axis (Ba et al. 2016): statistics in float32."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """[..., n] in the computation's dtype."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layer_norm(x, scale, bias, self.config.layer_norm_eps).astype(self.config.dtype)


class Embeddings(nn.Module):
    """LN(word + type + position), then dropout."""

    config: BertConfig

    def setup(self) -> None:
        config, init = self.config, normal(self.config.initializer_range)
        place = (
            sinusoids(config.initializer_range) if config.initialization == "neighbours" else init
        )
        self.word = self.param("word", init, (config.vocab_size, config.hidden_size))
        self.type = self.param("type", init, (config.type_vocab_size, config.hidden_size))
        self.position = self.param(
            "position", place, (config.max_position_embeddings, config.hidden_size)
        )
        self.norm = LayerNorm(config)

    def __call__(
        self, input_ids: Array, token_type_ids: Array, positions: Array, *, deterministic: bool
    ) -> Array:
        """[B, T, H] from three int32 [B, T]."""
        tables = ((self.word, input_ids), (self.type, token_type_ids), (self.position, positions))
        dtype = jnp.dtype(self.config.dtype)
        found = [embedding_lookup(table.astype(dtype), ids) for table, ids in tables]
        word, kind, position = (vectors.astype(jnp.float32) for vectors in found)
        key = None if deterministic else self.make_rng("dropout")
        return dropout(self.norm(word + kind + position), self.config.hidden_dropout_prob, key)


class SelfAttention(nn.Module):
    """Every piece [B, T, H] gathers from the pieces of its pair through `num_attention_heads` heads."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x: Array, example_ids: Array, at: Array | None) -> Array:
        config, size = self.config, self.config.hidden_size
        heads = (*x.shape[:-1], config.num_attention_heads, size // config.num_attention_heads)
        inits: dict[str, Initializer] = {}
        if config.initialization == "neighbours":
            aside = functools.partial(
                neighbours,
                config.initializer_range,
                config.num_attention_heads,
                config.max_position_embeddings,
            )
            inits = {"query": aside(query=True), "key": aside(query=False)}
        query, key, value = (
            Dense(config, size, inits.get(name), name=name)(x).reshape(heads)
            for name in ("query", "key", "value")
        )
        mixed = attention(
            query,
            key,
            value,
            example_ids,
            causal=config.causal,
            dropout_rate=config.attention_probs_dropout_prob,
            dropout_key=None if self.deterministic else self.make_rng("dropout"),
        )
        return Dense(config, size, name="output")(_select_positions(mixed.reshape(x.shape), at))


class FeedForward(nn.Module):
    """down(activation(up(x))), each piece of [B, T, H] by itself."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        wide = Dense(self.config, self.config.feed_forward_size, name="up")(x)
        wide = ACTIVATIONS[self.config.hidden_act](wide)
        return Dense(self.config, self.config.hidden_size, name="down")(wide)


class Block(nn.Module):
    """Attention, then feed-forward, each as x -> LN(x + dropout(sublayer(x)))."""

    config: BertConfig
    deterministic: bool
    output_hidden_state: bool

    @nn.compact
    def __call__(
        self, x: Array, example_ids: Array, at: Array | None = None
    ) -> tuple[Array, Array | None]:
        """[B, T, H], as a scan wants it: once to carry on, once to stack where asked to `output_hidden_state`.

        With `at` int32 [B, N] the vectors of these positions alone, [B, N, H].
        """

        def add(x: Array, update: Array, name: str) -> Array:
            key = None if self.deterministic else self.make_rng("dropout")
            update = dropout(update, self.config.hidden_dropout_prob, key)
            return LayerNorm(self.config, name=name)(x + update)

        attend = SelfAttention(self.config, self.deterministic, name="attention")
        x = add(_select_positions(x, at), attend(x, example_ids, at), "attention_norm")
        x = add(x, FeedForward(self.config, name="feed_forward")(x), "feed_forward_norm")
        return x, x if self.output_hidden_state else None


class Encoder(nn.Module):
    """Embeddings and `num_hidden_layers` blocks."""

    config: BertConfig

    def setup(self) -> None:
        self.embeddings = Embeddings(self.config)

    @nn.compact
    def __call__(
        self,
        input_ids: Array,
        token_type_ids: Array,
        example_ids: Array,
        positions: Array,
        *,
        deterministic: bool,
        layers: Sequence[int] | None = None,
        at: Array | None = None,
    ) -> Array:
        """The last block's vectors [B, T, H] from four int32 [B, T], in the computation's dtype.

        With `layers`, those of each of them [len(layers), B, T, H]; see `hidden_state_indices`. No block above
        the topmost of them is computed. With `at` int32 [B, N] in place of it, which is not for
        `init`, those at these positions [B, N, H], and of the last block's no others. Unless
        `deterministic`, `apply` must be given `rngs={"dropout": key}`.
        """
        config = self.config
        wanted = hidden_state_indices([-1] if layers is None else layers, config.num_hidden_layers)
        top = config.num_hidden_layers if self.is_initializing() else max(wanted)
        x = self.embeddings(input_ids, token_type_ids, positions, deterministic=deterministic)
        if at is not None:
            return self._encode_at_positions(x, example_ids, at, deterministic)
        below: list[Array] = [x]  # what is wanted of it; where only the topmost is, no more is kept
        if top:
            blocks = self._block_stack(top, deterministic)
            if top < config.num_hidden_layers:
                blocks = nn.map_variables(
                    blocks, "params", lambda params: _lowest_blocks(params, top)
                )
            output_hidden_state = any(0 < depth < top for depth in wanted)
            x, kept = blocks(
                config, deterministic, output_hidden_state=output_hidden_state, name="blocks"
            )(x, example_ids)
            below += [] if kept is None else list(kept)
        if layers is None:
            return x
        return jnp.stack([x if depth == top else below[depth] for depth in wanted])

    @property
    def _block_class(self) -> type[Block]:
        """One, of which the backward pass computes again what it needs where memory is short."""
        config = self.config
        return nn.remat(Block, prevent_cse=not config.scan_layers) if config.remat else Block

    def _block_stack(self, count: int, deterministic: bool) -> Any:
        """So many blocks, one after the other."""
        return nn.scan(
            self._block_class,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=count,
            unroll=1 if self.config.scan_layers else count,
            # Traces the block once more, on which random numbers depend, and nothing else does.
            check_constancy_invariants=self.is_initializing() or not deterministic,
        )

    def _encode_at_positions(
        self, x: Array, example_ids: Array, at: Array, deterministic: bool
    ) -> Array:
        """The last block's vectors at some positions, [B, N, H], from those of the embeddings."""
        config, top = self.config, self.config.num_hidden_layers - 1
        leaves, tree = jax.tree.flatten(self.get_variable("params", "blocks"))
        # By one operation, whose derivative puts the gradients of all layers together at once.
        parts = zip(*(jnp.split(leaf, [top]) for leaf in leaves), strict=True)
        lower, last = (jax.tree.unflatten(tree, part) for part in parts)

        def run(blocks: Any, params: Any, *inputs: Array) -> Array:
            rngs = {} if deterministic else {"dropout": self.make_rng("dropout")}
            block = blocks(
                config, deterministic, output_hidden_state=False, parent=None, name="blocks"
            )
            found: tuple[Array, None] = block.apply({"params": params}, *inputs, rngs=rngs)
            return found[0]

        if top:
            x = run(self._block_stack(top, deterministic), lower, x, example_ids)
        return run(self._block_class, jax.tree.map(lambda leaf: leaf[0], last), x, example_ids, at)


def computes_only_head_positions(config: BertConfig, wanted: int, length: int) -> bool:
    """Whether a model whose heads read `wanted` of a row's positions leaves the others out of all
    that comes behind the last block's attention: the wanted are at most half of the row, nothing
    comes between that reads all, and the block is no part of a loop.
    """
    known = not (is_symbolic_dim(wanted) or is_symbolic_dim(length))
    between = config.feature_layers or config.bilstm
    return known and 2 * wanted <= length and not between and not config.scan_layers


def parse_layers(spec: str, num_hidden_layers: int) -> tuple[int, ...]:
    """The depths of "-1", or of all from the one to the other of "-4..-1"; see `hidden_state_indices`.

    Raises:
      InputError: it names no layers, or such as there are not.
    """
    match = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?", spec)
    if not match:
        raise InputError(f"feature_layers={spec!r} must read -1, or -4..-1.")
    first, last = hidden_state_indices(
        [int(match[1]), int(match[2] or match[1])], num_hidden_layers
    )
    if first > last:
        raise InputError(f"feature_layers={spec!r} ends below where it begins: turn it round.")
    return tuple(range(first, last + 1))


def hidden_state_indices(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """How many blocks lie below what each of some layers gives.

    Args:
      layers: 0 for the embeddings, 1 for the first block, and so on; -1 for the last one, -2 for
        the one below it, and so on, as Hugging Face numbers `hidden_states`.
    Raises:
      InputError: there is no such layer.
    """
    for layer in layers:
        if not -num_hidden_layers - 1 <= layer <= num_hidden_layers:
            raise InputError(
                f"there is no layer {layer} in a model of {num_hidden_layers} layers: choose from 0, its "
                f"embeddings, to {num_hidden_layers}, or from -1, its last, to {-num_hidden_layers - 1}."
            )
    return tuple(layer % (num_hidden_layers + 1) for layer in layers)


def _select_positions(x: Array, at: Array | None) -> Array:
    """Vectors [B, T, H], or those at some positions."""
    return x if at is None else gather(x, at)


def _lowest_blocks(params: Any, count: int) -> Any:
    """The parameters of so many of the lowest blocks."""
    return jax.tree.map(lambda leaf: leaf[:count], params)
