"""Fused attention on a mesh: what the kernels for CPUs, TPUs and GPUs share."""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import shard_map_over_batch_and_heads
from bertjax.model.attention.mask import MaskKind
from bertjax.model.dropout import inverse_keep_prob, threshold_and_seeds


@dataclasses.dataclass(frozen=True)
class FusedKernel(abc.ABC):
    """Attention of a shard, forward and backward.

    Attributes:
      length: T.
      head_size: D.
      drop_threshold: of `dropout.byte_threshold`; 0 for no dropout.
      mask_kind: as in `dispatch.attention`.
      interpret: run a Pallas kernel on any device, slowly.
    """

    length: int
    head_size: int
    drop_threshold: int
    mask_kind: MaskKind
    interpret: bool = False

    @abc.abstractmethod
    def attend(self, shared: tuple[Array, ...], *inputs: Array) -> tuple[Array, Any]:
        """Return the output [b, T, n * D], and the residuals for `gradients`.

        Args:
          shared: seeds, `sequences` [b], `heads` [n] and example_ids [b, T]. The second and the
            third are indices in the whole batch and model.
          *inputs: query, key and value [b, T, n * D].
        """

    @abc.abstractmethod
    def gradients(self, residuals: Any, gradient: Array) -> Any:
        """Return the gradients of query, key and value."""

    @property
    def keep_scale(self) -> float:
        """Factor of the weights that dropout keeps."""
        return inverse_keep_prob(self.drop_threshold)

    def scaled(self, x: Array) -> Array:
        """Return x / sqrt(D)."""
        return x * self.head_size**-0.5


def fused_attention(
    kernel_class: type[FusedKernel],
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    mask_kind: MaskKind = "bidirectional",
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    interpret: bool = False,
) -> Array:
    """Compute `bertjax.model.attention.dispatch.attention` with a kernel on each shard.

    Args:
      kernel_class: the kernel.
      query: [B, T, N, D].
      key: [B, T, N, D].
      value: [B, T, N, D].
      example_ids: int32 [B, T], as in `dispatch.attention`.
      mask_kind: as in `dispatch.attention`.
      dropout_rate: as in `dispatch.attention`.
      dropout_key: as in `dispatch.attention`.
      interpret: as in `FusedKernel`.
    """
    drop_threshold, seeds = threshold_and_seeds(dropout_rate, dropout_key)
    _, length, _, head_size = query.shape
    kernel = kernel_class(length, head_size, drop_threshold, mask_kind, interpret)

    @jax.custom_vjp
    def attention(shared: tuple[Array, ...], *inputs: Array) -> Array:
        return kernel.attend(shared, *inputs)[0]

    def backward(residuals: Any, gradient: Array) -> tuple[Any, ...]:
        return (None, *kernel.gradients(residuals, gradient))

    attention.defvjp(kernel.attend, backward)
    return shard_map_over_batch_and_heads(attention, seeds, example_ids, (query, key, value))


def product(a: Array, b: Array, a_axis: int = 1, b_axis: int = 0) -> Array:
    """Return the product of two matrices over an axis of each, in float32."""
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
