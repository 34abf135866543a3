"""Attention as one TPU kernel, which keeps the weights [T, T] of a head in the core's own memory.

It computes the same as `plain`, forward and backward, one sequence at a time. The backward pass
recomputes the weights and the bits of dropout. Both cost less than writing the weights to HBM and
reading them back (Dao et al. 2022). A sequence of BERT's lengths fits as a whole, so the softmax
needs no second pass.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.mesh.device_mesh import split_unsupported_reason, tpu_kind
from bertjax.model.attention.fused import FusedKernel, fused_attention, product
from bertjax.model.attention.mask import visible_keys
from bertjax.model.dropout import NUM_PARTS, byte_shift, keep_bit, threefry_words

_LANES = 128  # of a TPU's registers
_DEFAULT_LENGTH = 512  # whose weights fit the memory that a kernel has by default, 16 MiB
_LONG_KERNEL_BYTES = 32 << 20  # memory of a longer kernel; its backward pass takes 18 MiB
_MIN_HEAD_SIZE = 64  # two heads fill the lanes
_MAX_BLOCK_BYTES = 1 << 18  # of each input in the core's memory


@dataclasses.dataclass(frozen=True)
class _Core:
    """A kind of TPU core that the kernel was compiled for.

    Attributes:
      matrix_width: width of its matrix units; narrower heads leave a part of them idle.
      matrix_speed: operations of its matrix units in the time of one of its vector units.
      max_length: tokens of the longest sequence whose weights fit its memory.
    """

    matrix_width: int
    matrix_speed: int
    max_length: int = 1024


_CORES = {
    "TPU v4": _Core(128, 32, _DEFAULT_LENGTH),
    "TPU v5": _Core(128, 32),
    "TPU v5 lite": _Core(128, 32),
    "TPU v6 lite": _Core(256, 128),
    "TPU7x": _Core(256, 128),
}

# Vector operations per weight, by the compiler's schedule of the kernel for v5e: for the softmax,
# for dropout (mostly its bits), and for the gradients of both.
_SOFTMAX_OPS, _DROPOUT_OPS, _GRADIENT_OPS = 16, 14, 10


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Return why the kernel cannot serve queries [B, T, N, D] on the current mesh, "" if it can."""
    batch_size, length, num_heads, head_size = query.shape
    core = _CORES.get(tpu_kind())
    if core is None:
        return f"{tpu_kind() or 'no TPU'}: the kernel is for {', '.join(_CORES)}"
    if reason := split_unsupported_reason(batch_size, num_heads):
        return reason
    if length % _LANES or length > core.max_length:
        return f"{length} tokens: the kernel takes multiples of {_LANES} up to {core.max_length}"
    if head_size % _MIN_HEAD_SIZE:
        return f"head size {head_size}: the kernel takes multiples of {_MIN_HEAD_SIZE}"
    heads = num_heads // jax.sharding.get_abstract_mesh().shape["tensor"]
    if not _heads_per_block(length, heads * head_size, head_size, query.dtype.itemsize):
        return f"{heads} heads of {head_size} and {length} tokens: no block fits the core's memory"
    return ""


def _heads_per_block(length: int, width: int, head_size: int, itemsize: int) -> int:
    """Return the most heads that fit into memory, in whole registers unless all fit; 0 for none."""
    heads = width // head_size
    fits = [
        n
        for n in range(1, heads + 1)
        if heads % n == 0 and length * n * head_size * itemsize <= _MAX_BLOCK_BYTES
    ]
    return max((n for n in fits if n == heads or n * head_size % _LANES == 0), default=0)


