"""The tokens that a token attends to, by kind of mask."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jax import Array

MaskKind = Literal["bidirectional", "left_to_right", "right_to_left", "prefix"]


def visible_keys(
    mask_kind: MaskKind,
    q_ids: Array,
    k_ids: Array,
    positions: Callable[[], tuple[Array, Array]],
) -> Array:
    """Return True where a query attends to a key.

    Args:
      mask_kind: as in `dispatch.attention`.
      q_ids: int32, example ids of the queries, as in `dispatch.attention`.
      k_ids: int32, those of the keys; the shapes broadcast to that of the result.
      positions: returns the positions of the queries and of the keys in their sequence, of shapes
        that broadcast likewise. Only masks that need them call it, so that the others cost no more.
    """
    if mask_kind == "bidirectional":
        return q_ids == k_ids
    q_positions, k_positions = positions()
    if mask_kind == "left_to_right":
        return (q_ids == k_ids) & (q_positions >= k_positions)
    if mask_kind == "right_to_left":
        return (q_ids == k_ids) & (q_positions <= k_positions)
    # A source token is visible from the start. Source queries precede the target, so they do not
    # see it. A position for each key is cheaper than a condition for each pair.
    visible_from = jnp.where(k_ids > 0, 0, k_positions)
    return (jnp.abs(q_ids) == jnp.abs(k_ids)) & (q_positions >= visible_from)
