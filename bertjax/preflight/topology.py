"""Topologies: devices by name, for compilation without them."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Sequence

import jax

from bertjax.errors import CommandError
from bertjax.mesh.memory import GIB, available_host_memory
from bertjax.preflight.gpus import GPUS, Gpu
from data_pipelines.errors import InputError


@dataclasses.dataclass(frozen=True)
class TpuChip:
    """A kind of TPU chip, after Google's documentation.

    Attributes:
      clock_hz: clock rate at which the chip reaches its peak of `flops.PEAK_FLOPS`.
      memory_bytes: bytes of HBM that a program may use on a device of the compiler.
      memory_bandwidth: bytes per second between such a device and its HBM.
      link_bandwidth: bytes per second of one link in one direction.
      min_torus_size: smallest size of an axis whose ends are linked.
      devices: devices of a chip in `flops.PEAK_FLOPS`.
      product_overcharge: largest ratio of the cycles that the compiler's cost model charges for a
        large bfloat16 product to those of its schedule and of the peak, whichever are more
        (docs/performance.md); 1 where the model is taken as it is.
    """

    clock_hz: float
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    min_torus_size: int
    devices: int = 1
    product_overcharge: float = 1.0


TPUS = {
    # A device is one of the two cores of a chip, which has half of its memory and bandwidth, and
    # as on TPU7x the links of the chip (Jouppi et al. 2020, A Domain-Specific Supercomputer, and
    # docs.cloud.google.com/tpu/docs/v3). Only a whole pod is a torus: 16x16 chips, 32x32 of v3.
    # The compiler leaves 7.48 and 15.48 GiB.
    "v2": TpuChip(7e8, round(7.48 * GIB), 3.5e11, 6.2e10, 16, devices=2),
    "v3": TpuChip(9.4e8, round(15.48 * GIB), 4.5e11, 8.2e10, 32, devices=2),
    "v4": TpuChip(1.05e9, round(15.25 * GIB), 6.14e11, 4.5e10, 4),  # of one of two devices
    "v5e": TpuChip(1.5e9, round(15.75 * GIB), 8.19e11, 4.5e10, 16),
    "v5p": TpuChip(1.75e9, round(95.74 * GIB), 2.765e12, 9e10, 4),
    "v6e": TpuChip(1.75e9, round(31.25 * GIB), 1.64e12, 9e10, 16, product_overcharge=2.5),
    # A device is half a chip, which has 192 GiB, 7,380 GB/s and links as fast as those of v5p
    # (docs.cloud.google.com/tpu/docs/tpu7x). A ring passes both halves before it leaves the chip,
    # so each sends with the bandwidth of the links. The compiler leaves 94.75 GiB.
    "tpu7x": TpuChip(
        *(2.2e9, round(94.75 * GIB), 3.69e12, 9e10, 4), devices=2, product_overcharge=1.8
    ),
}

_MAX_CPUS, _MAX_CHIPS = 4096, 65_536
_GPU_COMPILER_MODULES = ("jax_cuda12_plugin", "jax_plugins.xla_cuda12", "nvidia.cuda_nvcc")


class MissingCompilerError(CommandError):
    """The compiler for a topology is not installed."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices of one kind in a shape.

    Attributes:
      name: "v5e:4x4" for TPUs, "h200:8" for GPUs of one host, "h100:2x8" for two hosts with eight
        GPUs each, "cpu:8" for devices of this machine.

    Raises:
      InputError: the name has another form.
    """

    name: str

    def __post_init__(self) -> None:
        size = r"[1-9]\d*"
        shapes = {"cpu": size} | dict.fromkeys(TPUS, rf"{size}(x{size})*")
        shapes |= dict.fromkeys(GPUS, rf"{size}(x{size})?")
        if not re.fullmatch(shapes.get(self.kind, "-"), self.name.partition(":")[2]):
            raise InputError(
                f"topology={self.name}: unknown. Use one such as v5e:4x4, v6e:8x8, v2:4x4, v3:4x4, "
                f"v4:2x2x4, v5p:2x2x4, tpu7x:2x2x4, {', '.join(f'{kind}:8' for kind in GPUS)}, "
                "h100:2x8 (two hosts) or cpu:8."
            )

        if self.chips > (largest := _MAX_CPUS if self.kind == "cpu" else _MAX_CHIPS):
            raise InputError(f"topology={self.name}: too large. Use at most {largest:,} devices.")

    @property
    def kind(self) -> str:
        """Kind of the devices, such as "v5e"."""
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
    def tpu(self) -> TpuChip | None:
        """The TPU chip, None for other devices."""
        return TPUS.get(self.kind)

    @property
    def gpu(self) -> Gpu | None:
        """The GPU, None for other devices."""
        return GPUS.get(self.kind)

    @property
    def host_layout(self) -> tuple[int, int]:
        """Number of hosts and GPUs per host."""
        return (1, *self.shape)[-2:]  # type: ignore[return-value]

    @property
    def memory_bytes(self) -> int:
        """Bytes per device that programs may use."""
        if self.gpu is not None:
            # The share that JAX allocates by default.
            share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))
            return int(self.gpu.memory_bytes * share)
        return self.tpu.memory_bytes if self.tpu else available_host_memory() // self.chips

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a device sends in rings along all axes at once; 0 for CPUs."""
        if self.gpu is not None:
            # In a ring through all hosts the GPUs of a host share the traffic to the next host.
            hosts, gpus_per_host = self.host_layout
            network = gpus_per_host * self.gpu.network_bandwidth
            return min(self.gpu.link_bandwidth, network) if hosts > 1 else self.gpu.link_bandwidth
        if self.tpu is None:
            return 0.0
        # On an axis without a torus a ring returns over the same links.
        links = sum(2 if size >= self.tpu.min_torus_size else 1 for size in self.shape if size > 1)
        return links * self.tpu.link_bandwidth

    def devices(self) -> Sequence[jax.Device]:
        """Return the devices; TPUs and GPUs are known to the compiler alone.

        The GPUs of this process are taken if they are those of the topology.

        Raises:
          MissingCompilerError: the extra `tpu` or `gpu-preflight` is not installed.
          InputError: the compiler does not know the topology.
        """
        if self.gpu is not None:
            return self._gpu_devices(self.gpu)
        return self._cpu_devices() if self.tpu is None else self._tpu_devices()

    def _gpu_devices(self, gpu: Gpu) -> Sequence[jax.Device]:
        attached = jax.devices() if jax.default_backend() == "gpu" else []
        if [device.device_kind for device in attached] == [gpu.device_kind] * self.chips:
            return attached
        if not has_gpu_compiler():
            raise MissingCompilerError(
                f"topology={self.name}: the GPU compiler is not installed. "
                "Run `pip install 'bertjax[gpu-preflight]'`."
            )
        from jax.experimental import topologies

        hosts, gpus_per_host = self.host_layout
        return topologies.get_topology_desc(
            platform="cuda",
            topology_name=gpu.device_kind,
            topology=f"1x{hosts}x{gpus_per_host}",
            target_config=gpu.target_config,
        ).devices

    def _tpu_devices(self) -> Sequence[jax.Device]:
        if not _is_importable("libtpu"):
            raise MissingCompilerError(
                f"topology={self.name}: the TPU compiler is not installed. "
                "Run `pip install 'bertjax[tpu]'`."
            )
        # The compiler would otherwise search for TPUs and fail beside another process with libtpu.
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        # Avoids a warning; any type works, since topologies do not depend on it.
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        from jax.experimental import topologies

        try:
            return topologies.get_topology_desc(platform="tpu", topology_name=self.name).devices
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0].partition(": ")[2]
            raise InputError(
                f"topology={self.name}: the TPU compiler does not know it ({reason}). "
                "Use the shape of a slice that exists."
            ) from error

    def _cpu_devices(self) -> Sequence[jax.Device]:
        with contextlib.suppress(RuntimeError):  # the devices may be initialized already
            jax.config.update("jax_num_cpu_devices", self.chips)
        devices = jax.devices("cpu")
        if len(devices) < self.chips:
            raise InputError(
                f"topology={self.name}: this process has {len(devices)} CPU devices. "
                f"Set XLA_FLAGS=--xla_force_host_platform_device_count={self.chips}."
            )
        return devices[: self.chips]


def has_gpu_compiler() -> bool:
    """Return whether the extra `gpu-preflight` is installed."""
    return all(map(_is_importable, _GPU_COMPILER_MODULES))


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
