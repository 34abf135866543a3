"""Muon: a matrix moves by the orthogonal matrix nearest to its momentum (Jordan et al. 2024).

Momentum is stored in pieces like the parameter. To be made orthogonal a matrix must be whole, so
the matrices of all layers are dealt out to the devices, each works on its own, and the pieces come
back: two exchanges, in bfloat16 as the products are where the device has units for them.
"""

import collections
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.mesh.sharding import AXES, is_traced_for_cpu, tree_shardings

MOMENTUM = 0.95
# Of the elements of an update, as of Adam's, so that both take the same learning rate and decay
# (Liu et al. 2025, section 2.2).
UPDATE_RMS = 0.2

# Five steps of Newton and Schulz's iteration, with its published coefficients, and no momentum.
_ORTHOGONALIZE = optax.contrib.scale_by_muon(
    beta=0.0,
    nesterov=False,
    weight_dimension_numbers=lambda tree: jax.tree.map(
        lambda _: optax.contrib.MuonDimensionNumbers(1, 2), tree
    ),
)


def scale_by_muon() -> optax.GradientTransformation:
    """Nesterov's momentum, made orthogonal; all parameters are stacked matrices [L, in, out]."""
    return optax.chain(
        optax.trace(MOMENTUM, nesterov=True),
        optax.stateless(lambda updates, _: orthogonalize(updates)),
    )


def orthogonalize(tree: Any) -> Any:
    """Each matrix U S V^T of each leaf [L, in, out] -> U V^T * RMS * sqrt(max(in, out)), float32.

    The singular values that come out lie between 0.7 and 1.2, and not all at 1. Under a mesh the
    leaves are taken and given as `tree_shardings` says, and the matrices of one shape, of whatever
    leaf, are shared by all devices.
    """
    leaves, structure = jax.tree.flatten(tree)
    mesh = jax.sharding.get_abstract_mesh()
    stored = (
        jax.tree.leaves(tree_shardings(mesh, tree)) if not (mesh.empty or mesh.manual_axes) else []
    )
    same: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    for number, leaf in enumerate(leaves):
        same[leaf.shape[1:]].append(number)
    for numbers in same.values():
        group = [leaves[number] for number in numbers]
        for number, leaf in zip(
            numbers, _orthogonal(group, [stored[n] for n in numbers if stored]), strict=True
        ):
            leaves[number] = leaf
    return jax.tree.unflatten(structure, leaves)


def _orthogonal(group: list[Array], stored: list[NamedSharding]) -> list[Array]:
    layers = [leaf.shape[0] for leaf in group]
    ends = [sum(layers[: i + 1]) for i in range(len(layers) - 1)]
    whole = jnp.concatenate(group).astype(jnp.float32 if is_traced_for_cpu() else jnp.bfloat16)
    if stored:
        mesh = stored[0].mesh
        spare = -len(whole) % math.prod(mesh.shape.values())  # matrices of zeros
        whole = jnp.pad(whole, ((0, spare), (0, 0), (0, 0)))
        whole = jax.lax.with_sharding_constraint(whole, NamedSharding(mesh, PartitionSpec(AXES)))
    whole, _ = _ORTHOGONALIZE.update(whole, _ORTHOGONALIZE.init(whole))
    if stored:
        whole = jax.lax.with_sharding_constraint(whole, stored[0])
    parts = jnp.split(whole[: sum(layers)].astype(jnp.float32), ends)
    scale = UPDATE_RMS * math.sqrt(max(whole.shape[1:]))
    return [scale * part for part in parts]
