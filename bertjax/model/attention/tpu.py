"""Attention as one TPU kernel: the weights [T, T] of a head never leave the core's own memory.

It computes what `plain` does, forward and backward, a row of the batch at a time. The backward pass
computes the weights again from query and key, and draws dropout's bits again: both
cost less than writing the weights to the chip's memory and reading them back (Dao et al. 2022).
Rows of BERT's lengths fit as a whole, so the softmax needs no second pass.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.mesh.device_mesh import (
    shard_map_over_batch_and_heads,
    split_unsupported_reason,
    tpu_kind,
)
from bertjax.model.dropout import (
    NUM_PARTS,
    byte_shift,
    inverse_keep_prob,
    keep_bit,
    threefry_words,
    threshold_and_seeds,
)

_LANES = 128  # elements side by side in a TPU's registers
_MAX_LENGTH = 512
_MIN_HEAD_SIZE = 64  # elements of a head, of which two then fill the lanes
_MAX_BLOCK_BYTES = 1 << 18  # bytes of each input that the core holds at a time


@dataclasses.dataclass(frozen=True)
class _Core:
    """A kind of TPU core that the kernel was compiled for.

    Attributes:
      width: of its matrix units; heads that are narrower leave the rest of them idle.
      matrix_speed: operations of its matrix units in the time of one of its vector units.
    """

    width: int
    matrix_speed: int


_CORES = {
    "TPU v4": _Core(128, 32),
    "TPU v5": _Core(128, 32),
    "TPU v5 lite": _Core(128, 32),
    "TPU v6 lite": _Core(256, 128),
}

# Vector operations for a weight, by the compiler's schedule of the kernel for v5e: of the softmax,
# of dropout (its bits, for the most part), and of the gradients of both.
_SOFTMAX_OPS, _DROPOUT_OPS, _GRADIENT_OPS = 16, 14, 10


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Why the kernel does not take queries [B, T, N, D] on the context's mesh; "" if it does."""
    rows, length, heads, head_size = query.shape
    if tpu_kind() not in _CORES:
        return f"{tpu_kind() or 'no TPU'}: the kernel is for {', '.join(_CORES)}"
    if unsplit := split_unsupported_reason(rows, heads):
        return unsplit
    if length % _LANES or length > _MAX_LENGTH:
        return (
            f"rows of {length} pieces: the kernel takes multiples of {_LANES} up to {_MAX_LENGTH}"
        )
    if head_size % _MIN_HEAD_SIZE:
        return f"heads of {head_size}: the kernel takes multiples of {_MIN_HEAD_SIZE}"
    own = heads // jax.sharding.get_abstract_mesh().shape["tensor"]
    if not _heads_per_block(length, own * head_size, head_size, query.dtype.itemsize):
        return f"{own} heads of {head_size} and {length} pieces: no share of them fits the core's memory"
    return ""


def _heads_per_block(length: int, width: int, head_size: int, itemsize: int) -> int:
    """As many of the heads as there is room for, in whole registers if not all; 0 for none."""
    heads = width // head_size
    fits = [
        n
        for n in range(1, heads + 1)
        if heads % n == 0 and length * n * head_size * itemsize <= _MAX_BLOCK_BYTES
    ]
    return max((n for n in fits if n == heads or n * head_size % _LANES == 0), default=0)


def attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    interpret: bool = False,
) -> Array:
    """As `bertjax.model.attention.dispatch.attention`, where `unsupported_reason` has no reason.

    `interpret` runs the kernel on any device, slowly, and without a mesh too.
    """
    drop_threshold, seeds = threshold_and_seeds(dropout_rate, dropout_key)
    kernel = functools.partial(
        _attention, _Kernel(query.shape[-1], drop_threshold, causal, interpret)
    )
    return shard_map_over_batch_and_heads(kernel, seeds, example_ids, (query, key, value))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    kernel: "_Kernel", shared: tuple[Array, ...], query: Array, key: Array, value: Array
) -> Array:
    return kernel.run(kernel.forward, shared, (query, key, value), outputs=1)[0]


def _attention_forward(
    kernel: "_Kernel", shared: tuple[Array, ...], *inputs: Array
) -> tuple[Array, Any]:
    return _attention(kernel, shared, *inputs), (shared, inputs)


def _attention_backward(kernel: "_Kernel", kept: Any, gradient: Array) -> tuple[Any, ...]:
    shared, inputs = kept
    return (None, *kernel.run(kernel.backward, shared, (*inputs, gradient), outputs=3))


