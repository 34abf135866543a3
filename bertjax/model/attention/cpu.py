"""Attention for CPUs, one sequence at a time, so that its weights [N, T, T] stay in the caches.

The weights of a batch take a hundred megabytes, which a CPU would write and read several times. For
long sequences the forward pass computes some heads at a time. The backward pass recomputes the
weights. It keeps only the dropout mask and the denominators of the softmax.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.mesh.device_mesh import split_unsupported_reason
from bertjax.model.attention.fused import FusedKernel, fused_attention
from bertjax.model.attention.plain import attention_mask
from bertjax.model.dropout import keep_mask

_MAX_SCORES = 2**20  # computed at once in a forward pass


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Return why the mesh cannot split queries [B, T, N, D], "" if it can or without a mesh."""
    batch_size, _, heads, _ = query.shape
    if jax.sharding.get_abstract_mesh().empty:
        return ""
    return split_unsupported_reason(batch_size, heads)


class _SequenceAttention(FusedKernel):
    """Both passes over a sequence: arrays [T, N * D], mask [T, T], dropout mask bool [N, T, T]."""

    def attend(self, shared: tuple[Array, ...], *inputs: Array) -> tuple[Array, Any]:
        """Return the output and what the backward pass reads; see `FusedKernel.attend`."""
        seeds, sequences, heads, example_ids = shared
        # Both for the whole batch, though they are large: a loop would compute them on one core,
        # and computing them where they are used would keep the exponentials from being vectorized.
        mask, keep = self.mask(example_ids), None
        if self.drop_threshold:
            shape = (len(sequences), len(heads), *mask.shape[1:])
            start = sequences[0], heads[0]
            keep = keep_mask(seeds, self.drop_threshold, shape, start, transposed=True)
        out, *sums = jax.lax.map(lambda arrays: self.forward(*arrays), (mask, keep, *inputs))
        return out, (mask, keep, *inputs, out, *sums)

    def gradients(self, residuals: Any, gradient: Array) -> Any:
        """Return the gradients of query, key and value."""
        return jax.lax.map(lambda arrays: self.backward(*arrays), (*residuals, gradient))

    def mask(self, example_ids: Array) -> Array:
        """Return the mask as summand of scores, float32 [B, T, T]: sums fuse, selections do not."""
        return jnp.where(
            attention_mask(example_ids, self.mask_kind), 0.0, jnp.finfo(jnp.float32).min
        )

    def forward(
        self, mask: Array, keep: Array | None, query: Array, key: Array, value: Array
    ) -> tuple[Array, Array, Array]:
        """Return the output, the maxima of the scores and the inverse denominators [N, T, 1]."""

        def attend_heads(
            keep: Array | None, query: Array, key: Array, value: Array
        ) -> tuple[Array, Array, Array]:
            scores = _product("nqd,nkd->nqk", query, key) + mask
            maximum = scores.max(axis=-1, keepdims=True)
            powers = jnp.exp(scores - maximum)
            inverse = 1 / powers.sum(axis=-1, keepdims=True)
            if keep is not None:
                powers = powers * jnp.where(keep, self.keep_scale, 0.0)
            context = _product("nqk,nkd->nqd", powers.astype(value.dtype), value)
            return context * inverse, maximum, inverse

        heads = (self._split_heads(x) for x in (self.scaled(query), key, value))
        out, maximum, inverse = _map_head_groups(attend_heads, len(query) ** 2, (keep, *heads))
        return self._merge_heads(out).astype(value.dtype), maximum, inverse

    def backward(
        self,
        mask: Array,
        keep: Array | None,
        query: Array,
        key: Array,
        value: Array,
        out: Array,
        maximum: Array,
        inverse: Array,
        gradient: Array,
    ) -> tuple[Array, ...]:
        """Return the gradients of query, key and value."""
        dtype = query.dtype
        heads = self._split_heads(self.scaled(query)), self._split_heads(key)
        scores = _product("nqd,nkd->nqk", *heads) + mask
        weights = dropped = jnp.exp(scores - maximum) * inverse
        d_weights = _product("nqd,nkd->nqk", self._split_heads(gradient), self._split_heads(value))
        if keep is not None:
            factors = jnp.where(keep, self.keep_scale, 0.0)
            dropped, d_weights = weights * factors, d_weights * factors
        # The sum of d_weights * weights over the keys, computed from the output.
        products = gradient.astype(jnp.float32) * out.astype(jnp.float32)
        delta = self._split_heads(products).sum(axis=-1, keepdims=True)
        d_scores = (weights * (d_weights - delta)).astype(dtype)
        d_query = self.scaled(_product("nqk,nkd->nqd", d_scores, self._split_heads(key)))
        # The narrow matrix first, not transposed: three times as fast as transposing the wide one.
        d_key = _product("ndq,nqk->ndk", self._transposed_heads(self.scaled(query)), d_scores)
        d_value = _product("ndq,nqk->ndk", self._transposed_heads(gradient), dropped.astype(dtype))
        d_key, d_value = d_key.swapaxes(1, 2), d_value.swapaxes(1, 2)
        return tuple(self._merge_heads(x).astype(dtype) for x in (d_query, d_key, d_value))

    def _split_heads(self, x: Array) -> Array:
        """Return [T, N * D] as [N, T, D]."""
        return x.reshape(len(x), -1, self.head_size).swapaxes(0, 1)

    def _transposed_heads(self, x: Array) -> Array:
        """Return [T, N * D] as [N, D, T]."""
        return x.reshape(len(x), -1, self.head_size).transpose(1, 2, 0)

    def _merge_heads(self, x: Array) -> Array:
        """Return [N, T, D] as [T, N * D]."""
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)


attention = functools.partial(fused_attention, _SequenceAttention)


def _map_head_groups(function: Any, scores_per_head: int, arrays: tuple[Any, ...]) -> Any:
    """Return function(*arrays) for arrays [N, ...], computed for as many heads as a cache holds."""
    num_heads = len(arrays[-1])
    group_size = max(
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and (size == 1 or size * scores_per_head <= _MAX_SCORES)
    )
    if group_size == num_heads:
        return function(*arrays)
    groups = jax.tree.map(lambda x: x.reshape(-1, group_size, *x.shape[1:]), arrays)
    outputs = jax.lax.map(lambda group: function(*group), groups)
    return jax.tree.map(lambda x: x.reshape(num_heads, *x.shape[2:]), outputs)


def _product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)
