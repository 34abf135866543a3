"""The BERT encoder (Devlin et al. 2019, section 3): embeddings and post-LayerNorm blocks.

The parameters are a plain nested dictionary of float32 arrays. Those of the blocks are stacked:
each has a leading axis of `num_hidden_layers`, whether the program loops over it or is unrolled.
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.export import is_symbolic_dim

from bertjax.model.attention.dispatch import attention
from bertjax.model.bert_config import BertConfig, hidden_state_indices
from bertjax.model.dropout import dropout
from bertjax.model.initialization import Initializer, neighbours, normal, sinusoids
from bertjax.model.layers import (
    ACTIVATIONS,
    add_bias,
    embedding_lookup,
    gather,
    layer_norm,
    product,
)


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


def _select_positions(x: Array, at: Array | None) -> Array:
    """Vectors [B, T, H], or those at some positions."""
    return x if at is None else gather(x, at)


def _lowest_blocks(params: Any, count: int) -> Any:
    """The parameters of so many of the lowest blocks."""
    return jax.tree.map(lambda leaf: leaf[:count], params)
