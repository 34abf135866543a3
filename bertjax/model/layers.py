"""Functions that layers compute, with explicit gradients where the derived ones cost more."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import tpu_kind


@jax.custom_vjp
def gelu(x: Array) -> Array:
    """Return x times the normal distribution function at x (Hendrycks and Gimpel 2016), by erf."""
    return x * _normal_cdf(x)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + jax.lax.erf(x * 0.5**0.5))


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    # The derivative is kept instead of x. Beside the matrix product that computes x it costs
    # nothing, while the backward pass would wait for it.
    cdf = _normal_cdf(x)
    return x * cdf, cdf + x * jnp.exp(-0.5 * x * x) * (2 * math.pi) ** -0.5


def _gelu_backward(derivative: Array, gradient: Array) -> tuple[Array]:
    return (gradient * derivative,)


gelu.defvjp(_gelu_forward, _gelu_backward)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    # Without the checkpoint the backward pass keeps three arrays of the widest size of a block.
    "gelu_tanh": jax.checkpoint(jax.nn.gelu),
    "relu": jax.nn.relu,
}


@jax.custom_vjp
def add_bias(x: Array, bias: Array) -> Array:
    """Return x [..., n] + bias [n]; the gradient of the bias is `sum_leading_axes`."""
    return x + bias


def _add_bias_forward(x: Array, bias: Array) -> tuple[Array, None]:
    return x + bias, None


def _add_bias_backward(_: None, gradient: Array) -> tuple[Array, Array]:
    return gradient, sum_leading_axes(gradient).astype(gradient.dtype)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def sum_leading_axes(x: Array) -> Array:
    """Return the sum of x [..., n] over all axes but the last, float32 [n]."""
    return (_sum_by_product if tpu_kind() else _sum)(x)


def _sum(x: Array) -> Array:
    return x.sum(axis=tuple(range(x.ndim - 1)), dtype=jnp.float32)


def _sum_by_product(x: Array) -> Array:
    # As a product with ones: a TPU's matrix units take a tenth of the time of its vector units. The
    # compiler would turn a single row of ones back into a sum. All eight rows cross the links, a
    # hundredth of the matrices' gradients.
    axes = tuple(range(x.ndim - 1))
    ones = jnp.ones((8, *x.shape[:-1]), x.dtype)
    contracted = ((tuple(axis + 1 for axis in axes), axes), ((), ()))
    sums = jax.lax.dot_general(
        ones,
        x,
        contracted,
        precision=jax.lax.Precision.HIGHEST,  # keeps float32
        preferred_element_type=jnp.float32,
    )
    return sums[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: Array, scale: Array, bias: Array, eps: float) -> Array:
    """Return (x - mean) / sqrt(variance + eps) * scale + bias over the last axis, float32.

    The explicit gradient reads `x` twice, the derived one more often.
    """
    return _layer_norm_forward(x, scale, bias, eps)[0]


def _layer_norm_forward(
    x: Array, scale: Array, bias: Array, eps: float
) -> tuple[Array, tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(wide).mean(axis=-1, keepdims=True) - jnp.square(mean)
    inverse = jax.lax.rsqrt(jnp.maximum(variance, 0) + eps)
    return (wide - mean) * inverse * scale + bias, (x, mean, inverse, scale)


def _layer_norm_backward(
    eps: float, residuals: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array]:
    x, mean, inverse, scale = residuals
    unit = (x.astype(jnp.float32) - mean) * inverse
    scaled = gradient * scale
    along = (scaled * unit).mean(axis=-1, keepdims=True)
    # inverse * (scaled - mean of scaled - unit * along), with three numbers per vector, not four.
    slope = jnp.square(inverse) * along
    start = mean * slope - inverse * scaled.mean(axis=-1, keepdims=True)
    d_x = inverse * scaled - slope * x.astype(jnp.float32) + start
    return d_x.astype(x.dtype), _sum(gradient * unit), _sum(gradient)


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


def gather(hidden: Array, positions: Array) -> Array:
    """Return the vectors of `hidden` [B, T, H] at `positions` int32 [B, N], [B, N, H]."""
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


@jax.custom_vjp
def embedding_lookup(table: Array, ids: Array) -> Array:
    """Return the rows of `table` [N, H] at int32 `ids` [...], [..., H], NaN for ids out of range.

    The gradient is summed in float32 whatever the dtype of the table. A frequent token occurs
    hundreds of times in a batch, which a sum in bfloat16 cannot count.
    """
    return jnp.take(table, ids, axis=0)  # indexing would clamp ids without notice


def _embedding_lookup_forward(table: Array, ids: Array) -> tuple[Array, tuple[Array, Array]]:
    return embedding_lookup(table, ids), (table, ids)


def _embedding_lookup_backward(inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, None]:
    table, ids = inputs
    sums = jnp.zeros(table.shape, jnp.float32).at[ids].add(gradient.astype(jnp.float32))
    return sums.astype(table.dtype), None


embedding_lookup.defvjp(_embedding_lookup_forward, _embedding_lookup_backward)
