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

from bertjax.mesh.sharding import gpu_kind, over_rows_and_heads, why_not_split
from bertjax.model.dropout import PARTS, limit_and_seeds, outlives, random_words, scale, shift_of

_SIZES = (32, 64, 128)  # of heads
_LEAST = 16  # of a block, for tensor cores
_STAGES = 3  # of loads that are under way at a time
# Queries of a block, keys in each of its parts, warps, by the size of heads: the largest that
# leave no register of a bfloat16 kernel to memory on compute capability 8.0 and 9.0.
_BLOCKS = {
    "forward": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
    "d_query": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 4)},
    "d_key_value": {32: (32, 16, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
}
_HIDDEN = float(jnp.finfo(jnp.float32).min)


def why_not(query: Array | jax.ShapeDtypeStruct) -> str:
    """Why the kernels do not take queries [B, T, N, D] on the context's mesh; "" if they do."""
    rows, _, heads, size = query.shape
    if not gpu_kind().startswith("NVIDIA"):  # older ones are called Tesla
        return f"{gpu_kind() or 'no GPU'}: the kernels are for NVIDIA's since A100"
    if unsplit := why_not_split(rows, heads):
        return unsplit
    if size not in _SIZES:
        return f"heads of {size}: the kernels take {', '.join(map(str, _SIZES))}"
    return ""


def attention(
    query: Array,
    key: Array,
    value: Array,
    pack_ids: Array,
    *,
    causal: bool = False,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
    interpret: bool = False,
) -> Array:
    """As `bertjax.model.attention.dispatch.attention`, where `why_not` has no reason.

    `interpret` runs the kernels on any device, slowly, and without a mesh too.
    """
    limit, seeds = limit_and_seeds(dropout_rate, dropout_key)
    kernels = _Kernels(query.shape[1], query.shape[-1], limit, causal, interpret)
    return over_rows_and_heads(
        functools.partial(_attention, kernels), seeds, pack_ids, (query, key, value)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    kernels: "_Kernels", shared: tuple[Array, ...], query: Array, key: Array, value: Array
) -> Array:
    return kernels.forward(shared, query, key, value)[0]


def _attention_forward(
    kernels: "_Kernels", shared: tuple[Array, ...], *inputs: Array
) -> tuple[Array, Any]:
    out, total = kernels.forward(shared, *inputs)
    return out, (shared, inputs, out, total)


def _attention_backward(kernels: "_Kernels", kept: Any, gradient: Array) -> tuple[Any, ...]:
    shared, inputs, out, total = kept
    return (None, *kernels.backward(shared, inputs, out, total, gradient))


_attention.defvjp(_attention_forward, _attention_backward)


@dataclasses.dataclass(frozen=True)
class _Kernels:
    """The kernels for rows of `length` pieces and heads of `size`.

    Attributes:
      limit: of dropout's bits; 0 for none.
      queries, keys, warps: of `_BLOCKS`.
    """

    length: int
    size: int
    limit: int
    causal: bool
    interpret: bool
    queries: int = 0
    keys: int = 0
    warps: int = 0

    @property
    def part(self) -> int:
        """Keys of a part of the row."""
        return -(-self.length // PARTS)

    def _sized(self, name: str) -> "_Kernels":
        """With the blocks of one of the kernels, no longer than the rows need."""
        queries, keys, warps = _BLOCKS[name][self.size]
        return dataclasses.replace(
            self,
            queries=max(_LEAST, min(queries, pl.next_power_of_2(self.length))),
            keys=max(_LEAST, min(keys, pl.next_power_of_2(self.part))),
            warps=warps,
        )

    def forward(self, shared: tuple[Array, ...], *arrays: Array) -> tuple[Array, Array]:
        """The output [B, T, N * D], and the logarithm of each softmax's sum [B, N, T]."""
        kernel = self._sized("forward")
        blocks = pl.cdiv(self.length, kernel.queries)
        return kernel._run(kernel._forward, blocks, shared, arrays, (), wide=1, narrow=1)

    def backward(
        self,
        shared: tuple[Array, ...],
        inputs: tuple[Array, ...],
        out: Array,
        total: Array,
        gradient: Array,
    ) -> tuple[Array, ...]:
        """The gradients of query, key and value."""
        by_head = (*out.shape[:2], -1, self.size)
        products = out.astype(jnp.float32) * gradient.astype(jnp.float32)
        mean = products.reshape(by_head).sum(-1).swapaxes(1, 2)
        given = shared, (*inputs, gradient), (total, mean)
        kernel = self._sized("d_query")
        blocks = pl.cdiv(self.length, kernel.queries)
        (d_query,) = kernel._run(kernel._d_query, blocks, *given, wide=1)
        kernel = self._sized("d_key_value")
        blocks = 2 * pl.cdiv(self.part, kernel.keys)
        return d_query, *kernel._run(kernel._d_key_value, blocks, *given, wide=2)

    def _run(
        self,
        body: Any,
        blocks: int,
        shared: tuple[Array, ...],
        arrays: tuple[Array, ...],
        sums: tuple[Array, ...],
        wide: int,
        narrow: int = 0,
    ) -> Any:
        """Runs a kernel for each block of each head of each row.

        Args:
          arrays: [B, T, N * D] each, as are the first outputs, of which there are `wide`.
          sums: float32 [B, N, T] each, as are the other outputs.
        """
        seeds, rows, heads, pack_ids = shared
        of_head = pl.BlockSpec((None, self.length, self.size), lambda i, row, head: (row, 0, head))
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
            out_specs=[of_head] * wide + [of_sums] * narrow,
            out_shape=[like] * wide + [jax.ShapeDtypeStruct(shape, jnp.float32)] * narrow,
            compiler_params=triton.CompilerParams(num_warps=self.warps, num_stages=_STAGES),
            interpret=self.interpret,
        )(seeds, rows, heads, pack_ids, *arrays, *sums)

    # Weights lie with the queries first, [queries, keys] of a block.

    def _forward(self, seeds: Any, row: Any, head: Any, pack_ids: Any, *refs: Any) -> None:
        query, key, value, out, total = refs
        q_place = self._places(pl.program_id(0) * self.queries, self.queries)
        q = _load(query, q_place)
        ids = _load(pack_ids, q_place)
        draw = self._draw(seeds, row, head, q_place)

        def block(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            sums, largest, mixed = carry
            words = draw(number)
            for part in range(PARTS):
                k_place = self._key_places(number, part)
                scores = self._scores(q, _load(key, k_place), ids, pack_ids, q_place, k_place)
                before, largest = largest, jnp.maximum(largest, scores.max(axis=1))
                weights = jnp.exp(scores - largest[:, None])
                shrunk = jnp.exp(before - largest)
                sums = sums * shrunk + weights.sum(axis=1)
                if self.limit:
                    weights = jnp.where(self._kept(words[part // 4], part), weights, 0.0)
                product = _product(weights.astype(value.dtype), _load(value, k_place))
                mixed = mixed * shrunk[:, None] + product
            return sums, largest, mixed

        start = jnp.zeros(self.queries, jnp.float32)
        carry = (start, start - jnp.inf, jnp.zeros((self.queries, self.size), jnp.float32))
        sums, largest, mixed = jax.lax.fori_loop(0, pl.cdiv(self.part, self.keys), block, carry)
        _store(out, q_place, mixed * (scale(self.limit) / sums)[:, None])
        _store(total, q_place, largest + jnp.log(sums))

    def _d_query(self, seeds: Any, row: Any, head: Any, pack_ids: Any, *refs: Any) -> None:
        query, key, value, gradient, total, mean, d_query = refs
        q_place = self._places(pl.program_id(0) * self.queries, self.queries)
        q, g = _load(query, q_place), _load(gradient, q_place)
        ids, sums, means = (_load(each, q_place) for each in (pack_ids, total, mean))
        draw = self._draw(seeds, row, head, q_place)

        def block(number: Array, found: Array) -> Array:
            words = draw(number)
            for part in range(PARTS):
                k_place = self._key_places(number, part)
                k = _load(key, k_place)
                scores = self._scores(q, k, ids, pack_ids, q_place, k_place)
                weights = jnp.exp(scores - sums[:, None])
                d_weights = _product(g, _load(value, k_place), transpose=True)
                if self.limit:
                    kept = self._kept(words[part // 4], part)
                    d_weights = jnp.where(kept, d_weights * scale(self.limit), 0.0)
                d_scores = weights * (d_weights - means[:, None])
                found += _product(d_scores.astype(k.dtype), k)
            return found

        found = jnp.zeros((self.queries, self.size), jnp.float32)
        found = jax.lax.fori_loop(0, pl.cdiv(self.part, self.keys), block, found)
        _store(d_query, q_place, found * self.size**-0.5)

    def _d_key_value(self, seeds: Any, row: Any, head: Any, pack_ids: Any, *refs: Any) -> None:
        query, key, value, gradient, total, mean, d_key, d_value = refs
        number, half = pl.program_id(0) // 2, pl.program_id(0) % 2
        parts = [half * (PARTS // 2) + i for i in range(PARTS // 2)]
        places = [self._key_places(number, part) for part in parts]
        keys, values = ([_load(each, place) for place in places] for each in (key, value))

        def block(start: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            found = list(carry)  # of keys and values in turn
            q_place = self._places(start * self.queries, self.queries)
            q, g = _load(query, q_place), _load(gradient, q_place)
            ids, sums, means = (_load(each, q_place) for each in (pack_ids, total, mean))
            words = self._draw(seeds, row, head, q_place)(number)
            for i, (k, v, k_place) in enumerate(zip(keys, values, places, strict=True)):
                scores = self._scores(q, k, ids, pack_ids, q_place, k_place)
                weights = dropped = jnp.exp(scores - sums[:, None])
                if q_place.valid is not None:  # of no query, the sum is no number
                    weights = dropped = jnp.where(q_place.valid[:, None], weights, 0.0)
                d_weights = _product(g, v, transpose=True)
                if self.limit:
                    low, high = words
                    word = jnp.where(half == 0, low, high)
                    factors = jnp.where(self._kept(word, i), scale(self.limit), 0.0)
                    dropped, d_weights = weights * factors, d_weights * factors
                d_scores = weights * (d_weights - means[:, None])
                found[2 * i] += _product(q.T, d_scores.astype(q.dtype))
                found[2 * i + 1] += _product(g.T, dropped.astype(g.dtype))
            return tuple(found)

        carry = (jnp.zeros((self.size, self.keys), jnp.float32),) * PARTS
        carry = jax.lax.fori_loop(0, pl.cdiv(self.length, self.queries), block, carry)
        for i, place in enumerate(places):
            _store(d_key, place, carry[2 * i].T * self.size**-0.5)
            _store(d_value, place, carry[2 * i + 1].T)

    def _places(self, start: Any, count: int) -> "_Places":
        number = start + jnp.arange(count)
        valid = None if self.length % count == 0 else number < self.length
        return _Places(start, count, number, valid)

    def _key_places(self, block: Any, part: Any) -> "_Places":
        within = block * self.keys + jnp.arange(self.keys)
        start = part * self.part + block * self.keys
        number = start + jnp.arange(self.keys)
        whole = self.length % PARTS == 0 and self.part % self.keys == 0
        valid = None if whole else (within < self.part) & (number < self.length)
        return _Places(start, self.keys, number, valid)

    def _scores(
        self, q: Array, k: Array, ids: Array, pack_ids: Any, q_place: "_Places", k_place: "_Places"
    ) -> Array:
        scores = _product(q, k, transpose=True) * self.size**-0.5
        seen = ids[:, None] == _load(pack_ids, k_place)[None, :]
        if self.causal:
            seen &= q_place.number[:, None] >= k_place.number[None, :]
        if k_place.valid is not None:
            seen &= k_place.valid[None, :]
        return jnp.where(seen, scores, _HIDDEN)

    def _draw(self, seeds: Any, row: Any, head: Any, q_place: "_Places") -> Any:
        """What gives the words of dropout for a block of keys, [queries, keys] each."""
        if not self.limit:
            return lambda block: ()
        both = seeds[0], seeds[1]
        b, n = row[0].astype(jnp.uint32), head[0].astype(jnp.uint32)
        query = q_place.number.astype(jnp.uint32)[None, :].T

        def draw(block: Any) -> tuple[Array, Array]:
            key = (block * self.keys + jnp.arange(self.keys)).astype(jnp.uint32)[None, :]
            place = (n * self.part + key) * self.length + query
            return random_words(both, b, place)

        return draw

    def _kept(self, word: Array, part: int) -> Array:
        """Which weights survive, as `bertjax.model.dropout` says of [B, N, T keys, T queries]."""
        return outlives(word << shift_of(part), self.limit)


@dataclasses.dataclass(frozen=True)
class _Places:
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


def _load(ref: Any, place: _Places) -> Array:
    """The rows of [T, D], or the elements of [T]; 0 where there is none."""
    part = ref.at[pl.ds(place.start, place.count)]
    valid = place.of((place.count, *ref.shape[1:]))
    return triton.load(part) if valid is None else triton.load(part, mask=valid, other=0)


def _store(ref: Any, place: _Places, values: Array) -> None:
    part = ref.at[pl.ds(place.start, place.count)]
    triton.store(part, values.astype(ref.dtype), mask=place.of(values.shape))


def _product(a: Array, b: Array, transpose: bool = False) -> Array:
    """The matrix product, in float32; with the second one transposed where asked."""
    axes = (((1,), (1 if transpose else 0,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
