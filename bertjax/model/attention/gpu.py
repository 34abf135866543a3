"""Attention as kernels for NVIDIA GPUs, which never write the weights [T, T] of a head to memory.

They compute the same as `plain`, block by block with a running softmax (Dao et al. 2022). The
backward pass recomputes weights and dropout bits. One kernel computes the gradient of queries,
another those of keys and values. One program computes each sum, so results are deterministic.

Two words of dropout serve eight keys, an eighth of the sequence apart. A block of keys is
therefore eight short blocks, one in each eighth, or four where eight need too many registers.

They use the Triton backend of Pallas, deprecated since jax 0.11 and still in 0.12. It alone serves
every GPU since A100, example ids, dropout by step, and compilers without a GPU. A jax without it
trains with `plain.recomputed_attention`. The alternatives, as of jax 0.11:

- Mosaic GPU, its successor in Pallas: warp-group products need compute capability 9.0. `mma`, for
  A100 too, came with 0.11, and its interpreter does not know it. No test without a GPU covers it.
- cuDNN (`jax.nn.dot_product_attention`): no dropout by step, no float32; example ids become a bias
  [B, 1, T, T], for which jax 0.10 also computes a gradient. Sums of its backward pass depend on the
  order of atomic additions (openxla/xla#14125), so a resumed run would differ. Tracing loads cuDNN,
  so preflight needs it. BERT-Large, 16 sequences of 512, H100, no dropout: 8,448 MiB of temporary
  buffers and 30.4 ms of memory traffic at its peak, instead of 8,017 and 30.1 here.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from bertjax.mesh.device_mesh import gpu_kind, lacks_bfloat16, split_unsupported_reason
from bertjax.model.attention.fused import FusedKernel, fused_attention, product
from bertjax.model.attention.mask import visible_keys
from bertjax.model.dropout import NUM_PARTS, byte_shift, keep_bit, threefry_words

try:
    from jax.experimental.pallas import triton
except ImportError:  # a version of jax without the backend
    triton = None  # type: ignore[assignment]

_HEAD_SIZES = (32, 64, 128)
_MIN_BLOCK = 16  # for tensor cores
_NUM_STAGES = 3  # loads in flight
# By head size: queries of a block, keys in each of its parts, warps. The largest without register
# spills of a bfloat16 kernel on compute capability 8.0 and 9.0.
_BLOCKS = {
    "forward": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
    "d_query": {32: (64, 32, 4), 64: (64, 16, 4), 128: (32, 16, 4)},
    "d_key_value": {32: (32, 16, 4), 64: (64, 16, 4), 128: (32, 16, 8)},
}
_MASKED_SCORE = float(jnp.finfo(jnp.float32).min)


def unsupported_reason(query: Array | jax.ShapeDtypeStruct) -> str:
    """Return why the kernels cannot serve queries [B, T, N, D] on the mesh, "" if they can."""
    batch_size, _, heads, head_size = query.shape
    # Preflight's older GPUs are called Tesla. Of others the process knows the compute capability.
    attached = [device for device in jax.local_devices() if device.device_kind == gpu_kind()]
    if not gpu_kind().startswith("NVIDIA") or any(map(lacks_bfloat16, attached)):
        return f"{gpu_kind() or 'no GPU'}: the kernels are for NVIDIA GPUs since A100"
    if triton is None:
        return f"jax {jax.__version__} has no Triton backend for Pallas"
    if reason := split_unsupported_reason(batch_size, heads):
        return reason
    if head_size not in _HEAD_SIZES:
        return f"head size {head_size}: the kernels take {', '.join(map(str, _HEAD_SIZES))}"
    return ""


@dataclasses.dataclass(frozen=True)
class _Kernels(FusedKernel):
    """The kernels for sequences of `length` tokens.

    Attributes:
      queries: queries of a block, see `_BLOCKS`.
      keys: keys in each part of a block.
      warps: warps of a program.
    """

    queries: int = 0
    keys: int = 0
    warps: int = 0

    @property
    def part_length(self) -> int:
        """Keys of a part, an eighth of the sequence."""
        return -(-self.length // NUM_PARTS)

    def _with_block_sizes(self, name: str) -> "_Kernels":
        """Return a copy with the blocks of a kernel, no longer than the sequence needs."""
        queries, keys, warps = _BLOCKS[name][self.head_size]
        return dataclasses.replace(
            self,
            queries=max(_MIN_BLOCK, min(queries, pl.next_power_of_2(self.length))),
            keys=max(_MIN_BLOCK, min(keys, pl.next_power_of_2(self.part_length))),
            warps=warps,
        )

    def attend(self, shared: tuple[Array, ...], *inputs: Array) -> tuple[Array, Any]:
        """Return the output and what the backward pass reads; see `FusedKernel.attend`."""
        kernel = self._with_block_sizes("forward")
        blocks = pl.cdiv(self.length, kernel.queries)
        out, logsumexp = kernel._call_kernel(
            kernel._forward, blocks, shared, inputs, (), num_array_outputs=1, num_sum_outputs=1
        )
        return out, (shared, inputs, out, logsumexp)

    def gradients(self, residuals: Any, gradient: Array) -> tuple[Array, ...]:
        """Return the gradients of query, key and value."""
        shared, inputs, out, logsumexp = residuals
        by_head = (*out.shape[:2], -1, self.head_size)
        products = out.astype(jnp.float32) * gradient.astype(jnp.float32)
        delta = products.reshape(by_head).sum(-1).swapaxes(1, 2)
        arrays = shared, (*inputs, gradient), (logsumexp, delta)
        kernel = self._with_block_sizes("d_query")
        blocks = pl.cdiv(self.length, kernel.queries)
        (d_query,) = kernel._call_kernel(kernel._d_query, blocks, *arrays, num_array_outputs=1)
        kernel = self._with_block_sizes("d_key_value")
        body, blocks = kernel._d_key_value, 2 * pl.cdiv(self.part_length, kernel.keys)
        return d_query, *kernel._call_kernel(body, blocks, *arrays, num_array_outputs=2)

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
        """Run a kernel for each block of each head of each sequence.

        Args:
          body: the kernel.
          blocks: programs per head.
          shared: seeds, indices of sequences and heads, and example_ids.
          arrays: inputs [B, T, N * D].
          sums: inputs float32 [B, N, T].
          num_array_outputs: outputs of the shape of `arrays`, which come first.
          num_sum_outputs: outputs of the shape of `sums`.
        """
        seeds, sequences, heads, example_ids = shared
        array_spec = pl.BlockSpec((None, self.length, self.head_size), lambda i, b, n: (b, 0, n))
        sum_spec = pl.BlockSpec((None, None, self.length), lambda i, b, n: (b, n, 0))
        array_shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
        shape = (len(sequences), len(heads), self.length)
        return pl.pallas_call(
            body,
            grid=(blocks, len(sequences), len(heads)),
            in_specs=[
                pl.BlockSpec((2,), lambda i, b, n: (0,)),
                pl.BlockSpec((1,), lambda i, b, n: (b,)),
                pl.BlockSpec((1,), lambda i, b, n: (n,)),
                pl.BlockSpec((None, self.length), lambda i, b, n: (b, 0)),
                *[array_spec] * len(arrays),
                *[sum_spec] * len(sums),
            ],
            out_specs=[array_spec] * num_array_outputs + [sum_spec] * num_sum_outputs,
            out_shape=[array_shape] * num_array_outputs
            + [jax.ShapeDtypeStruct(shape, jnp.float32)] * num_sum_outputs,
            compiler_params=triton.CompilerParams(num_warps=self.warps, num_stages=_NUM_STAGES),
            interpret=self.interpret,
        )(seeds, sequences, heads, example_ids, *arrays, *sums)

    # The weights of a block are [queries, keys].

    def _forward(self, seeds: Any, sequence: Any, head: Any, example_ids: Any, *refs: Any) -> None:
        query, key, value, out, logsumexp = refs
        q_positions = self._query_positions(pl.program_id(0))
        q = _load(query, q_positions)
        ids = _load(example_ids, q_positions)
        draw = self._dropout_words(seeds, sequence, head, q_positions)

        def block(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            sums, largest, mixed = carry
            words = draw(number)
            for part in range(NUM_PARTS):
                k_positions = self._key_positions(number, part)
                scores = self._scores(
                    q, _load(key, k_positions), ids, example_ids, q_positions, k_positions
                )
                before, largest = largest, jnp.maximum(largest, scores.max(axis=1))
                weights = jnp.exp(scores - largest[:, None])
                shrunk = jnp.exp(before - largest)
                sums = sums * shrunk + weights.sum(axis=1)
                if self.drop_threshold:
                    weights = jnp.where(self._keep_mask(words[part // 4], part), weights, 0.0)
                update = product(weights.astype(value.dtype), _load(value, k_positions))
                mixed = mixed * shrunk[:, None] + update
            return sums, largest, mixed

        start = jnp.zeros(self.queries, jnp.float32)
        carry = (start, start - jnp.inf, jnp.zeros((self.queries, self.head_size), jnp.float32))
        sums, largest, mixed = jax.lax.fori_loop(
            0, pl.cdiv(self.part_length, self.keys), block, carry
        )
        _store(out, q_positions, mixed * (self.keep_scale / sums)[:, None])
        _store(logsumexp, q_positions, largest + jnp.log(sums))

    def _d_query(self, seeds: Any, sequence: Any, head: Any, example_ids: Any, *refs: Any) -> None:
        query, key, value, gradient, logsumexp, delta, d_query = refs
        query_refs = query, gradient, example_ids, logsumexp, delta
        q_positions = self._query_positions(pl.program_id(0))
        q, g, ids, log_sums, deltas = (_load(ref, q_positions) for ref in query_refs)
        draw = self._dropout_words(seeds, sequence, head, q_positions)

        def block(number: Array, gradient_sum: Array) -> Array:
            words = draw(number)
            for part in range(NUM_PARTS):
                k_positions = self._key_positions(number, part)
                k = _load(key, k_positions)
                scores = self._scores(q, k, ids, example_ids, q_positions, k_positions)
                weights = jnp.exp(scores - log_sums[:, None])
                d_weights = product(g, _load(value, k_positions), 1, 1)
                if self.drop_threshold:
                    keep = self._keep_mask(words[part // 4], part)
                    d_weights = jnp.where(keep, d_weights * self.keep_scale, 0.0)
                d_scores = weights * (d_weights - deltas[:, None])
                gradient_sum += product(d_scores.astype(k.dtype), k)
            return gradient_sum

        zeros = jnp.zeros((self.queries, self.head_size), jnp.float32)
        d_q = jax.lax.fori_loop(0, pl.cdiv(self.part_length, self.keys), block, zeros)
        _store(d_query, q_positions, self.scaled(d_q))

    def _d_key_value(
        self, seeds: Any, sequence: Any, head: Any, example_ids: Any, *refs: Any
    ) -> None:
        query, key, value, gradient, logsumexp, delta, d_key, d_value = refs
        query_refs = query, gradient, example_ids, logsumexp, delta
        number, half = pl.program_id(0) // 2, pl.program_id(0) % 2
        parts = [half * (NUM_PARTS // 2) + i for i in range(NUM_PARTS // 2)]
        key_positions = [self._key_positions(number, part) for part in parts]
        keys, values = (
            [_load(ref, positions) for positions in key_positions] for ref in (key, value)
        )

        def block(query_block: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
            gradients = list(carry)  # of keys and values in turn
            q_positions = self._query_positions(query_block)
            q, g, ids, log_sums, deltas = (_load(ref, q_positions) for ref in query_refs)
            words = self._dropout_words(seeds, sequence, head, q_positions)(number)
            for i, (k, v, k_positions) in enumerate(zip(keys, values, key_positions, strict=True)):
                scores = self._scores(q, k, ids, example_ids, q_positions, k_positions)
                weights = dropped = jnp.exp(scores - log_sums[:, None])
                if q_positions.valid is not None:  # past the end the sum is NaN
                    weights = dropped = jnp.where(q_positions.valid[:, None], weights, 0.0)
                d_weights = product(g, v, 1, 1)
                if self.drop_threshold:
                    low, high = words
                    word = jnp.where(half == 0, low, high)
                    factors = jnp.where(self._keep_mask(word, i), self.keep_scale, 0.0)
                    dropped, d_weights = weights * factors, d_weights * factors
                d_scores = weights * (d_weights - deltas[:, None])
                gradients[2 * i] += product(q.T, d_scores.astype(q.dtype))
                gradients[2 * i + 1] += product(g.T, dropped.astype(g.dtype))
            return tuple(gradients)

        carry = (jnp.zeros((self.head_size, self.keys), jnp.float32),) * NUM_PARTS
        carry = jax.lax.fori_loop(0, pl.cdiv(self.length, self.queries), block, carry)
        for i, positions in enumerate(key_positions):
            _store(d_key, positions, self.scaled(carry[2 * i].T))
            _store(d_value, positions, carry[2 * i + 1].T)

    def _query_positions(self, block: Any) -> "_Positions":
        start = block * self.queries
        indices = start + jnp.arange(self.queries)
        valid = None if self.length % self.queries == 0 else indices < self.length
        return _Positions(start, indices, valid)

    def _key_positions(self, block: Any, part: Any) -> "_Positions":
        within = block * self.keys + jnp.arange(self.keys)
        start = part * self.part_length + block * self.keys
        indices = start + jnp.arange(self.keys)
        whole = self.length % NUM_PARTS == 0 and self.part_length % self.keys == 0
        valid = None if whole else (within < self.part_length) & (indices < self.length)
        return _Positions(start, indices, valid)

    def _scores(
        self,
        q: Array,
        k: Array,
        ids: Array,
        example_ids: Any,
        q_positions: "_Positions",
        k_positions: "_Positions",
    ) -> Array:
        scores = self.scaled(product(q, k, 1, 1))
        mask = visible_keys(
            self.mask_kind,
            ids[:, None],
            _load(example_ids, k_positions)[None, :],
            lambda: (q_positions.indices[:, None], k_positions.indices[None, :]),
        )
        if k_positions.valid is not None:
            mask &= k_positions.valid[None, :]
        return jnp.where(mask, scores, _MASKED_SCORE)

    def _dropout_words(
        self, seeds: Any, sequence: Any, head: Any, q_positions: "_Positions"
    ) -> Any:
        """Return a function of a block of keys to its words of dropout [queries, keys]."""
        if not self.drop_threshold:
            return lambda block: ()
        words = seeds[0], seeds[1]
        b, n = sequence[0].astype(jnp.uint32), head[0].astype(jnp.uint32)
        query = q_positions.indices.astype(jnp.uint32)[None, :].T

        def draw(block: Any) -> tuple[Array, Array]:
            key = (block * self.keys + jnp.arange(self.keys)).astype(jnp.uint32)[None, :]
            element_index = (n * self.part_length + key) * self.length + query
            return threefry_words(words, b, element_index)

        return draw

    def _keep_mask(self, word: Array, part: int) -> Array:
        """Return the weights to keep, as `dropout.keep_mask` of [B, N, T keys, T queries]."""
        return keep_bit(word << byte_shift(part), self.drop_threshold)


attention = functools.partial(fused_attention, _Kernels)


@dataclasses.dataclass(frozen=True)
class _Positions:
    """Consecutive positions of a sequence.

    Attributes:
      start: first position.
      indices: all positions.
      valid: True where the sequence has such a position; None for all.
    """

    start: Any
    indices: Array
    valid: Array | None

    def valid_mask(self, shape: tuple[int, ...]) -> Array | None:
        """Return `valid` for an array whose first axis is that of the positions."""
        if self.valid is None or len(shape) == 1:
            return self.valid
        return jnp.broadcast_to(self.valid[:, None], shape)


def _load(ref: Any, positions: _Positions) -> Array:
    """Return the positions' part of [T, D] or [T], 0 where the sequence has ended."""
    count = len(positions.indices)
    block = ref.at[pl.ds(positions.start, count)]
    valid = positions.valid_mask((count, *ref.shape[1:]))
    return triton.load(block) if valid is None else triton.load(block, mask=valid, other=0)


def _store(ref: Any, positions: _Positions, values: Array) -> None:
    block = ref.at[pl.ds(positions.start, len(positions.indices))]
    triton.store(block, values.astype(ref.dtype), mask=positions.valid_mask(values.shape))
