"""Attention as kernels for NVIDIA GPUs: the weights [T, T] of a head are never written to memory.

They compute what `plain` does, block by block with a running softmax (Dao et al. 2022). The
backward pass computes the weights again, and draws dropout's bits again: one kernel has the
gradient of the queries, another those of keys and values, so that each sum has one owner and one
order, and the same bits come out every time.

Two words of dropout serve eight keys, an eighth of the row apart: a block of keys is eight short
blocks, one in each eighth, or four of them where eight are more than registers hold.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bertjax.mesh.device_mesh import (
    gpu_kind,
    shard_map_over_batch_and_heads,
    split_unsupported_reason,
)
from bertjax.model.dropout import (
    NUM_PARTS,
    byte_shift,
    inverse_keep_prob,
    keep_bit,
    threefry_words,
    threshold_and_seeds,
)

_HEAD_SIZES = (32, 64, 128)  # of heads
_MIN_BLOCK = 16  # of a block, for tensor cores
_NUM_STAGES = 3  # of loads that are under way at a time
# Queries of a block, keys in each of its parts, warps, by the size of heads: the largest that
# leave no register of a bfloat16 kernel to memory on compute capability 8.0 and 9.0.
_BLOCKS = {
    "forward": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
    "d_query": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 4)},
    "d_key_value": {32: (32, 16, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
}
_MASKED_SCORE = float(jnp.finfo(jnp.float32).min)


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Why the kernels do not take queries [B, T, N, D] on the context's mesh; "" if they do."""
    rows, _, heads, head_size = query.shape
    if not gpu_kind().startswith("NVIDIA"):  # older ones are called Tesla
        return f"{gpu_kind() or 'no GPU'}: the kernels are for NVIDIA's since A100"
    if unsplit := split_unsupported_reason(rows, heads):
        return unsplit
    if head_size not in _HEAD_SIZES:
        return f"heads of {head_size}: the kernels take {', '.join(map(str, _HEAD_SIZES))}"
    return ""


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

    `interpret` runs the kernels on any device, slowly, and without a mesh too.
    """
    drop_threshold, seeds = threshold_and_seeds(dropout_rate, dropout_key)
    kernels = _Kernels(query.shape[1], query.shape[-1], drop_threshold, causal, interpret)
    return shard_map_over_batch_and_heads(
        functools.partial(_attention, kernels), seeds, example_ids, (query, key, value)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    kernels: "_Kernels", shared: tuple[Array, ...], query: Array, key: Array, value: Array
) -> Array:
    return kernels.forward(shared, query, key, value)[0]


def _attention_forward(
    kernels: "_Kernels", shared: tuple[Array, ...], *inputs: Array
) -> tuple[Array, Any]:
    out, logsumexp = kernels.forward(shared, *inputs)
    return out, (shared, inputs, out, logsumexp)


def _attention_backward(kernels: "_Kernels", kept: Any, gradient: Array) -> tuple[Any, ...]:
    shared, inputs, out, logsumexp = kept
    return (None, *kernels.backward(shared, inputs, out, logsumexp, gradient))


_attention.defvjp(_attention_forward, _attention_backward)


@dataclasses.dataclass(frozen=True)
class _Kernels:
    """The kernels for rows of `length` pieces and heads of `head_size`.

    Attributes:
      limit: of dropout's bits; 0 for none.
      queries, keys, warps: of `_BLOCKS`.
    """

    length: int
    head_size: int
    drop_threshold: int
    causal: bool
    interpret: bool
    queries: int = 0
    keys: int = 0
    warps: int = 0

    @property
    def part(self) -> int:
        """Keys of a part of the row."""
        return -(-self.length // NUM_PARTS)

    def _with_block_sizes(self, name: str) -> "_Kernels":
        """With the blocks of one of the kernels, no longer than the rows need."""
        queries, keys, warps = _BLOCKS[name][self.head_size]
        return dataclasses.replace(
            self,
            queries=max(_MIN_BLOCK, min(queries, pl.next_power_of_2(self.length))),
            keys=max(_MIN_BLOCK, min(keys, pl.next_power_of_2(self.part))),
            warps=warps,
        )

    def forward(self, shared: tuple[Array, ...], *arrays: Array) -> tuple[Array, Array]:
        """The output [B, T, N * D], and the logarithm of each softmax's sum [B, N, T]."""
        kernel = self._with_block_sizes("forward")
        blocks = pl.cdiv(self.length, kernel.queries)
        return kernel._call_kernel(
            kernel._forward, blocks, shared, arrays, (), num_array_outputs=1, num_sum_outputs=1
        )

    def backward(
        self,
        shared: tuple[Array, ...],
        inputs: tuple[Array, ...],
        out: Array,
        logsumexp: Array,
        gradient: Array,
    ) -> tuple[Array, ...]:
        """The gradients of query, key and value."""
        by_head = (*out.shape[:2], -1, self.head_size)
        products = out.astype(jnp.float32) * gradient.astype(jnp.float32)
        mean = products.reshape(by_head).sum(-1).swapaxes(1, 2)
        given = shared, (*inputs, gradient), (logsumexp, mean)
        kernel = self._with_block_sizes("d_query")
        blocks = pl.cdiv(self.length, kernel.queries)
        (d_query,) = kernel._call_kernel(kernel._d_query, blocks, *given, num_array_outputs=1)
        kernel = self._with_block_sizes("d_key_value")
        blocks = 2 * pl.cdiv(self.part, kernel.keys)
        return d_query, *kernel._call_kernel(
            kernel._d_key_value, blocks, *given, num_array_outputs=2
        )

    def _call_kernel(
        self,
        body: Any,
        blocks: int,
        shared: tuple[Array, ...],
        arrays: tuple[Array, ...],
        sums: tuple[Array, ...],
        num_array_outputs: int,
        num_sum_outputs: int = 0,
    ) -> Any:
        """Runs a kernel for each block of each head of each row.

        Args:
          arrays: [B, T, N * D] each, as are the first outputs, of which there are `num_array_outputs`.
          sums: float32 [B, N, T] each, as are the other outputs.
        """
        seeds, rows, heads, example_ids = shared
        of_head = pl.BlockSpec(
            (None, self.length, self.head_size), lambda i, row, head: (row, 0, head)
        )
        of_sums = pl.BlockSpec((None, None, self.length), lambda i, row, head: (row, head, 0))
        like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
        shape = (len(rows), len(heads), self.length)
        return pl.pallas_call(
            body,
            grid=(blocks, len(rows), len(heads)),
            in_specs=[
                pl.BlockSpec((2,), lambda i, row, head: (0,)),
                pl.BlockSpec((1,), lambda i, row, head: (row,)),
                pl.BlockSpec((1,), lambda i, row, head: (head,)),
                pl.BlockSpec((None, self.length), lambda i, row, head: (row, 0)),
                *[of_head] * len(arrays),
                *[of_sums] * len(sums),
            ],
            out_specs=[of_head] * num_array_outputs + [of_sums] * num_sum_outputs,
            out_shape=[like] * num_array_outputs
            + [jax.ShapeDtypeStruct(shape, jnp.float32)] * num_sum_outputs,
            compiler_params=triton.CompilerParams(num_warps=self.warps, num_stages=_NUM_STAGES),
            interpret=self.interpret,
        )(seeds, rows, heads, example_ids, *arrays, *sums)

    # Weights lie with the queries first, [queries, keys] of a block.

    def _forward(self, seeds: Any, row: Any, head: Any, example_ids: Any, *refs: Any) -> None:
        query, key, value, out, logsumexp = refs
        q_place = self._block_positions(pl.program_id(0) * self.queries, self.queries)
        q = _load(query, q_place)
        ids = _load(example_ids, q_place)
        draw = self._dropout_words(seeds, row, head, q_place)

        def block(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            sums, largest, mixed = carry
            words = draw(number)
            for part in range(NUM_PARTS):
                k_place = self._key_positions(number, part)
                scores = self._scores(q, _load(key, k_place), ids, example_ids, q_place, k_place)
                before, largest = largest, jnp.maximum(largest, scores.max(axis=1))
                weights = jnp.exp(scores - largest[:, None])
                shrunk = jnp.exp(before - largest)
                sums = sums * shrunk + weights.sum(axis=1)
                if self.drop_threshold:
                    weights = jnp.where(self._keep_mask(words[part // 4], part), weights, 0.0)
                product = _product(weights.astype(value.dtype), _load(value, k_place))
                mixed = mixed * shrunk[:, None] + product
            return sums, largest, mixed

        start = jnp.zeros(self.queries, jnp.float32)
        carry = (start, start - jnp.inf, jnp.zeros((self.queries, self.head_size), jnp.float32))
        sums, largest, mixed = jax.lax.fori_loop(0, pl.cdiv(self.part, self.keys), block, carry)
        _store(out, q_place, mixed * (inverse_keep_prob(self.drop_threshold) / sums)[:, None])
        _store(logsumexp, q_place, largest + jnp.log(sums))

    def _d_query(self, seeds: Any, row: Any, head: Any, example_ids: Any, *refs: Any) -> None:
        query, key, value, gradient, logsumexp, mean, d_query = refs
        q_place = self._block_positions(pl.program_id(0) * self.queries, self.queries)
        q, g = _load(query, q_place), _load(gradient, q_place)
        ids, sums, means = (_load(each, q_place) for each in (example_ids, logsumexp, mean))
        draw = self._dropout_words(seeds, row, head, q_place)

        def block(number: Array, found: Array) -> Array:
            words = draw(number)
            for part in range(NUM_PARTS):
                k_place = self._key_positions(number, part)
                k = _load(key, k_place)
                scores = self._scores(q, k, ids, example_ids, q_place, k_place)
                weights = jnp.exp(scores - sums[:, None])
                d_weights = _product(g, _load(value, k_place), transpose=True)
                if self.drop_threshold:
                    kept = self._keep_mask(words[part // 4], part)
                    d_weights = jnp.where(
                        kept, d_weights * inverse_keep_prob(self.drop_threshold), 0.0
                    )
                d_scores = weights * (d_weights - means[:, None])
                found += _product(d_scores.astype(k.dtype), k)
            return found

        found = jnp.zeros((self.queries, self.head_size), jnp.float32)
        found = jax.lax.fori_loop(0, pl.cdiv(self.part, self.keys), block, found)
        _store(d_query, q_place, found * self.head_size**-0.5)

    def _d_key_value(self, seeds: Any, row: Any, head: Any, example_ids: Any, *refs: Any) -> None:
        query, key, value, gradient, logsumexp, mean, d_key, d_value = refs
        number, half = pl.program_id(0) // 2, pl.program_id(0) % 2
        parts = [half * (NUM_PARTS // 2) + i for i in range(NUM_PARTS // 2)]
        places = [self._key_positions(number, part) for part in parts]
        keys, values = ([_load(each, place) for place in places] for each in (key, value))

        def block(start: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            found = list(carry)  # of keys and values in turn
            q_place = self._block_positions(start * self.queries, self.queries)
            q, g = _load(query, q_place), _load(gradient, q_place)
            ids, sums, means = (_load(each, q_place) for each in (example_ids, logsumexp, mean))
            words = self._dropout_words(seeds, row, head, q_place)(number)
            for i, (k, v, k_place) in enumerate(zip(keys, values, places, strict=True)):
                scores = self._scores(q, k, ids, example_ids, q_place, k_place)
                weights = dropped = jnp.exp(scores - sums[:, None])
                if q_place.valid is not None:  # of no query, the sum is no number
                    weights = dropped = jnp.where(q_place.valid[:, None], weights, 0.0)
                d_weights = _product(g, v, transpose=True)
                if self.drop_threshold:
                    low, high = words
                    word = jnp.where(half == 0, low, high)
                    factors = jnp.where(
                        self._keep_mask(word, i), inverse_keep_prob(self.drop_threshold), 0.0
                    )
                    dropped, d_weights = weights * factors, d_weights * factors
                d_scores = weights * (d_weights - means[:, None])
                found[2 * i] += _product(q.T, d_scores.astype(q.dtype))
                found[2 * i + 1] += _product(g.T, dropped.astype(g.dtype))
            return tuple(found)

        carry = (jnp.zeros((self.head_size, self.keys), jnp.float32),) * NUM_PARTS
        carry = jax.lax.fori_loop(0, pl.cdiv(self.length, self.queries), block, carry)
        for i, place in enumerate(places):
            _store(d_key, place, carry[2 * i].T * self.head_size**-0.5)
            _store(d_value, place, carry[2 * i + 1].T)

    def _block_positions(self, start: Any, count: int) -> "_Positions":
        number = start + jnp.arange(count)
        valid = None if self.length % count == 0 else number < self.length
        return _Positions(start, count, number, valid)

    def _key_positions(self, block: Any, part: Any) -> "_Positions":
        within = block * self.keys + jnp.arange(self.keys)
        start = part * self.part + block * self.keys
        number = start + jnp.arange(self.keys)
        whole = self.length % NUM_PARTS == 0 and self.part % self.keys == 0
        valid = None if whole else (within < self.part) & (number < self.length)
        return _Positions(start, self.keys, number, valid)

    def _scores(
        self,
        q: Array,
        k: Array,
        ids: Array,
        example_ids: Any,
        q_place: "_Positions",
        k_place: "_Positions",
    ) -> Array:
        scores = _product(q, k, transpose=True) * self.head_size**-0.5
        seen = ids[:, None] == _load(example_ids, k_place)[None, :]
        if self.causal:
            seen &= q_place.number[:, None] >= k_place.number[None, :]
        if k_place.valid is not None:
            seen &= k_place.valid[None, :]
        return jnp.where(seen, scores, _MASKED_SCORE)

    def _dropout_words(self, seeds: Any, row: Any, head: Any, q_place: "_Positions") -> Any:
        """What gives the words of dropout for a block of keys, [queries, keys] each."""
        if not self.drop_threshold:
            return lambda block: ()
        both = seeds[0], seeds[1]
        b, n = row[0].astype(jnp.uint32), head[0].astype(jnp.uint32)
        query = q_place.number.astype(jnp.uint32)[None, :].T

        def draw(block: Any) -> tuple[Array, Array]:
            key = (block * self.keys + jnp.arange(self.keys)).astype(jnp.uint32)[None, :]
            place = (n * self.part + key) * self.length + query
            return threefry_words(both, b, place)

        return draw

    def _keep_mask(self, word: Array, part: int) -> Array:
        """Which weights survive, as `bertjax.model.dropout` says of [B, N, T keys, T queries]."""
        return keep_bit(word << byte_shift(part), self.drop_threshold)


@dataclasses.dataclass(frozen=True)
class _Positions:
    """Consecutive pieces of a row.

    Attributes:
      start, count: of those that are loaded.
      number: of each.
      valid: which there are; None for all.
    """

    start: Any
    count: int
    number: Array
    valid: Array | None

    def of(self, shape: tuple[int, ...]) -> Array | None:
        """`valid` for an array whose first axis is that of the places."""
        if self.valid is None or len(shape) == 1:
            return self.valid
        return jnp.broadcast_to(self.valid[:, None], shape)


def _load(ref: Any, place: _Positions) -> Array:
    """The rows of [T, D], or the elements of [T]; 0 where there is none."""
    part = ref.at[pl.ds(place.start, place.count)]
    valid = place.of((place.count, *ref.shape[1:]))
    return triton.load(part) if valid is None else triton.load(part, mask=valid, other=0)


def _store(ref: Any, place: _Positions, values: Array) -> None:
    part = ref.at[pl.ds(place.start, place.count)]
    triton.store(part, values.astype(ref.dtype), mask=place.of(values.shape))


def _product(a: Array, b: Array, transpose: bool = False) -> Array:
    """The matrix product, in float32; with the second one transposed where asked."""
    axes = (((1,), (1 if transpose else 0,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
