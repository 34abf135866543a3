"""The device mesh: sizes of axes, and the arrangement of processes and chips."""

import dataclasses
import importlib.util
import itertools
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from conftest import process_environment

from bertjax.mesh.device_mesh import (
    bfloat16_warning,
    lacks_bfloat16,
    make_mesh,
    max_predict_sequences,
    split_batch,
)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)), ((1, 1, 8), (1, 1, 8))],
)
def test_make_mesh_gives_one_axis_the_remaining_devices(sizes, shape) -> None:
    assert tuple(make_mesh(*sizes).shape.values()) == shape


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, 3, 1), (-1, -1, 1), (0, 1, 8), (-1, 16, 1)])
def test_make_mesh_rejects_sizes_that_do_not_fit(sizes) -> None:
    with pytest.raises(ValueError, match="does not fit 8 devices"):
        make_mesh(*sizes)


@dataclasses.dataclass(frozen=True)
class Chip:
    """The attributes of a TPU device that a mesh reads."""

    id: int
    process_index: int
    coords: tuple[int, ...]
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"


def pod(width: int, height: int, slices: int = 1) -> list[Chip]:
    """Return the chips of slices; a process has 2 x 2 chips, numbered along the width first."""
    processes_wide, processes = width // 2, width * height // 4
    return [
        Chip(
            number * 100_000 + y * width + x,
            number * processes + y // 2 * processes_wide + x // 2,
            (x, y, 0),
        )
        for number in range(slices)
        for y, x in itertools.product(range(height), range(width))
    ]


PODS = [pod(2, 2), pod(4, 4), pod(8, 8), pod(4, 4, slices=2)]
POWERS = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 2), (2, 2), (4, 2), (1, 4), (4, 4)]
EVERY_MESH = [
    pytest.param(chips, fsdp, tensor, id=f"{len(chips)}-{fsdp}-{tensor}")
    for chips in PODS
    for fsdp, tensor in POWERS
    if fsdp * tensor <= len(chips)
]


def hops(one: Chip, other: Chip) -> int:
    """Return the links between two chips of a slice without wraparound."""
    return sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True))


