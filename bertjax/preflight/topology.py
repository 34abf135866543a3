"""Accelerators that only a compiler sees: topologies by name, and what their chips can do."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence

import jax

from bertjax.mesh.memory import GIB, available_host_memory
from bertjax.preflight.gpus import GPUS, Gpu, NoCompiler, compile_only_devices, memory_fraction
from data_pipelines.errors import InputError


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of chip, as its maker describes it.

    Attributes:
      hz: clock, at which the peak operations a second (`flops.PEAKS`) are reached.
      hbm: bytes of memory of a device that a program may use.
      hbm_bandwidth: bytes a second between a device and its memory.
      link: bytes a second that one link sends in one direction.
      wraps: devices along an axis from which on its ends are linked to each other.
    """

    clock_hz: float
    hbm_bytes: int
    hbm_bandwidth: float
    link: float
    min_torus_size: int


CHIPS = {
    "v4": Chip(1.05e9, round(15.25 * GIB), 6.14e11, 4.5e10, 4),  # of two devices
    "v5e": Chip(1.5e9, round(15.75 * GIB), 8.19e11, 4.5e10, 16),
    "v5p": Chip(1.75e9, round(95.74 * GIB), 2.765e12, 9e10, 4),
    "v6e": Chip(1.75e9, round(31.25 * GIB), 1.64e12, 9e10, 16),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices that only the compiler sees: chips as "v5e:4x4", GPUs as "h200:8" or, of two hosts,
    "h100:2x8"; or "cpu:8" for devices of this machine.
    """

    name: str

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.name.partition(":")[2].split("x"))

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a device sends in rings along every axis at once."""
        if self.gpu is not None:
            # In a ring through all of them each host's GPUs share what goes to the next host.
            hosts, each = self.hosts
            return (
                min(self.gpu.link, each * self.gpu.network_bandwidth)
                if hosts > 1
                else self.gpu.link
            )
        if self.chip is None:
            return 0.0
        # Where an axis does not wrap, a ring goes there and back over the same links.
        ways = sum(2 if size >= self.chip.min_torus_size else 1 for size in self.shape if size > 1)
        return ways * self.chip.link

    @property
    def chip(self) -> Chip | None:
        """None where it is no TPU."""
        return CHIPS.get(self.kind)

    @property
    def gpu(self) -> Gpu | None:
        """None where it is no GPU."""
        return GPUS.get(self.kind)

    @property
    def hosts(self) -> tuple[int, int]:
        """Of GPUs: how many hosts, and how many GPUs each has."""
        return (1, *self.shape)[-2:]  # type: ignore[return-value]

    @property
    def memory(self) -> int:
        """Bytes of a device that programs may use; of this machine its share of what there is."""
        if self.gpu is not None:
            return int(self.gpu.memory * memory_fraction())
        return self.chip.hbm_bytes if self.chip else available_host_memory() // self.chips

    def __post_init__(self) -> None:
        size = r"[1-9]\d*"
        kinds = {"cpu": size} | dict.fromkeys(CHIPS, rf"{size}(x{size})*")
        kinds |= dict.fromkeys(GPUS, rf"{size}(x{size})?")
        if not re.fullmatch(kinds.get(self.kind, "-"), self.name.partition(":")[2]):
            raise InputError(
                f"topology {self.name!r} is unknown: write one such as v5e:4x4, v6e:8x8, "
                "v4:2x2x4, v5p:2x2x4, "
                f"{', '.join(f'{kind}:8' for kind in GPUS)}, h100:2x8 (two hosts) or cpu:8."
            )

    def devices(self) -> Sequence[jax.Device]:
        """The devices, in the order of a mesh.

        Raises:
          NoCompiler: for a TPU, the extra `tpu` is not installed; for a GPU, `gpu-preflight`.
          InputError: there is no such topology.
        """
        if self.gpu is not None:
            return compile_only_devices(self.gpu, *self.hosts)
        if self.chip is None:
            return self._cpu_devices()
        if importlib.util.find_spec("libtpu") is None:
            raise NoCompiler(
                f"{self.name} needs the TPU compiler, which is not installed: "
                "pip install 'bertjax[tpu]'."
            )
        # The compiler must not look for TPUs here, nor mind another process that compiles.
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        # Nor complain that it does not know where it runs, which topologies do not depend on.
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        from jax.experimental import topologies

        try:
            found = topologies.get_topology_desc(platform="tpu", topology_name=self.name)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0].partition(": ")[2]
            raise InputError(f"there is no topology {self.name}: {reason}.") from error
        return found.devices

    def _cpu_devices(self) -> Sequence[jax.Device]:
        with contextlib.suppress(RuntimeError):  # they may have been set up already
            jax.config.update("jax_num_cpu_devices", self.chips)
        devices = jax.devices("cpu")
        if len(devices) < self.chips:
            raise InputError(f"{self.name} asks for more than the {len(devices)} devices set up.")
        return devices[: self.chips]
