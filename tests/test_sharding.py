"""The mesh and the table of rules."""

import jax
import jax.numpy as jnp
import pytest

from bertjax.heads import PretrainingModel
from bertjax.model import BertConfig
from bertjax.sharding import check_mesh, make_mesh, named_leaves, tree_shardings

CONFIG = BertConfig(
    vocab_size=100, num_layers=2, hidden_size=16, num_heads=4, max_positions=32, scan_layers=True
)


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 8), jnp.int32)
    names = ("token_ids", "type_ids", "pack_ids", "positions", "mlm_positions", "cls_positions")
    batch = dict.fromkeys(names, ids)
    model = PretrainingModel(CONFIG)
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
            assert {"fsdp", "model"} == set(shardings[name].spec[-2:]), name


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