@pytest.mark.parametrize(("chips", "fsdp", "tensor"), EVERY_MESH)
def test_make_mesh_gives_each_process_consecutive_sequences(chips, fsdp, tensor) -> None:
    devices = make_mesh(-1, fsdp, tensor, chips).devices
    shards = devices.reshape(-1, tensor)  # the devices of each batch shard
    processes = [{chip.process_index for chip in shard} for shard in shards]
    share = len(processes) * 4 // len(chips)
    assert processes == [{shard // share} for shard in range(len(processes))]


@pytest.mark.parametrize(("chips", "fsdp", "tensor"), EVERY_MESH)
def test_make_mesh_links_adjacent_devices_of_a_process(chips, fsdp, tensor) -> None:
    devices = make_mesh(-1, fsdp, tensor, chips[::-1]).devices
    for axis in range(3):
        lines = np.moveaxis(devices, axis, -1).reshape(-1, devices.shape[axis])
        for one, other in (pair for line in lines for pair in itertools.pairwise(line)):
            assert one.process_index != other.process_index or hops(one, other) == 1


@pytest.mark.parametrize(("chips", "fsdp", "tensor"), EVERY_MESH)
def test_make_mesh_arranges_the_devices_of_an_axis_in_a_grid(chips, fsdp, tensor) -> None:
    devices = make_mesh(-1, fsdp, tensor, chips).devices
    for axis in range(3):
        for line in np.moveaxis(devices, axis, -1).reshape(-1, devices.shape[axis]):
            coords = {chip.coords for chip in line}
            sides = [len(set(values)) for values in zip(*coords, strict=True)]
            assert len(coords) == np.prod(sides)


def test_make_mesh_arranges_processes_along_one_path() -> None:
    first, *_ = np.split(make_mesh(-1, 1, 1, pod(8, 8)).devices.ravel(), 4)
    assert all(hops(*pair) == 1 for pair in itertools.pairwise(first))


def test_make_mesh_arranges_devices_of_a_process_in_a_ring() -> None:
    for line in make_mesh(-1, 1, 4, pod(4, 4)).devices.reshape(-1, 4):
        assert all(hops(*pair) == 1 for pair in itertools.pairwise([*line, line[0]]))


@pytest.mark.parametrize(("fsdp", "tensor"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_make_mesh_keeps_both_devices_of_a_chip_together(fsdp, tensor) -> None:
    halves = [
        dataclasses.replace(chip, id=2 * chip.id + half) for chip in pod(4, 4) for half in (0, 1)
    ]
    for one, other in make_mesh(-1, fsdp, tensor, halves).devices.reshape(-1, 2):
        assert one.coords == other.coords


@pytest.mark.parametrize(
    ("platform", "capability", "lacks"),
    [
        *(("gpu", text, True) for text in ("6.0", "7.0", "7.5")),
        *(("gpu", text, False) for text in ("8.0", "8.9", "9.0", "10.0", "12.1", "gfx90a")),
        ("tpu", "", False),
        ("cpu", "", False),
    ],
)
def test_bfloat16_is_warned_of_on_nvidia_gpus_before_a100(platform, capability, lacks) -> None:
    device = SimpleNamespace(platform=platform, device_kind="X", compute_capability=capability)
    assert lacks_bfloat16(device) == lacks
    assert ("--config.model.dtype=float32" in bfloat16_warning("bfloat16", device)) == lacks
    assert not bfloat16_warning("float32", device)


@pytest.mark.parametrize(
    ("backend", "num_tokens", "per_device"),
    [
        ("cpu", 64, 16),
        ("cpu", 512, 16),
        ("gpu", 64, 512),
        ("gpu", 384, 64),
        ("tpu", 512, 64),
        ("tpu", 1 << 20, 1),
    ],
)
def test_batches_of_predictions_fill_every_device(
    monkeypatch, backend: str, num_tokens: int, per_device: int
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert max_predict_sequences(num_tokens, 8, on_cpu=16) == 8 * per_device
    assert max_predict_sequences(num_tokens, 6, on_cpu=16) == 4 * per_device


@pytest.mark.parametrize(
    ("num_sequences", "multiple", "sizes"),
    [
        (0, 1, []),
        (16, 1, [16]),
        (15, 1, [15]),  # an eighth of padding
        (14, 1, [14]),
        (13, 1, [8, 4, 1]),
        (9, 1, [8, 1]),
        (9, 8, [8, 1]),  # padded to 16 anyway
        (3, 8, [3]),
        (18, 4, [16, 2]),
    ],
)
def test_batches_with_much_padding_are_split_on_cpus(
    monkeypatch, num_sequences: int, multiple: int, sizes: list[int]
) -> None:
    assert split_batch(num_sequences, multiple) == sizes
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert split_batch(num_sequences, multiple) == [num_sequences][: min(num_sequences, 1)]


def test_make_mesh_keeps_the_order_of_devices_without_coordinates() -> None:
    assert make_mesh(2, 2, 2).devices.ravel().tolist() == jax.devices()


ROUTES = """
import os
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
import jax
from jax.experimental.topologies import get_topology_desc
from jax.sharding import PartitionSpec
from bertjax.mesh.device_mesh import make_mesh
for name, fsdp, tensor in [
    ("v5e:4x4", 4, 2), ("v5e:8x8", 1, 2), ("v5e:8x8", 1, 4), ("v5e:8x8", 8, 1), ("v5e:8x8", 2, 2),
    ("tpu7x:2x2x4", 4, 2),
]:
    mesh = make_mesh(-1, fsdp, tensor, get_topology_desc(name, "tpu").devices)
    sums = jax.shard_map(
        lambda x: [jax.lax.psum(x, axis) for axis in ("data", "fsdp", "tensor")],
        mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False,
    )
    jax.jit(sums).lower(jax.ShapeDtypeStruct((1024, 128), "float32")).compile()
    print(name)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler")
def test_tpu_compiler_routes_collectives_along_every_axis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROUTES],
        capture_output=True,
        text=True,
        env=process_environment() | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0 and len(done.stdout.split()) == 6, done.stderr
