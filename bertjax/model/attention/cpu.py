"""Attention for CPUs, a row of the batch at a time: its weights [N, T, T] stay in the caches.

A batch's weights are a hundred megabytes, which a CPU would write and read several times. Of a long
row the forward pass takes some of the heads at a time. Of a row only which weights were dropped and
what the softmax divided by are kept for the backward pass, which computes the weights again.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import shard_map_over_batch_and_heads, split_unsupported_reason
from bertjax.model.attention.plain import attention_mask
from bertjax.model.dropout import inverse_keep_prob, keep_mask, threshold_and_seeds


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Why a mesh in the context keeps queries [B, T, N, D] from going this way; "" if none does."""
    rows, _, heads, _ = query.shape
    return "" if jax.sharding.get_abstract_mesh().empty else split_unsupported_reason(rows, heads)


def attention(
    query: Array,
    key: Array,
    value: Array,
    example_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Array:
    """As `bertjax.model.attention.dispatch.attention`, where `unsupported_reason` has no reason."""
    drop_threshold, seeds = threshold_and_seeds(dropout_rate, dropout_key)
    by_row = functools.partial(
        _attention, _SequenceAttention(query.shape[-1], drop_threshold, causal)
    )
    return shard_map_over_batch_and_heads(by_row, seeds, example_ids, (query, key, value))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    row: "_SequenceAttention", shared: tuple[Array, ...], query: Array, key: Array, value: Array
) -> Array:
    return _attention_forward(row, shared, query, key, value)[0]


def _attention_forward(
    row: "_SequenceAttention", shared: tuple[Array, ...], *inputs: Array
) -> tuple[Array, tuple[Any, ...]]:
    seeds, rows, heads, example_ids = shared
    # Both for the whole batch, though they are wide: a loop would make them on one core, and if
    # they were made where they are used, no exponential there would be vectorised.
    mask, keep = row.mask(example_ids), None
    if row.drop_threshold:
        shape = (len(rows), len(heads), *mask.shape[1:])
        keep = keep_mask(seeds, row.drop_threshold, shape, (rows[0], heads[0]), transposed=True)
    out, top, inverse = jax.lax.map(lambda each: row.forward(*each), (mask, keep, *inputs))
    return out, (mask, keep, *inputs, out, top, inverse)


def _attention_backward(
    row: "_SequenceAttention", kept: tuple[Any, ...], gradient: Array
) -> tuple[Any, ...]:
    return (None, *jax.lax.map(lambda each: row.backward(*each), (*kept, gradient)))


_attention.defvjp(_attention_forward, _attention_backward)

_MAX_SCORES = 2**20  # of a forward pass at once


@dataclasses.dataclass(frozen=True)
class _SequenceAttention:
    """Both passes over a row: arrays [T, N * D], mask [T, T], what is kept bool [N, T, T].

    Attributes:
      size: of a head, D.
      limit: of dropout's bits; 0 for none.
    """

    size: int
    drop_threshold: int
    causal: bool

    def mask(self, example_ids: Array) -> Array:
        """What is added to the scores: float32 [B, T, T]. A sum fuses where a choice does not."""
        return jnp.where(attention_mask(example_ids, self.causal), 0.0, jnp.finfo(jnp.float32).min)

    def forward(
        self, mask: Array, keep: Array | None, query: Array, key: Array, value: Array
    ) -> tuple[Array, Array, Array]:
        """The output; of the scores their maximum and 1 / the sum of their powers [N, T, 1]."""

        def attend(
            keep: Array | None, query: Array, key: Array, value: Array
        ) -> tuple[Array, Array, Array]:
            scores = _product("nqd,nkd->nqk", query, key) + mask
            top = scores.max(axis=-1, keepdims=True)
            powers = jnp.exp(scores - top)
            inverse = 1 / powers.sum(axis=-1, keepdims=True)
            if keep is not None:
                powers = powers * jnp.where(keep, inverse_keep_prob(self.drop_threshold), 0.0)
            mixed = _product("nqk,nkd->nqd", powers.astype(value.dtype), value)
            return mixed * inverse, top, inverse

        heads = (self._split_heads(x) for x in (self._scaled(query), key, value))
        out, top, inverse = _map_head_groups(attend, len(query) ** 2, (keep, *heads))
        return self._merge_heads(out).astype(value.dtype), top, inverse

    def backward(
        self,
        mask: Array,
        keep: Array | None,
        query: Array,
        key: Array,
        value: Array,
        out: Array,
        top: Array,
        inverse: Array,
        gradient: Array,
    ) -> tuple[Array, Array, Array]:
        dtype = query.dtype
        weights = dropped = jnp.exp(self._scores(mask, query, key) - top) * inverse
        d_weights = _product("nqd,nkd->nqk", self._split_heads(gradient), self._split_heads(value))
        if keep is not None:
            factors = jnp.where(keep, inverse_keep_prob(self.drop_threshold), 0.0)
            dropped, d_weights = weights * factors, d_weights * factors
        # The sum of d_weights * weights over the keys, as it follows from what came of them.
        both = gradient.astype(jnp.float32) * out.astype(jnp.float32)
        along = self._split_heads(both).sum(axis=-1, keepdims=True)
        d_scores = (weights * (d_weights - along)).astype(dtype)
        d_query = _product("nqk,nkd->nqd", d_scores, self._split_heads(key)) * self.size**-0.5
        # The narrow matrix first and upright: three times as fast as the wide one transposed.
        d_key = _product("ndq,nqk->ndk", self._transposed_heads(self._scaled(query)), d_scores)
        d_value = _product("ndq,nqk->ndk", self._transposed_heads(gradient), dropped.astype(dtype))
        found = (
            self._merge_heads(x) for x in (d_query, d_key.swapaxes(1, 2), d_value.swapaxes(1, 2))
        )
        d_query, d_key, d_value = (x.astype(dtype) for x in found)
        return d_query, d_key, d_value

    def _scores(self, mask: Array, query: Array, key: Array) -> Array:
        """[N, T, T], masked."""
        return (
            _product("nqd,nkd->nqk", self._split_heads(self._scaled(query)), self._split_heads(key))
            + mask
        )

    def _scaled(self, query: Array) -> Array:
        return query * self.size**-0.5

    def _split_heads(self, x: Array) -> Array:
        """[T, N * D] as [N, T, D]."""
        return x.reshape(len(x), -1, self.size).swapaxes(0, 1)

    def _transposed_heads(self, x: Array) -> Array:
        """[T, N * D] as [N, D, T]."""
        return x.reshape(len(x), -1, self.size).transpose(1, 2, 0)

    def _merge_heads(self, x: Array) -> Array:
        """[N, T, D] as [T, N * D]."""
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _map_head_groups(function: Any, scores: int, arrays: tuple[Any, ...]) -> Any:
    """function(*arrays), arrays [N, ...], of as many heads at once as a cache has room for."""
    count = len(arrays[-1])
    size = max(
        size
        for size in range(1, count + 1)
        if count % size == 0 and (size == 1 or size * scores <= _MAX_SCORES)
    )
    if size == count:
        return function(*arrays)
    groups = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), arrays)
    found = jax.lax.map(lambda group: function(*group), groups)
    return jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), found)


def _product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)
