"""The table of sharding rules."""

import jax
import jax.numpy as jnp
import pytest

from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import (
    check_mesh,
    gather_matrices,
    named_leaves,
    sharded_shapes,
    stack_layers,
    tree_shardings,
)
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig

CONFIG = BertConfig(
    vocab_size=100,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=4,
    max_position_embeddings=32,
    scan_layers=True,
)


def axes_of(sharding: jax.sharding.NamedSharding) -> list[str]:
    return [
        axis for part in sharding.spec for axis in ([part] if isinstance(part, str) else part or [])
    ]


@pytest.fixture(scope="module")
def params():
    shapes = param_shapes(CONFIG)
    return {part: shapes[part] for part in ("encoder", "pooler", "mlm", "nsp")}


@pytest.mark.seconds
def test_every_kernel_of_a_block_is_sharded_over_all_axes(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, _ in named_leaves(params):
        if "blocks" in name and name.endswith("kernel"):
            assert sorted(axes_of(shardings[name])) == ["data", "fsdp", "tensor"], name


def test_dimensions_that_data_does_not_divide_are_not_sharded_over_it(params) -> None:
    mesh = make_mesh(3, 2, 1, jax.devices()[:6])
    check_mesh(mesh, params)
    for name, sharding in named_leaves(tree_shardings(mesh, params)):
        assert "data" not in axes_of(sharding), name


@pytest.mark.parametrize("per_layer", [False, True])
def test_gather_matrices_gathers_over_data_and_casts(params, per_layer) -> None:
    mesh = make_mesh(4, 2, 1)
    shapes = sharded_shapes(mesh, params)
    jaxpr_of = jax.jit(
        lambda t: stack_layers(gather_matrices(mesh, t, "bfloat16", per_layer=per_layer))
    )
    used = dict(named_leaves(jaxpr_of.lower(shapes).compile().output_shardings))
    for name, leaf in named_leaves(jax.eval_shape(jaxpr_of, shapes)):
        matrix = name.endswith("kernel") or name.split("/")[-2] == "embeddings"
        assert "data" not in axes_of(used[name]), name
        assert leaf.dtype == (jnp.bfloat16 if matrix else jnp.float32), name


@pytest.mark.slow
@pytest.mark.parametrize("per_layer", [False, True])
def test_gather_matrices_returns_summed_float32_gradients(params, per_layer) -> None:
    mesh = make_mesh(8, 1, 1)
    tree = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
    tree = jax.device_put(tree, tree_shardings(mesh, tree))

    def total(tree):
        gathered = gather_matrices(mesh, tree, "bfloat16", per_layer=per_layer)
        return sum(jnp.sum(leaf.astype(jnp.float32)) * 2 for leaf in jax.tree.leaves(gathered))

    for name, leaf in named_leaves(jax.jit(jax.grad(total))(tree)):
        assert leaf.dtype == jnp.float32 and (leaf == 2).all(), name


def test_layer_dimension_is_never_sharded(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, sharding in shardings.items():
        if "blocks" in name:
            assert sharding.spec[0] is None, name


def test_layers_of_heads_are_replicated_whatever_their_names() -> None:
    kernel = jax.ShapeDtypeStruct((64, 1), jnp.float32)
    head = {"answer_spans": {"scorer": {"output": {"kernel": kernel}, "up": {"kernel": kernel}}}}
    for sharding in jax.tree.leaves(tree_shardings(make_mesh(2, 2, 2), head)):
        assert sharding.is_fully_replicated


def test_check_mesh_rejects_a_dimension_that_does_not_divide(params) -> None:
    kernel = jax.ShapeDtypeStruct((2, 12, 48), "float32")
    wide = {"encoder": {"blocks": {"feed_forward": {"up": {"kernel": kernel}}}}}
    with pytest.raises(
        ValueError, match=r"mesh\.fsdp=8: does not divide a dimension of 12 of .*up/kernel"
    ):
        check_mesh(make_mesh(1, 8, 1), wide)
