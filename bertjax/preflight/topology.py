"""Topologies by name, with the devices that only the compiler sees."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence

import jax

from bertjax.mesh.memory import GIB, available_host_memory
from bertjax.preflight.gpus import (
    GPUS,
    Gpu,
    MissingCompilerError,
    compile_only_devices,
    memory_fraction,
)
from data_pipelines.errors import InputError


@dataclasses.dataclass(frozen=True)
class Chip:
    """A kind of TPU chip, by its data sheet.

    Attributes:
      clock_hz: clock that reaches the peak rate of `flops.PEAK_FLOPS`.
      hbm_bytes: bytes of a device's memory that a program may use.
      hbm_bandwidth: bytes a second between a device and its memory.
      link_bandwidth: bytes a second that a link sends in one direction.
      min_torus_size: length from which an axis is a torus.
    """

    clock_hz: float
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    min_torus_size: int


CHIPS = {
    "v4": Chip(1.05e9, round(15.25 * GIB), 6.14e11, 4.5e10, 4),  # of two devices
    "v5e": Chip(1.5e9, round(15.75 * GIB), 8.19e11, 4.5e10, 16),
    "v5p": Chip(1.75e9, round(95.74 * GIB), 2.765e12, 9e10, 4),
    "v6e": Chip(1.75e9, round(31.25 * GIB), 1.64e12, 9e10, 16),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices that only the compiler sees, or CPU devices of this machine.

    Attributes:
      name: TPU chips such as "v5e:4x4", GPUs such as "h200:8", or "h100:2x8" for two hosts, or
        "cpu:8".
    """

    name: str

    @property
    def kind(self) -> str:
        """Kind of the devices, such as v5e."""
        return self.name.partition(":")[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(int(size) for size in self.name.partition(":")[2].split("x"))

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.shape)

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a device sends in simultaneous rings along all axes."""
        if self.gpu is not None:
            # In a ring through all GPUs, those of a host share the traffic to the next host.
            hosts, gpus_per_host = self.host_layout
            if hosts == 1:
                return self.gpu.link_bandwidth
            return min(self.gpu.link_bandwidth, gpus_per_host * self.gpu.network_bandwidth)
        if self.chip is None:
            return 0.0
        # On an axis that is no torus, a ring uses the links in both directions.
        ways = sum(2 if size >= self.chip.min_torus_size else 1 for size in self.shape if size > 1)
        return ways * self.chip.link_bandwidth

    @property
    def chip(self) -> Chip | None:
        """Chip of a TPU topology, None for others."""
        return CHIPS.get(self.kind)

    @property
    def gpu(self) -> Gpu | None:
        """GPU of a GPU topology, None for others."""
        return GPUS.get(self.kind)

    @property
    def host_layout(self) -> tuple[int, int]:
        """Numbers of hosts and of GPUs per host."""
        return (1, *self.shape)[-2:]  # type: ignore[return-value]

    @property
    def memory_bytes(self) -> int:
        """Bytes of a device that programs may use; for CPUs a share of the available memory."""
        if self.gpu is not None:
            return int(self.gpu.memory_bytes * memory_fraction())
        return self.chip.hbm_bytes if self.chip else available_host_memory() // self.chips

    def __post_init__(self) -> None:
        size = r"[1-9]\d*"
        kinds = {"cpu": size} | dict.fromkeys(CHIPS, rf"{size}(x{size})*")
        kinds |= dict.fromkeys(GPUS, rf"{size}(x{size})?")
        if not re.fullmatch(kinds.get(self.kind, "-"), self.name.partition(":")[2]):
            raise InputError(
                f"topology={self.name!r}: unknown. Use one such as v5e:4x4, v6e:8x8, "
                "v4:2x2x4, v5p:2x2x4, "
                f"{', '.join(f'{kind}:8' for kind in GPUS)}, h100:2x8 (two hosts) or cpu:8."
            )

    def devices(self) -> Sequence[jax.Device]:
        """Return the devices in the order of a mesh.

        Raises:
          MissingCompilerError: the extra `tpu` or `gpu-preflight` is not installed.
          InputError: the compiler does not know the topology.
        """
        if self.gpu is not None:
            return compile_only_devices(self.gpu, *self.host_layout)
        if self.chip is None:
            return self._cpu_devices()
        if importlib.util.find_spec("libtpu") is None:
            raise MissingCompilerError(
                f"topology={self.name}: the TPU compiler is not installed. Run "
                "pip install 'bertjax[tpu]'."
            )
        # The compiler must neither look for TPUs nor lock out other processes that compile.
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        # Silences a warning about the type of this machine, which does not affect topologies.
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        from jax.experimental import topologies

        try:
            description = topologies.get_topology_desc(platform="tpu", topology_name=self.name)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0].partition(": ")[2]
            raise InputError(f"topology={self.name}: {reason}. Use another shape.") from error
        return description.devices

    def _cpu_devices(self) -> Sequence[jax.Device]:
        with contextlib.suppress(RuntimeError):  # JAX may have devices already
            jax.config.update("jax_num_cpu_devices", self.chips)
        devices = jax.devices("cpu")
        if len(devices) < self.chips:
            raise InputError(
                f"topology={self.name}: JAX has {len(devices)} CPU devices. Set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={self.chips}."
            )
        return devices[: self.chips]
