"""The BERT encoder (Devlin et al. 2019, section 3): embeddings and post-LayerNorm blocks.

The parameters are a nested dictionary of float32 arrays. The blocks' parameters are stacked: they
have a leading axis of `num_hidden_layers`, whether the program loops over layers or unrolls them.
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import gpu_kind
from bertjax.model.attention.dispatch import attention
from bertjax.model.bert_config import BertConfig, hidden_state_indices
from bertjax.model.dropout import dropout
from bertjax.model.initialization import (
    Initializer,
    local_attention_init,
    sinusoids,
    truncated_normal,
)
from bertjax.model.layers import ACTIVATIONS, add_bias, embedding_lookup, gather, layer_norm

# Arrays of a batch in the order of the arguments of `Encoder`.
ENCODER_INPUTS = ("input_ids", "token_type_ids", "example_ids", "position_ids")


class Dense(nn.Module):
    """A linear layer [..., n] -> [..., features] in the computation's dtype.

    Attributes:
      config: shape of the encoder.
      features: size of the output.
      kernel_init: initializer of the kernel; None for `default_init`.
    """

    config: BertConfig
    features: int
    kernel_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return x times the kernel plus the bias."""
        dtype = jnp.dtype(self.config.dtype)
        init = self.kernel_init or self.default_init()
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return add_bias(self.matmul(x.astype(dtype), kernel.astype(dtype)), bias.astype(dtype))

    def default_init(self) -> Initializer:
        """Return a truncated normal of `initializer_range`."""
        return truncated_normal(self.config.initializer_range)

    def matmul(self, x: Array, kernel: Array) -> Array:
        """Return the product of x [..., n] and the kernel [n, features]."""
        return jnp.dot(x, kernel)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis (Ba et al. 2016), with statistics in float32."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return the normalized vectors [..., n] in the computation's dtype."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layer_norm(x, scale, bias, self.config.layer_norm_eps).astype(self.config.dtype)


class Embeddings(nn.Module):
    """The sum of word, type and position embeddings, then LayerNorm and dropout."""

    config: BertConfig

    def setup(self) -> None:
        """Declare the tables, so that heads can read `word`."""
        config, init = self.config, truncated_normal(self.config.initializer_range)
        position_init = (
            sinusoids(config.initializer_range) if config.attention_init == "local" else init
        )
        self.word = self.param("word", init, (config.vocab_size, config.hidden_size))
        self.type = self.param("type", init, (config.type_vocab_size, config.hidden_size))
        self.position = self.param(
            "position", position_init, (config.max_position_embeddings, config.hidden_size)
        )
        self.norm = LayerNorm(config)

    def __call__(
        self, input_ids: Array, token_type_ids: Array, position_ids: Array, *, deterministic: bool
    ) -> Array:
        """Return vectors [B, T, H] from three int32 [B, T]."""
        tables = (
            (self.word, input_ids),
            (self.type, token_type_ids),
            (self.position, position_ids),
        )
        dtype = jnp.dtype(self.config.dtype)
        vectors = [embedding_lookup(table.astype(dtype), ids) for table, ids in tables]
        word, token_type, position = (x.astype(jnp.float32) for x in vectors)
        key = None if deterministic else self.make_rng("dropout")
        x = self.norm(word + token_type + position)
        return dropout(x, self.config.hidden_dropout_prob, key)


