"""The mesh and the table of rules."""

import jax
import jax.numpy as jnp
import pytest

from bertjax.mesh.sharding import (
    check_mesh,
    gather_matrices,
    make_mesh,
    named_leaves,
    sharded_shapes,
    tree_shardings,
)
from bertjax.model.encoder import BertConfig
from bertjax.model.heads import Model

CONFIG = BertConfig(
    vocab_size=100, num_layers=2, hidden_size=16, num_heads=4, max_positions=32, scan_layers=True
)


def axes_of(sharding: jax.sharding.NamedSharding) -> list[str]:
    return [
        axis for part in sharding.spec for axis in ([part] if isinstance(part, str) else part or [])
    ]


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 8), jnp.int32)
    names = ("token_ids", "type_ids", "pack_ids", "positions", "mlm_positions", "cls_positions")
    batch = dict.fromkeys(names, ids)
    model = Model(CONFIG, ("mlm", "nsp"))
    return jax.eval_shape(
        lambda: model.init(jax.random.key(0), batch, deterministic=True)["params"]
    )


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)), ((1, 1, 8), (1, 1, 8))],
)
def test_one_axis_may_take_all_devices_that_are_left(sizes, shape) -> None:
    assert tuple(make_mesh(*sizes).shape.values()) == shape


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, 3, 1), (-1, -1, 1), (0, 1, 8), (-1, 16, 1)])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes) -> None:
    with pytest.raises(ValueError, match="does not fit 8 devices"):
        make_mesh(*sizes)


def test_every_matrix_of_a_block_is_split_over_both_axes(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, _ in named_leaves(params):
        if "blocks" in name and name.endswith("kernel"):
            assert sorted(axes_of(shardings[name])) == ["data", "fsdp", "model"], name


def test_what_the_data_axis_does_not_divide_is_whole_on_each_of_its_devices(params) -> None:
    mesh = make_mesh(3, 2, 1, jax.devices()[:6])
    check_mesh(mesh, 6, 1, params)
    for name, sharding in named_leaves(tree_shardings(mesh, params)):
        assert "data" not in axes_of(sharding), name


def test_a_step_computes_with_matrices_that_are_whole_over_the_data_axis(params) -> None:
    mesh = make_mesh(4, 2, 1)
    shapes = sharded_shapes(mesh, params)
    jaxpr_of = jax.jit(lambda tree: gather_matrices(mesh, tree, "bfloat16"))
    used = dict(named_leaves(jaxpr_of.lower(shapes).compile().output_shardings))
    for name, leaf in named_leaves(jax.eval_shape(jaxpr_of, shapes)):
        matrix = name.endswith("kernel") or name.split("/")[-2] == "embeddings"
        assert "data" not in axes_of(used[name]), name
        assert leaf.dtype == (jnp.bfloat16 if matrix else jnp.float32), name


def test_gradients_come_back_summed_in_pieces_and_in_float32(params) -> None:
    mesh = make_mesh(8, 1, 1)
    tree = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
    tree = jax.device_put(tree, tree_shardings(mesh, tree))

    def total(tree):
        gathered = gather_matrices(mesh, tree, "bfloat16")
        return sum(jnp.sum(leaf.astype(jnp.float32)) * 2 for leaf in jax.tree.leaves(gathered))

    for name, leaf in named_leaves(jax.jit(jax.grad(total))(tree)):
        assert leaf.dtype == jnp.float32 and (leaf == 2).all(), name


def test_the_layer_axis_is_never_split(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, sharding in shardings.items():
        if "blocks" in name:
            assert sharding.spec[0] is None, name


def test_rows_must_divide_over_devices_and_accumulation(params) -> None:
    mesh = make_mesh(4, 2, 1)
    check_mesh(mesh, 16, 2, params)
    with pytest.raises(ValueError, match=r"batch_size=24 .* 8 devices x accumulation=2"):
        check_mesh(mesh, 24, 2, params)


def test_a_dimension_must_divide_over_its_axis(params) -> None:
    wide = {"encoder": {"blocks": {"up": {"kernel": jax.ShapeDtypeStruct((2, 12, 48), "float32")}}}}
    with pytest.raises(ValueError, match="up/kernel has a dimension of 12"):
        check_mesh(make_mesh(1, 8, 1), 8, 1, wide)
