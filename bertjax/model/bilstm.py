"""What the paper puts on frozen or one-way encoders: several layers made one, and a bidirectional
LSTM (Devlin et al. 2019, sections 5.1 and 5.3).
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

_NUM_LAYERS = 2


class LayerMix(nn.Module):
    """Vectors of several layers made one.

    Attributes:
      mix: "concat" for one beside the other, or "sum" for their mean with weights that are learned
        and add up to 1, times a factor that is learned too (Peters et al. 2018, equation 1).
    """

    mix: str

    @nn.compact
    def __call__(self, layers: Array) -> Array:
        """[B, T, L * H] or [B, T, H] from vectors [L, B, T, H], of their dtype."""
        count = layers.shape[0]
        if self.mix == "concat":
            return jnp.concatenate(list(layers), axis=-1)
        weights = jax.nn.softmax(self.param("weights", nn.initializers.zeros_init(), (count,)))
        factor = self.param("factor", nn.initializers.ones_init(), ())
        return jnp.einsum("lbth,l->bth", layers, (factor * weights).astype(layers.dtype))


class BiLSTM(nn.Module):
    """Two layers, each of them a forward and a backward one whose outputs stand side by side.

    Attributes:
      units: of one direction.
    """

    units: int

    @nn.compact
    def __call__(self, x: Array, example_ids: Array) -> Array:
        """[B, T, 2 * units] of x's dtype, from vectors [B, T, H] and int32 [B, T].

        Examples that share a row do not know of one another.
        """
        for layer in range(_NUM_LAYERS):
            x = jnp.concatenate(
                [
                    _LSTM(self.units, name=f"forward_{layer}")(x, example_ids),
                    _LSTM(self.units, name=f"backward_{layer}")(x[:, ::-1], example_ids[:, ::-1])[
                        :, ::-1
                    ],
                ],
                axis=-1,
            )
        return x


class _LSTM(nn.Module):
    """One direction of a layer (Hochreiter and Schmidhuber 1997, with forget gates)."""

    units: int

    @nn.compact
    def __call__(self, x: Array, example_ids: Array) -> Array:
        units, dtype = self.units, x.dtype
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], 4 * units))
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (units, 4 * units))
        bias = self.param("bias", _forget_gate_bias, (4 * units,))
        # All that does not wait for the step before is one product.
        given = jnp.einsum("bth,hu->tbu", x, kernel.astype(dtype)).astype(jnp.float32) + bias
        begins = jnp.diff(example_ids, axis=1, prepend=-1) != 0

        def step(carry: tuple[Array, Array], now: tuple[Array, Array]) -> tuple[Any, Array]:
            given, begins = now
            output, cell = (jnp.where(begins[:, None], 0.0, each) for each in carry)
            gates = given + (output.astype(dtype) @ recurrent.astype(dtype)).astype(jnp.float32)
            enter, forget, leave, new = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            output = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (output, cell), output.astype(dtype)

        zeros = jnp.zeros((x.shape[0], units), jnp.float32)
        _, outputs = jax.lax.scan(step, (zeros, zeros), (given, begins.T))
        return outputs.swapaxes(0, 1)


def _forget_gate_bias(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Zeros, but 1 for the gates that forget (Jozefowicz et al. 2015)."""
    units = shape[0] // 4
    return jnp.zeros(shape, dtype).at[units : 2 * units].set(1.0)
