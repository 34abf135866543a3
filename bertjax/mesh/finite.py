"""Check of arrays for numbers that are not finite."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import CommandError


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise CommandError if a result of the model is not finite."""
    if not np.isfinite(array).all():
        raise CommandError(
            f"{name}: the model computes numbers that are not finite. Check its parameters: they "
            "are damaged, or too large."
        )


def find_non_finite(tree: Any) -> str | None:
    """Return the name of the first array with a NaN or an infinity; None without one.

    Each device checks its shards once. All processes call it, and all get the result.

    Args:
      tree: arrays of floats and others, all on the host or all on devices.
    """
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    }
    leaves = [*arrays.values()]
    if leaves and isinstance(leaves[0], jax.Array):
        replicated = jax.NamedSharding(leaves[0].sharding.mesh, jax.P())  # type: ignore[attr-defined]
        finite = jax.device_get(jax.jit(_are_finite, out_shardings=replicated)(leaves))
    else:
        finite = np.array([np.isfinite(leaf).all() for leaf in leaves], bool)
    return next((name for name, ok in zip(arrays, finite, strict=True) if not ok), None)


def _are_finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves])