class _Kernel(FusedKernel):
    """Both passes over a sequence and a block of its heads."""

    def attend(self, shared: tuple[Array, ...], *inputs: Array) -> tuple[Array, Any]:
        """Return the output and what the backward pass reads; see `FusedKernel.attend`."""
        (out,) = self.run(self.forward, shared, inputs, outputs=1)
        return out, (shared, inputs)

    def gradients(self, residuals: Any, gradient: Array) -> list[Array]:
        """Return the gradients of query, key and value."""
        shared, inputs = residuals
        return self.run(self.backward, shared, (*inputs, gradient), outputs=3)

    def run(
        self, body: Any, shared: tuple[Array, ...], arrays: tuple[Array, ...], outputs: int
    ) -> list[Array]:
        """Run a pass over `arrays`, each [B, T, N * D]; the outputs have the same shape."""
        seeds, sequences, heads, example_ids = shared
        batch, length, width = arrays[0].shape
        heads_per_block = _heads_per_block(length, width, self.head_size, arrays[0].dtype.itemsize)
        block = heads_per_block * self.head_size
        wide = pl.BlockSpec((1, length, block), lambda sequence, part: (sequence, 0, part))
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
        keys = pl.BlockSpec((1, length, 1), lambda sequence, part: (sequence, 0, 0))
        queries = pl.BlockSpec((1, 1, length), lambda sequence, part: (sequence, 0, 0))
        return pl.pallas_call(
            body,
            grid=(batch, width // block),
            in_specs=[scalars, scalars, scalars, keys, queries, *[wide] * len(arrays)],
            out_specs=[wide] * outputs,
            out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * outputs,
            cost_estimate=self._cost(arrays, outputs),
            # Programs write separate blocks, so two cores can share either axis.
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"),
                vmem_limit_bytes=_LONG_KERNEL_BYTES if length > _DEFAULT_LENGTH else None,
            ),
            interpret=self.interpret,
        )(seeds, sequences, heads, example_ids[:, :, None], example_ids[:, None, :], *arrays)

    def _cost(self, arrays: tuple[Array, ...], outputs: int) -> pl.CostEstimate:
        """Return the cost of a pass, for the compiler's schedule and for `bertjax preflight`.

        A vector operation counts as the matrix operations that take as long.
        """
        core = _CORES.get(tpu_kind(), _CORES["TPU v5 lite"])
        batch, length, width = arrays[0].shape
        weights = batch * (width // self.head_size) * length**2
        products = 2 if outputs == 1 else 5
        vector = (
            _SOFTMAX_OPS
            + _DROPOUT_OPS * (self.drop_threshold > 0)
            + (0 if outputs == 1 else _GRADIENT_OPS)
        )
        matrix = 2 * products * max(self.head_size, core.matrix_width)
        return pl.CostEstimate(
            flops=weights * (matrix + vector * core.matrix_speed),
            transcendentals=weights,
            bytes_accessed=(len(arrays) + outputs) * arrays[0].nbytes,
        )

    # Weights are [T keys, T queries]: the softmax then sums across registers, which takes a
    # fraction of the time of sums within registers.

    def forward(
        self, seeds: Any, sequences: Any, heads: Any, k_ids: Any, q_ids: Any, *refs: Any
    ) -> None:
        """Compute the output of a block of heads."""
        query, key, value, out = refs
        mask = self._attention_mask(k_ids[0], q_ids[0])
        for head, part in self._head_slices(query):
            weights = _weights(self.scaled(query[0, :, part]), key[0, :, part], mask)
            if self.drop_threshold:
                keep = self._keep_mask(seeds, sequences, heads, head, len(mask))
                weights = jnp.where(keep, weights * self.keep_scale, 0.0)
            context = product(value[0, :, part], weights.astype(value.dtype), 0, 0)
            out[0, :, part] = context.T.astype(out.dtype)

    def backward(
        self, seeds: Any, sequences: Any, heads: Any, k_ids: Any, q_ids: Any, *refs: Any
    ) -> None:
        """Compute the gradients of a block of heads."""
        query, key, value, gradient, d_query, d_key, d_value = refs
        dtype = query.dtype
        mask = self._attention_mask(k_ids[0], q_ids[0])
        for head, part in self._head_slices(query):
            q, k, g = self.scaled(query[0, :, part]), key[0, :, part], gradient[0, :, part]
            weights = dropped = _weights(q, k, mask)
            d_weights = product(value[0, :, part], g, 1, 1)
            if self.drop_threshold:
                keep = self._keep_mask(seeds, sequences, heads, head, len(mask))
                factors = jnp.where(keep, self.keep_scale, 0.0)
                dropped, d_weights = weights * factors, d_weights * factors
            d_value[0, :, part] = product(dropped.astype(dtype), g, 1, 0).astype(dtype)
            delta = (d_weights * weights).sum(axis=0, keepdims=True)
            d_scores = (weights * (d_weights - delta)).astype(dtype)
            d_key[0, :, part] = product(d_scores, q, 1, 0).astype(dtype)
            d_query[0, :, part] = self.scaled(product(k, d_scores, 0, 0).T).astype(dtype)

    def _head_slices(self, query: Any) -> list[tuple[int, Any]]:
        """Return the index and the slice of the last axis of each head of the block."""
        return [
            (n, pl.ds(n * self.head_size, self.head_size))
            for n in range(query.shape[-1] // self.head_size)
        ]

    def _attention_mask(self, k_ids: Array, q_ids: Array) -> Array:
        def positions() -> tuple[Array, Array]:
            shape = (self.length, self.length)
            key, query = (jax.lax.broadcasted_iota(jnp.int32, shape, i) for i in (0, 1))
            return query, key

        return visible_keys(self.mask_kind, q_ids, k_ids, positions)

    def _keep_mask(self, seeds: Any, sequences: Any, heads: Any, head: int, length: int) -> Array:
        """Return the weights to keep, bool [T, T], as `dropout.keep_mask` of [B, N, T, T]."""
        part = (length // NUM_PARTS, length)
        heads_per_block = heads.shape[0] // pl.num_programs(1)
        sequence = sequences[pl.program_id(0)].astype(jnp.uint32)
        number = heads[pl.program_id(1) * heads_per_block + head].astype(jnp.uint32)
        key, query = (jax.lax.broadcasted_iota(jnp.uint32, part, i) for i in (0, 1))
        element_index = (number * part[0] + key) * part[1] + query
        words = threefry_words(seeds, jnp.full(part, sequence), element_index)
        parts = [words[part // 4] << byte_shift(part) for part in range(NUM_PARTS)]
        return keep_bit(jnp.concatenate(parts), self.drop_threshold)


attention = functools.partial(fused_attention, _Kernel)


def _weights(query: Array, key: Array, mask: Array) -> Array:
    scores = jnp.where(mask, product(key, query, 1, 1), jnp.finfo(jnp.float32).min)
    powers = jnp.exp(scores - scores.max(axis=0, keepdims=True))
    return powers * (1 / powers.sum(axis=0, keepdims=True))
