"""The device, versions of the software, and yardsticks: a matrix product and a memory copy."""

import functools
import importlib.metadata
import platform
from collections.abc import Callable
from typing import Any

from experiments.bench import harness

PACKAGES = (
    "bertjax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "torch",
    "transformers",
)


def measure_device(record: Callable[..., None], toy: bool) -> None:
    """Record the device, the versions, TFLOP/s of a product in bfloat16 and GB/s of a copy."""
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    stats = device.memory_stats() or {}
    record(
        "device",
        device=device.device_kind,
        devices=jax.device_count(),
        runtime=device.client.platform_version,
        memory_limit_bytes=stats.get("bytes_limit"),
        versions=versions,
    )

    size = 256 if toy else 8192
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (size, size), jnp.bfloat16) for key in keys)
    seconds = _time(jax.jit(jnp.matmul), a, b)
    record("product", shape=[size] * 3, tflops=2 * size**3 / seconds / 1e12)

    x = jnp.zeros((2**16 if toy else 2**29,), jnp.float32)
    seconds = _time(jax.jit(jnp.negative), x)
    record("copy", bytes=x.nbytes, gigabytes_per_second=2 * x.nbytes / seconds / 1e9)


def _time(function: Callable[..., Any], *arguments: Any) -> float:
    import jax

    def work() -> object:
        return functools.partial(jax.block_until_ready, function(*arguments))

    return harness.median_seconds(work, calls=20)
