"""Descriptions of NVIDIA GPUs, with which XLA compiles for a GPU that is not attached."""

import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A kind of GPU, after NVIDIA's data sheets and OpenXLA's target configurations.

    Attributes:
      device_kind: `jax.Device.device_kind`.
      memory_bytes: bytes of device memory.
      memory_bandwidth: bytes per second between a GPU and its memory.
      compute_capability: fields of the proto `CudaComputeCapability`, as text.
      core_count: number of streaming multiprocessors (SMs), which XLA calls cores.
      fpus_per_core: float32 units of an SM.
      threads_per_core: maximal number of resident threads of an SM.
      shared_memory_per_core: bytes of shared memory of an SM.
      reserved_shared_memory: bytes of them that a block cannot use.
      clock_rate_ghz: clock rate in GHz.
      l2_cache_size: bytes of L2 cache.
      link_bandwidth: bytes per second that a GPU sends to the other GPUs of its host.
      network_bandwidth: bytes per second that a GPU sends to other hosts, in common machines.
    """

    device_kind: str
    memory_bytes: int
    memory_bandwidth: float
    compute_capability: str
    core_count: int
    fpus_per_core: int
    threads_per_core: int
    shared_memory_per_core: int
    clock_rate_ghz: float
    l2_cache_size: int
    link_bandwidth: float
    network_bandwidth: float
    reserved_shared_memory: int = 1024

    @property
    def target_config(self) -> str:
        """XLA's `GpuTargetConfigProto` as text."""
        return f"""
gpu_device_info {{
  core_count: {self.core_count}
  fpus_per_core: {self.fpus_per_core}
  clock_rate_ghz: {self.clock_rate_ghz}
  device_memory_size: {self.memory_bytes}
  memory_bandwidth: {self.memory_bandwidth:.0f}
  l2_cache_size: {self.l2_cache_size}
  shared_memory_per_core: {self.shared_memory_per_core}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {self.shared_memory_per_core - self.reserved_shared_memory}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {self.threads_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  cuda_compute_capability {{ {self.compute_capability} }}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 8 }}
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{self.device_kind}"
"""


# XLA's name of sm_90a, with the instructions of Hopper alone.
_SM_90A = "major: 9 feature_extension: ACCELERATED_FEATURES"
_HOPPER = functools.partial(
    Gpu, compute_capability=_SM_90A, core_count=132, fpus_per_core=128, threads_per_core=2048,
    shared_memory_per_core=233472, clock_rate_ghz=1.98, l2_cache_size=52428800,
    link_bandwidth=4.5e11, network_bandwidth=5e10,
)  # fmt: skip
_A100 = functools.partial(
    Gpu, compute_capability="major: 8", core_count=108, fpus_per_core=64, threads_per_core=2048,
    shared_memory_per_core=167936, clock_rate_ghz=1.41, l2_cache_size=41943040,
    link_bandwidth=3e11, network_bandwidth=2.5e10,
)  # fmt: skip
_L4 = functools.partial(
    Gpu, compute_capability="major: 8 minor: 9", core_count=58, fpus_per_core=128,
    threads_per_core=1536, shared_memory_per_core=102400, clock_rate_ghz=2.04,
    l2_cache_size=50331648, link_bandwidth=3.2e10, network_bandwidth=1.5e9,
)  # fmt: skip

# Without bfloat16 units: XLA multiplies bfloat16 numbers in float32. Their blocks may use all
# shared memory. The links are those of NVIDIA's DGX-1 and -2, and of PCIe 3.0 for T4.
_V100 = functools.partial(
    Gpu, compute_capability="major: 7", core_count=80, fpus_per_core=64, threads_per_core=2048,
    shared_memory_per_core=98304, clock_rate_ghz=1.53, l2_cache_size=6291456,
    link_bandwidth=1.5e11, network_bandwidth=6.25e9, reserved_shared_memory=0,
)  # fmt: skip
_T4 = functools.partial(
    Gpu, compute_capability="major: 7 minor: 5", core_count=40, fpus_per_core=64,
    threads_per_core=1024, shared_memory_per_core=65536, clock_rate_ghz=1.59,
    l2_cache_size=4194304, link_bandwidth=1.6e10, network_bandwidth=1.5e9,
    reserved_shared_memory=0,
)  # fmt: skip

GPUS = {
    "h200": _HOPPER("NVIDIA H200", 151397597184, 4.8e12),
    "h100": _HOPPER("NVIDIA H100 80GB HBM3", 84942979072, 3.35232e12),
    "a100-80gb": _A100("NVIDIA A100-SXM4-80GB", 85100068864, 2.03904e12),
    "a100-40gb": _A100("NVIDIA A100-SXM4-40GB", 42331013120, 1.5552e12),
    "l4": _L4("NVIDIA L4", 23670554624, 3e11),
    "v100-32gb": _V100("Tesla V100-SXM2-32GB", 34072559616, 8.98048e11),
    "v100-16gb": _V100("Tesla V100-SXM2-16GB", 16945512448, 8.98048e11),
    "t4": _T4("Tesla T4", 15843721216, 3.2e11),
}
