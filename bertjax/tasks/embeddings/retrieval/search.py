"""Exact search: the vectors with the largest products, compared block by block on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

DOCUMENTS_PER_BLOCK, QUERIES_PER_BLOCK = 16384, 512


class Neighbors(NamedTuple):
    """The nearest documents of Q queries, the best first.

    Attributes:
      scores: float32 [Q, k].
      indices: int32 [Q, k].
    """

    scores: np.ndarray
    indices: np.ndarray


def search(
    queries: np.ndarray,
    documents: np.ndarray,
    k: int,
    documents_per_block: int = DOCUMENTS_PER_BLOCK,
    queries_per_block: int = QUERIES_PER_BLOCK,
) -> Neighbors:
    """Return the k documents with the largest dot products for each query.

    Of equal products the document with the lower index comes first. Documents stay in host memory:
    a device holds all queries, their k best so far, and two blocks of documents.

    Args:
      queries: float32 [Q, H].
      documents: float32 [N, H].
      k: at most N.
      documents_per_block: documents on the device at a time.
      queries_per_block: queries whose products with a block are in memory at a time.
    """
    assert 0 < k <= len(documents) and len(queries)
    count = min(documents_per_block, len(documents))
    size = min(queries_per_block, len(queries))
    query_blocks = [
        jax.device_put(_pad(queries[start : start + size], size))
        for start in range(0, len(queries), size)
    ]
    empty = jnp.full((size, k), -jnp.inf, jnp.float32), jnp.full((size, k), -1, jnp.int32)
    best = [empty] * len(query_blocks)
    for start in range(0, len(documents), count):
        earlier = best
        block = jax.device_put(_pad(documents[start : start + count], count))
        remaining = np.int32(len(documents) - start)
        best = [
            _merge_block(*pair, query_block, block, np.int32(start), remaining)
            for pair, query_block in zip(best, query_blocks, strict=True)
        ]
        jax.block_until_ready(earlier)  # else all blocks might wait on the device
    scores, indices = (np.concatenate(parts)[: len(queries)] for parts in zip(*best, strict=True))
    return Neighbors(scores, indices)


@jax.jit
def _merge_block(
    scores: Array, indices: Array, queries: Array, block: Array, start: Array, count: Array
) -> tuple[Array, Array]:
    """Return the k best of the best so far and of a block.

    `top_k` prefers lower positions, and earlier blocks have lower indices.

    Args:
      scores: float32 [q, k], the best so far.
      indices: int32 [q, k].
      queries: float32 [q, H].
      block: float32 [n, H], padded.
      start: index of its first document.
      count: documents from `start` on.
    """
    # In full precision: an accelerator's default would change the order.
    products = jnp.matmul(queries, block.T, precision=jax.lax.Precision.HIGHEST)
    columns = jnp.arange(block.shape[0], dtype=jnp.int32)
    # -0 would rank below 0, which a reader of scores takes for equal.
    products = jnp.where(products == 0, 0.0, products)
    products = jnp.where(columns < count, products, -jnp.inf)
    columns = jnp.broadcast_to(start + columns, products.shape)
    all_scores = jnp.concatenate([scores, products], axis=1)
    top, positions = jax.lax.top_k(all_scores, scores.shape[1])
    all_indices = jnp.concatenate([indices, columns], axis=1)
    return top, jnp.take_along_axis(all_indices, positions, axis=1)


def _pad(rows: np.ndarray, count: int) -> np.ndarray:
    return np.pad(rows, [(0, count - len(rows)), (0, 0)])
