"""A bidirectional LSTM between an encoder and its heads.

The paper uses it on frozen and on left-to-right encoders (Devlin et al. 2019, sections 5.1 and
5.3).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import shard_map_over_batch

_NUM_LAYERS = 2


class BiLSTM(nn.Module):
    """Two layers of a forward and a backward LSTM, whose outputs are concatenated.

    Attributes:
      units: units of one direction.
    """

    units: int

    @nn.compact
    def __call__(self, x: Array, example_ids: Array) -> Array:
        """Return [B, T, 2 * units] in the dtype of `x`, each example independently.

        Args:
          x: [B, T, H].
          example_ids: int32 [B, T].
        """
        for layer in range(_NUM_LAYERS):
            forward = _LSTM(self.units, name=f"forward_{layer}")(x, example_ids)
            backward = _LSTM(self.units, name=f"backward_{layer}")(x[:, ::-1], example_ids[:, ::-1])
            x = jnp.concatenate([forward, backward[:, ::-1]], axis=-1)
        return x


class _LSTM(nn.Module):
    """One direction of a layer (Hochreiter and Schmidhuber 1997, with forget gates)."""

    units: int

    @nn.compact
    def __call__(self, x: Array, example_ids: Array) -> Array:
        units = self.units
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], 4 * units))
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (units, 4 * units))
        bias = self.param("bias", forget_gate_bias, (4 * units,))
        starts = jnp.diff(example_ids, axis=1, prepend=-1) != 0
        return shard_map_over_batch(_lstm, (x, starts), (kernel, recurrent, bias))


def _lstm(x: Array, starts: Array, kernel: Array, recurrent: Array, bias: Array) -> Array:
    """Return the outputs of one direction [B, T, U]; `starts` bool [B, T] resets the state."""
    dtype = x.dtype
    # One product for all that does not depend on the step before.
    inputs = jnp.einsum("bth,hu->tbu", x, kernel.astype(dtype)).astype(jnp.float32) + bias

    def step(carry: tuple[Array, Array], step_input: tuple[Array, Array]) -> tuple[Any, Array]:
        inputs, starts = step_input
        output, cell = (jnp.where(starts[:, None], 0.0, state) for state in carry)
        gates = inputs + (output.astype(dtype) @ recurrent.astype(dtype)).astype(jnp.float32)
        input_gate, forget_gate, output_gate, candidate = jnp.split(gates, 4, axis=-1)
        kept = jax.nn.sigmoid(forget_gate) * cell
        cell = kept + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
        output = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (output, cell), output.astype(dtype)

    zeros = jnp.zeros((x.shape[0], len(recurrent)), jnp.float32)
    _, outputs = jax.lax.scan(step, (zeros, zeros), (inputs, starts.T))
    return outputs.swapaxes(0, 1)


def forget_gate_bias(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return zeros [..., 4 U], but 1 for the forget gates (Jozefowicz et al. 2015)."""
    units = shape[-1] // 4
    return jnp.zeros(shape, dtype).at[..., units : 2 * units].set(1.0)
