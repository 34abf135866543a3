"""NVIDIA's GPUs as the compiler has to be told of them, where there is none to ask."""

import dataclasses
import importlib.util
import os
from collections.abc import Sequence

import jax

from bertjax.errors import RunError


class NoCompiler(RunError):
    """The compiler for the topology is not installed."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A kind of GPU, as its maker describes it and as OpenXLA's target configurations have it.

    Attributes:
      description: its `device_kind`.
      capability: of CUDA, as the text of the compiler's message.
      cores: streaming multiprocessors; the next three are of each.
      memory: bytes, of which JAX takes a share.
      bandwidth: bytes a second between a GPU and its memory.
      cache: bytes, of the second level.
      link: bytes a second that a GPU sends to those of its host.
      network: bytes a second that a GPU sends to other hosts, as such machines are built.
    """

    description: str
    capability: str
    cores: int
    lanes: int
    threads: int
    shared_memory_per_core: int
    clock: float
    memory: int
    bandwidth: float
    cache: int
    link: float
    network_bandwidth: float

    @property
    def target_config(self) -> str:
        """The compiler's `GpuTargetConfigProto`, as text."""
        return f"""
gpu_device_info {{
  core_count: {self.cores}
  fpus_per_core: {self.lanes}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  memory_bandwidth: {self.bandwidth:.0f}
  l2_cache_size: {self.cache}
  shared_memory_per_core: {self.shared_memory_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {self.shared_memory_per_core - 1024}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {self.threads}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  cuda_compute_capability {{ {self.capability} }}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 8 }}
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.description}"
"""


_HOPPER = "major: 9 feature_extension: ACCELERATED_FEATURES", 132, 128, 2048, 233472, 1.98
_AMPERE = "major: 8", 108, 64, 2048, 167936, 1.41
_ADA = "major: 8 minor: 9", 58, 128, 1536, 102400, 2.04

GPUS = {
    "h200": Gpu("NVIDIA H200", *_HOPPER, 151397597184, 4.8e12, 52428800, 4.5e11, 5e10),
    "h100": Gpu("NVIDIA H100 80GB HBM3", *_HOPPER, 84942979072, 3.35232e12, 52428800, 4.5e11, 5e10),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", *_AMPERE, 85100068864, 2.03904e12, 41943040, 3e11, 2.5e10
    ),
    "a100-40gb": Gpu(
        "NVIDIA A100-SXM4-40GB", *_AMPERE, 42331013120, 1.5552e12, 41943040, 3e11, 2.5e10
    ),
    "l4": Gpu("NVIDIA L4", *_ADA, 23670554624, 3e11, 50331648, 3.2e10, 1.5e9),
}

_WHEELS = ("jax_cuda12_plugin", "jax_plugins.xla_cuda12", "nvidia.cuda_nvcc")


def memory_fraction() -> float:
    """Of a GPU's memory that JAX gives itself, unless the environment tells it otherwise."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))


def compile_only_devices(gpu: Gpu, hosts: int, each: int) -> Sequence[jax.Device]:
    """The GPUs of so many hosts with so many each, which only the compiler sees.

    Raises:
      NoCompiler: the extra `gpu-preflight` is not installed.
    """
    if not has_gpu_compiler():
        raise NoCompiler(
            f"{gpu.description} needs the GPU compiler, which is not installed: "
            "pip install 'bertjax[gpu-preflight]'."
        )
    from jax.experimental import topologies

    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=gpu.description,
        topology=f"1x{hosts}x{each}",
        target_config=gpu.target_config,
    ).devices


def has_gpu_compiler() -> bool:
    """Whether what compiles for GPUs is installed."""
    return all(_is_importable(name) for name in _WHEELS)


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of what it lies in
        return False
