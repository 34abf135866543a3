"""Muon: the update of a matrix is the orthogonal matrix nearest to its momentum.

Jordan et al. 2024. Momentum is sharded like the parameter, and the iteration needs whole matrices.
So the matrices of all layers are distributed over the devices, and the results are sharded again:
two all-to-all exchanges. Exchanges and products are in bfloat16, except on CPUs.
"""

import collections
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.mesh.device_mesh import AXES, is_traced_for_cpu
from bertjax.mesh.sharding import tree_shardings

MOMENTUM = 0.95
# Root mean square of the elements of an update, as of Adam's, so that both use the same learning
# rate and decay (Liu et al. 2025, section 2.2).
UPDATE_RMS = 0.2

# Five steps of the Newton-Schulz iteration with the published coefficients; no momentum.
_ORTHOGONALIZE = optax.contrib.scale_by_muon(
    beta=0.0,
    nesterov=False,
    weight_dimension_numbers=lambda tree: jax.tree.map(
        lambda _: optax.contrib.MuonDimensionNumbers(1, 2), tree
    ),
)


def scale_by_muon() -> optax.GradientTransformation:
    """Return Muon for stacked matrices [L, in, out]: Nesterov momentum, orthogonalized."""
    return optax.chain(
        optax.trace(MOMENTUM, nesterov=True),
        optax.stateless(lambda updates, _: orthogonalize(updates)),
    )


def orthogonalize(tree: Any) -> Any:
    """Return U V^T * UPDATE_RMS * sqrt(max(in, out)), float32, of each matrix U S V^T.

    The iteration is approximate: singular values of the result are from 0.7 to 1.2. Under a mesh
    the leaves have the shardings of `tree_shardings`, and all devices share the matrices of a
    shape.

    Args:
      tree: leaves [L, in, out].
    """
    leaves, structure = jax.tree.flatten(tree)
    mesh = jax.sharding.get_abstract_mesh()
    shardings = (
        jax.tree.leaves(tree_shardings(mesh, tree)) if not (mesh.empty or mesh.manual_axes) else []
    )
    by_shape: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    for number, leaf in enumerate(leaves):
        by_shape[leaf.shape[1:]].append(number)
    for numbers in by_shape.values():
        group = [leaves[number] for number in numbers]
        results = _orthogonalize(group, [shardings[number] for number in numbers if shardings])
        for number, leaf in zip(numbers, results, strict=True):
            leaves[number] = leaf
    return jax.tree.unflatten(structure, leaves)


def _orthogonalize(group: list[Array], shardings: list[NamedSharding]) -> list[Array]:
    layers = [leaf.shape[0] for leaf in group]
    ends = [sum(layers[: i + 1]) for i in range(len(layers) - 1)]
    matrices = jnp.concatenate(group).astype(jnp.float32 if is_traced_for_cpu() else jnp.bfloat16)
    if shardings:
        mesh = shardings[0].mesh
        padding = -len(matrices) % math.prod(mesh.shape.values())
        matrices = jnp.pad(matrices, ((0, padding), (0, 0), (0, 0)))
        by_matrix = NamedSharding(mesh, PartitionSpec(AXES))
        matrices = jax.lax.with_sharding_constraint(matrices, by_matrix)
    matrices, _ = _ORTHOGONALIZE.update(matrices, _ORTHOGONALIZE.init(matrices))
    if shardings:
        matrices = jax.lax.with_sharding_constraint(matrices, shardings[0])
    parts = jnp.split(matrices[: sum(layers)].astype(jnp.float32), ends)
    scale = UPDATE_RMS * math.sqrt(max(matrices.shape[1:]))
    return [scale * part for part in parts]
