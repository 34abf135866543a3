"""The mesh and the table of rules."""

import dataclasses
import importlib.util
import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import process_environment

from bertjax.mesh.sharding import (
    check_mesh,
    gather_matrices,
    make_mesh,
    named_leaves,
    sharded_shapes,
    stack_layers,
    tree_shardings,
)
from bertjax.model.bert import BertWithHeads
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
    ids = jnp.zeros((1, 8), jnp.int32)
    names = (
        "input_ids",
        "token_type_ids",
        "example_ids",
        "position_ids",
        "masked_lm_positions",
        "cls_positions",
    )
    batch = dict.fromkeys(names, ids)
    model = BertWithHeads(CONFIG, ("mlm", "nsp"))
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


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a TPU's device says of its place."""

    id: int
    process_index: int
    coords: tuple[int, ...]
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


def pod(width: int, height: int, slices: int = 1) -> list[Chip]:
    """Slices of so many chips, of which a host has 2 x 2, numbered along the width first."""
    hosts_wide, hosts = width // 2, width * height // 4
    return [
        Chip(
            number * 100_000 + y * width + x,
            number * hosts + y // 2 * hosts_wide + x // 2,
            (x, y, 0),
        )
        for number in range(slices)
        for y, x in itertools.product(range(height), range(width))
    ]


PODS = [pod(2, 2), pod(4, 4), pod(8, 8), pod(4, 4, slices=2)]
POWERS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 2), (2, 2), (4, 2), (1, 4), (4, 4)]
EVERY_MESH = [
    pytest.param(chips, fsdp, model, id=f"{len(chips)}-{fsdp}-{model}")
    for chips in PODS
    for fsdp, model in POWERS
    if fsdp * model <= len(chips)
]


def hops(one: Chip, other: Chip) -> int:
    """Links between two chips of a slice that is too small to wrap."""
    return sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True))


@pytest.mark.parametrize(("chips", "fsdp", "model"), EVERY_MESH)
def test_a_host_holds_the_rows_of_its_number(chips, fsdp, model) -> None:
    devices = make_mesh(-1, fsdp, model, chips).devices
    of_rows = devices.reshape(-1, model)  # the devices of each part of the rows
    hosts = [{chip.process_index for chip in part} for part in of_rows]
    share = len(hosts) * 4 // len(chips)
    assert hosts == [{part // share} for part in range(len(hosts))]


@pytest.mark.parametrize(("chips", "fsdp", "model"), EVERY_MESH)
def test_within_a_host_neighbours_along_an_axis_are_linked(chips, fsdp, model) -> None:
    devices = make_mesh(-1, fsdp, model, chips[::-1]).devices
    for axis in range(3):
        lines = np.moveaxis(devices, axis, -1).reshape(-1, devices.shape[axis])
        for one, other in (pair for line in lines for pair in itertools.pairwise(line)):
            assert one.process_index != other.process_index or hops(one, other) == 1


@pytest.mark.parametrize(("chips", "fsdp", "model"), EVERY_MESH)
def test_the_devices_along_an_axis_are_a_grid_of_the_slice(chips, fsdp, model) -> None:
    devices = make_mesh(-1, fsdp, model, chips).devices
    for axis in range(3):
        for line in np.moveaxis(devices, axis, -1).reshape(-1, devices.shape[axis]):
            within = {chip.coords for chip in line}
            sides = [len(set(along)) for along in zip(*within, strict=True)]
            assert len(within) == np.prod(sides)


def test_a_row_of_hosts_is_one_path() -> None:
    first, *_ = np.split(make_mesh(-1, 1, 1, pod(8, 8)).devices.ravel(), 4)
    assert all(hops(*pair) == 1 for pair in itertools.pairwise(first))


def test_a_host_s_devices_make_a_ring() -> None:
    for line in make_mesh(-1, 1, 4, pod(4, 4)).devices.reshape(-1, 4):
        assert all(hops(*pair) == 1 for pair in itertools.pairwise([*line, line[0]]))


def test_what_has_no_place_keeps_its_order() -> None:
    assert make_mesh(2, 2, 2).devices.ravel().tolist() == jax.devices()


ROUTES = """
import os
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
import jax
from jax.experimental.topologies import get_topology_desc
from jax.sharding import PartitionSpec
from bertjax.mesh.sharding import make_mesh
for name, fsdp, model in [
    ("v5e:4x4", 4, 2), ("v5e:8x8", 1, 2), ("v5e:8x8", 1, 4), ("v5e:8x8", 8, 1), ("v5e:8x8", 2, 2)
]:
    mesh = make_mesh(-1, fsdp, model, get_topology_desc(name, "tpu").devices)
    sums = jax.shard_map(
        lambda x: [jax.lax.psum(x, axis) for axis in ("data", "fsdp", "tensor")],
        mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False,
    )
    jax.jit(sums).lower(jax.ShapeDtypeStruct((1024, 128), "float32")).compile()
    print(name)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler")
def test_the_tpu_compiler_finds_a_route_along_every_axis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROUTES],
        capture_output=True,
        text=True,
        env=process_environment() | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0 and len(done.stdout.split()) == 5, done.stderr


def test_every_matrix_of_a_block_is_split_over_both_axes(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, _ in named_leaves(params):
        if "blocks" in name and name.endswith("kernel"):
            assert sorted(axes_of(shardings[name])) == ["data", "fsdp", "model"], name


def test_what_the_data_axis_does_not_divide_is_whole_on_each_of_its_devices(params) -> None:
    mesh = make_mesh(3, 2, 1, jax.devices()[:6])
    check_mesh(mesh, params)
    for name, sharding in named_leaves(tree_shardings(mesh, params)):
        assert "data" not in axes_of(sharding), name


@pytest.mark.parametrize("per_layer", [False, True])
def test_a_step_computes_with_matrices_that_are_whole_over_the_data_axis(params, per_layer) -> None:
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
def test_gradients_come_back_summed_in_pieces_and_in_float32(params, per_layer) -> None:
    mesh = make_mesh(8, 1, 1)
    tree = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
    tree = jax.device_put(tree, tree_shardings(mesh, tree))

    def total(tree):
        gathered = gather_matrices(mesh, tree, "bfloat16", per_layer=per_layer)
        return sum(jnp.sum(leaf.astype(jnp.float32)) * 2 for leaf in jax.tree.leaves(gathered))

    for name, leaf in named_leaves(jax.jit(jax.grad(total))(tree)):
        assert leaf.dtype == jnp.float32 and (leaf == 2).all(), name


def test_the_layer_axis_is_never_split(params) -> None:
    shardings = dict(named_leaves(tree_shardings(make_mesh(1, 4, 2), params)))
    for name, sharding in shardings.items():
        if "blocks" in name:
            assert sharding.spec[0] is None, name


def test_a_dimension_must_divide_over_its_axis(params) -> None:
    wide = {"encoder": {"blocks": {"up": {"kernel": jax.ShapeDtypeStruct((2, 12, 48), "float32")}}}}
    with pytest.raises(ValueError, match="up/kernel has a dimension of 12"):
        check_mesh(make_mesh(1, 8, 1), wide)