class SelfAttention(nn.Module):
    """Multi-head attention of the tokens [B, T, H] of each example to one another."""

    config: BertConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x: Array, example_ids: Array, output_positions: Array | None) -> Array:
        """Return vectors of the shape of `x`, or [B, N, H] at `output_positions` [B, N]."""
        config, size = self.config, self.config.hidden_size
        heads = (*x.shape[:-1], config.num_attention_heads, size // config.num_attention_heads)
        inits: dict[str, Initializer] = {}
        if config.attention_init == "local":
            local_init = functools.partial(
                local_attention_init,
                config.initializer_range,
                config.num_attention_heads,
                config.max_position_embeddings,
                is_reverse=config.direction == "right_to_left",
            )
            inits = {"query": local_init(query=True), "key": local_init(query=False)}
        query, key, value = (
            Dense(config, size, inits.get(name), name=name)(x).reshape(heads)
            for name in ("query", "key", "value")
        )
        context = attention(
            query,
            key,
            value,
            example_ids,
            mask_kind=config.mask_kind,
            dropout_rate=config.attention_probs_dropout_prob,
            dropout_key=None if self.deterministic else self.make_rng("dropout"),
        )
        context = _select_positions(context.reshape(x.shape), output_positions)
        return Dense(config, size, name="output")(context)


class FeedForward(nn.Module):
    """down(activation(up(x))) for each token of [B, T, H]."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return vectors of the shape of `x`."""
        if not gpu_kind():
            return _feed_forward(self, x)
        # Only the product before the activation is kept for the backward pass, where a GPU computes
        # the activation again beside its derivative, in one kernel. A step of BERT-Large needs an
        # eighth less memory. On a TPU the derivative is kept, which is faster; see `gelu`.
        kept = jax.checkpoint_policies.checkpoint_dots
        prevent_cse = not self.config.scan_layers
        return nn.remat(_feed_forward, policy=kept, prevent_cse=prevent_cse)(self, x)


def _feed_forward(module: FeedForward, x: Array) -> Array:
    config = module.config
    wide = Dense(config, config.feed_forward_size, name="up")(x)
    wide = ACTIVATIONS[config.hidden_act](wide)
    return Dense(config, config.hidden_size, name="down")(wide)


class Block(nn.Module):
    """Attention, then feed-forward, both as x -> LayerNorm(x + dropout(sublayer(x)))."""

    config: BertConfig
    deterministic: bool
    output_hidden_state: bool

    @nn.compact
    def __call__(
        self, x: Array, example_ids: Array, output_positions: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Return the carry and the output of a scan, both [B, T, H].

        The output is None unless `output_hidden_state`. With `output_positions` int32 [B, N], the
        vectors are those at these positions, [B, N, H].
        """
        attend = SelfAttention(self.config, self.deterministic, name="attention")
        residual = _select_positions(x, output_positions)
        update = attend(x, example_ids, output_positions)
        x = add_update(self, residual, update, "attention_norm")
        update = FeedForward(self.config, name="feed_forward")(x)
        x = add_update(self, x, update, "feed_forward_norm")
        return x, x if self.output_hidden_state else None


def add_update(block: Any, x: Array, update: Array, name: str) -> Array:
    """Return LayerNorm(x + dropout(update)).

    Args:
      block: module that calls this, with `config` and `deterministic`.
      x: input of a sublayer of the block.
      update: output of the sublayer.
      name: name of the LayerNorm among the block's submodules.
    """
    key = None if block.deterministic else block.make_rng("dropout")
    update = dropout(update, block.config.hidden_dropout_prob, key)
    return LayerNorm(block.config, name=name)(x + update)


class Encoder(nn.Module):
    """Embeddings and `num_hidden_layers` blocks."""

    config: BertConfig

    def setup(self) -> None:
        """Declare the embeddings, so that heads can read them."""
        self.embeddings = Embeddings(self.config)

    @nn.compact
    def __call__(
        self,
        input_ids: Array,
        token_type_ids: Array,
        example_ids: Array,
        position_ids: Array,
        *,
        deterministic: bool,
        layers: Sequence[int] | None = None,
    ) -> Array:
        """Return vectors in the computation's dtype from four int32 [B, T].

        Args:
          input_ids: token ids.
          token_type_ids: 0 for sentence A or a source, 1 for sentence B or a target.
          example_ids: 1..K for the example a token belongs to, 0 for padding.
          position_ids: position within the example.
          deterministic: turns dropout off. Otherwise `apply` needs `rngs={"dropout": key}`.
          layers: layers to return, numbered as in `hidden_state_indices`; None for the last. No
            block above the topmost of them is computed.

        Returns:
          The last block's vectors [B, T, H], or those of `layers` [len(layers), B, T, H].
        """
        config = self.config
        depths = hidden_state_indices([-1] if layers is None else layers, config.num_hidden_layers)
        top = config.num_hidden_layers if self.is_initializing() else max(depths)
        x = self.embeddings(input_ids, token_type_ids, position_ids, deterministic=deterministic)
        hidden_states: list[Array] = [x]  # by depth; only as many as `layers` need
        if top:
            blocks = block_stack(config, top, deterministic, initializing=self.is_initializing())
            if top < config.num_hidden_layers:
                lowest = functools.partial(jax.tree.map, lambda leaf: leaf[:top])
                blocks = nn.map_variables(blocks, "params", lowest)
            output_hidden_state = any(0 < depth < top for depth in depths)
            x, outputs = blocks(
                config, deterministic, output_hidden_state=output_hidden_state, name="blocks"
            )(x, attention_ids(config, token_type_ids, example_ids))
            hidden_states += [] if outputs is None else list(outputs)
        if layers is None:
            return x
        return jnp.stack([x if depth == top else hidden_states[depth] for depth in depths])


def attention_ids(config: BertConfig, token_type_ids: Array, example_ids: Array) -> Array:
    """Return the `example_ids` that attention reads: negated for target tokens of a decoder."""
    if config.mask_kind != "prefix":
        return example_ids
    return jnp.where(token_type_ids > 0, -example_ids, example_ids)


def block_class(config: BertConfig, block: type[nn.Module] = Block) -> Any:
    """Return the module of a block, rematerialized with `config.remat`."""
    return nn.remat(block, prevent_cse=not config.scan_layers) if config.remat else block


def block_stack(
    config: BertConfig,
    count: int,
    deterministic: bool,
    initializing: bool = False,
    block: type[nn.Module] = Block,
) -> Any:
    """Return the module of `count` consecutive blocks, as a loop or unrolled."""
    return nn.scan(
        block_class(config, block),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=nn.broadcast,
        length=count,
        unroll=1 if config.scan_layers else count,
        # The check traces the block a second time, and the random numbers depend on that.
        check_constancy_invariants=initializing or not deterministic,
    )


def _select_positions(x: Array, positions: Array | None) -> Array:
    """Return the vectors of [B, T, H] at `positions` [B, N], all without."""
    return x if positions is None else gather(x, positions)
