"""The LSTM of ELMo (Peters et al. 2018, section 3.3) as an encoder, over WordPiece tokens.

Each layer projects its cells to the hidden size. From the second layer on a skip connection adds
the input to the output. Cells and projections are clipped. ELMo embeds words by a network over
their characters; a WordPiece vocabulary covers nearly every word, so that a table
suffices.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import shard_map_over_batch
from bertjax.model.bert_config import BertConfig, hidden_state_indices
from bertjax.model.dropout import dropout
from bertjax.model.initialization import truncated_normal
from bertjax.model.layers import embedding_lookup
from bertjax.model.recurrent.bilstm import forget_gate_bias

CLIP = 3.0  # of cells and projections


class LSTMEncoder(nn.Module):
    """Word embeddings and `num_hidden_layers` LSTM layers of one direction.

    Cells have `intermediate_size` units, outputs `hidden_size`.
    """

    config: BertConfig

    def setup(self) -> None:
        """Declare the embeddings, so that heads can read them."""
        self.embeddings = _WordEmbeddings(self.config)

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
        """Return vectors as `bertjax.model.encoder.Encoder` does; types and positions are not read.

        Each example is read from a state of zeros, in the direction of the configuration.
        """
        del token_type_ids, position_ids
        config = self.config
        depths = hidden_state_indices([-1] if layers is None else layers, config.num_hidden_layers)
        order = slice(None, None, -1 if config.direction == "right_to_left" else 1)
        rng = None if deterministic else self.make_rng
        starts = jnp.diff(example_ids[:, order], axis=1, prepend=-1) != 0
        x = dropout(
            self.embeddings(input_ids[:, order]),
            config.hidden_dropout_prob,
            rng and rng("dropout"),
        )
        hidden_states = [x]  # by depth
        for number, params in enumerate(_LSTMLayers(config, name="blocks")()[: max(depths)]):
            update = shard_map_over_batch(lstm, (x, starts), params)
            update = dropout(update, config.hidden_dropout_prob, rng and rng("dropout"))
            x = update if number == 0 else x + update
            hidden_states.append(x)
        if layers is None:
            return hidden_states[-1][:, order]
        return jnp.stack([hidden_states[depth][:, order] for depth in depths])


def lstm(
    x: Array, starts: Array, kernel: Array, recurrent: Array, bias: Array, projection: Array
) -> Array:
    """Return the outputs of an LSTM layer with a projection, [B, T, P] in the dtype of `x`.

    Sak et al. 2014, without peepholes. Gates are in the order input, forget, output, candidate.

    Args:
      x: [B, T, H].
      starts: bool [B, T], True where the state is reset to zeros before the token.
      kernel: [H, 4 U].
      recurrent: [P, 4 U].
      bias: [4 U].
      projection: [U, P].
    """
    dtype = x.dtype
    # One product for all that does not depend on the step before.
    inputs = jnp.einsum("bth,hu->tbu", x, kernel.astype(dtype)).astype(jnp.float32) + bias

    def step(state: tuple[Array, Array], step_input: tuple[Array, Array]) -> tuple[Any, Array]:
        inputs, starts = step_input
        output, cell = (jnp.where(starts[:, None], 0, array) for array in state)
        # Cast here, so that gradients are summed over the steps in float32.
        gates = inputs + (output @ recurrent.astype(dtype)).astype(jnp.float32)
        input_gate, forget_gate, output_gate, candidate = jnp.split(gates, 4, axis=-1)
        kept = jax.nn.sigmoid(forget_gate) * cell
        cell = jnp.clip(kept + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate), -CLIP, CLIP)
        wide = (jax.nn.sigmoid(output_gate) * jnp.tanh(cell)).astype(dtype)
        output = jnp.clip(wide @ projection.astype(dtype), -CLIP, CLIP)
        return (output, cell), output

    batch_size, units = len(x), len(projection)
    state = jnp.zeros((batch_size, len(recurrent)), dtype), jnp.zeros((batch_size, units))
    _, outputs = jax.lax.scan(step, state, (inputs, starts.T))
    return outputs.swapaxes(0, 1)


class _WordEmbeddings(nn.Module):
    """Rows of a table, [B, T, H] in the computation's dtype, for token ids int32 [B, T]."""

    config: BertConfig

    def setup(self) -> None:
        config = self.config
        init = truncated_normal(config.initializer_range)
        self.word = self.param("word", init, (config.vocab_size, config.hidden_size))

    def __call__(self, input_ids: Array) -> Array:
        return embedding_lookup(self.word.astype(self.config.dtype), input_ids)


class _LSTMLayers(nn.Module):
    """Parameters of all layers, stacked as those of the blocks of BERT."""

    config: BertConfig

    @nn.compact
    def __call__(self) -> list[tuple[Array, ...]]:
        """Return the last four arguments of `lstm` for each layer."""
        config = self.config
        size, units = config.hidden_size, config.feed_forward_size
        parts = [
            _Matrices((size, 4 * units), config, has_bias=True, name="input")(),
            _Matrices((size, 4 * units), config, name="recurrent")(),
            _Matrices((units, size), config, name="projection")(),
        ]
        (kernel, bias), (recurrent,), (projection,) = parts
        return list(zip(kernel, recurrent, bias, projection, strict=True))


class _Matrices(nn.Module):
    """A matrix [L, in, out] and a bias [L, out] for the layers."""

    shape: tuple[int, int]
    config: BertConfig
    has_bias: bool = False

    @nn.compact
    def __call__(self) -> tuple[Array, ...]:
        num_layers = self.config.num_hidden_layers
        init = nn.initializers.lecun_normal(batch_axis=0)
        kernel = self.param("kernel", init, (num_layers, *self.shape))
        if not self.has_bias:
            return (kernel,)
        return kernel, self.param("bias", forget_gate_bias, (num_layers, self.shape[1]))