_attention.defvjp(_attention_forward, _attention_backward)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """Both passes over a row and a block of its heads.

    Attributes:
      size: of a head, D.
      limit: of dropout's bits; 0 for none.
    """

    head_size: int
    drop_threshold: int
    causal: bool
    interpret: bool

    def run(
        self, body: Any, shared: tuple[Array, ...], arrays: tuple[Array, ...], outputs: int
    ) -> list[Array]:
        """Runs a pass over the whole of `arrays`, each [B, T, N * D]; outputs are like them."""
        seeds, rows, heads, example_ids = shared
        batch, length, width = arrays[0].shape
        together = _heads_per_block(length, width, self.head_size, arrays[0].dtype.itemsize)
        block = together * self.head_size
        wide = pl.BlockSpec((1, length, block), lambda row, part: (row, 0, part))
        scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
        keys = pl.BlockSpec((1, length, 1), lambda row, part: (row, 0, 0))
        queries = pl.BlockSpec((1, 1, length), lambda row, part: (row, 0, 0))
        return pl.pallas_call(
            body,
            grid=(batch, width // block),
            in_specs=[scalars, scalars, scalars, keys, queries, *[wide] * len(arrays)],
            out_specs=[wide] * outputs,
            out_shape=[jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * outputs,
            cost_estimate=self._cost(arrays, outputs),
            # A core of two may take either: what each turn writes is its own.
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
            interpret=self.interpret,
        )(seeds, rows, heads, example_ids[:, :, None], example_ids[:, None, :], *arrays)

    def _cost(self, arrays: tuple[Array, ...], outputs: int) -> pl.CostEstimate:
        """What a pass computes and moves, for the compiler's schedule and for `bertjax preflight`.

        Vector operations are counted as the operations of a matrix unit that take as long.
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
        matrix = 2 * products * max(self.head_size, core.width)
        return pl.CostEstimate(
            flops=weights * (matrix + vector * core.matrix_speed),
            transcendentals=weights,
            bytes_accessed=(len(arrays) + outputs) * arrays[0].nbytes,
        )

    # Weights lie with the keys first, [T keys, T queries]: the softmax then sums over rows of
    # registers, which takes a fraction of what sums within registers take.

    def forward(
        self, seeds: Any, rows: Any, heads: Any, k_ids: Any, q_ids: Any, *refs: Any
    ) -> None:
        query, key, value, out = refs
        seen = self._attention_mask(k_ids[0], q_ids[0])
        for head, part in self._head_slices(query):
            weights = _weights(self._scaled(query[0, :, part]), key[0, :, part], seen)
            if self.drop_threshold:
                keep = self._keep_mask(seeds, rows, heads, head, len(seen))
                weights = jnp.where(keep, weights * inverse_keep_prob(self.drop_threshold), 0.0)
            mixed = _product(value[0, :, part], weights.astype(value.dtype), 0, 0)
            out[0, :, part] = mixed.T.astype(out.dtype)

    def backward(
        self, seeds: Any, rows: Any, heads: Any, k_ids: Any, q_ids: Any, *refs: Any
    ) -> None:
        query, key, value, gradient, d_query, d_key, d_value = refs
        dtype = query.dtype
        seen = self._attention_mask(k_ids[0], q_ids[0])
        for head, part in self._head_slices(query):
            q, k, g = self._scaled(query[0, :, part]), key[0, :, part], gradient[0, :, part]
            weights = dropped = _weights(q, k, seen)
            d_weights = _product(value[0, :, part], g, 1, 1)
            if self.drop_threshold:
                keep = self._keep_mask(seeds, rows, heads, head, len(seen))
                factors = jnp.where(keep, inverse_keep_prob(self.drop_threshold), 0.0)
                dropped, d_weights = weights * factors, d_weights * factors
            d_value[0, :, part] = _product(dropped.astype(dtype), g, 1, 0).astype(dtype)
            mean = (d_weights * weights).sum(axis=0, keepdims=True)
            d_scores = (weights * (d_weights - mean)).astype(dtype)
            d_key[0, :, part] = _product(d_scores, q, 1, 0).astype(dtype)
            d_query[0, :, part] = self._scaled(_product(k, d_scores, 0, 0).T).astype(dtype)

    def _head_slices(self, query: Any) -> list[tuple[int, Any]]:
        """For each head of the block its number there, and its part of the last axis."""
        return [
            (n, pl.ds(n * self.head_size, self.head_size))
            for n in range(query.shape[-1] // self.head_size)
        ]

    def _scaled(self, query: Array) -> Array:
        return query * self.head_size**-0.5

    def _attention_mask(self, k_ids: Array, q_ids: Array) -> Array:
        seen = k_ids == q_ids
        if self.causal:
            key, query = (jax.lax.broadcasted_iota(jnp.int32, seen.shape, i) for i in (0, 1))
            seen &= query >= key
        return seen

    def _keep_mask(self, seeds: Any, rows: Any, heads: Any, head: int, length: int) -> Array:
        """Which weights [T, T] survive, as `bertjax.model.dropout` says of [B, N, T, T]."""
        part = (length // NUM_PARTS, length)
        together = heads.shape[0] // pl.num_programs(1)
        row = rows[pl.program_id(0)].astype(jnp.uint32)
        number = heads[pl.program_id(1) * together + head].astype(jnp.uint32)
        key, query = (jax.lax.broadcasted_iota(jnp.uint32, part, i) for i in (0, 1))
        place = (number * part[0] + key) * part[1] + query
        words = threefry_words(seeds, jnp.full(part, row), place)
        parts = [words[part // 4] << byte_shift(part) for part in range(NUM_PARTS)]
        return keep_bit(jnp.concatenate(parts), self.drop_threshold)


def _weights(query: Array, key: Array, seen: Array) -> Array:
    scores = jnp.where(seen, _product(key, query, 1, 1), jnp.finfo(jnp.float32).min)
    powers = jnp.exp(scores - scores.max(axis=0, keepdims=True))
    return powers * (1 / powers.sum(axis=0, keepdims=True))


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """The matrix product over an axis of each, in float32."""
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
