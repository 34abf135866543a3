"""Memory of devices: limits, sizes of arrays and compiled functions, and failed allocations.

A CPU's arrays are in host memory, which a container or `ulimit -v` may limit for a process.
"""

import math
import os
import pathlib
import re
import resource
from collections.abc import Iterator, Sequence
from typing import Any

import jax

GIB = 2**30
_RESERVED_BYTES = GIB // 2  # of a process, for threads, batches and files

_REQUIRED_MEMORY = re.compile(r"Used ([\d.]+)([KMGT]) of|memory required[^(]*\(([\d.]+)([KMGT])\)")
_FAILED_ALLOCATION = re.compile(
    r"[Oo]ut of memory (?:while trying to allocate|allocating) (\d+) ?bytes"
)


def device_memory_limit(devices: Sequence[jax.Device]) -> int | None:
    """Return the bytes that arrays and programs may take on each device; None if unknown.

    For CPUs, memory that the process already uses is not available.
    """
    local = [device for device in devices if device.process_index == jax.process_index()]
    if local[0].platform == "cpu":
        return available_host_memory() // len(local)
    limit: int | None = (local[0].memory_stats() or {}).get("bytes_limit")
    return limit


def available_host_memory() -> int:
    """Return the bytes that this process may still allocate.

    The limit is the least of the machine's memory, its containers' limits and `ulimit -v`.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    limit = min([page * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])
    try:
        sizes = pathlib.Path("/proc/self/statm").read_text().split()
    except OSError:  # not Linux
        return limit
    available = limit - page * int(sizes[1])
    address_space = free_address_space()
    if address_space is not None:
        available = min(available, address_space)
    return max(available - _RESERVED_BYTES, 0)


def free_address_space() -> int | None:
    """Return the bytes of address space that `ulimit -v` leaves; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    return max(limit - os.sysconf("SC_PAGE_SIZE") * pages, 0)


def _cgroup_limits() -> Iterator[int]:
    """Yield the memory limits of this process's control groups."""
    try:
        groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = pathlib.Path("/sys/fs/cgroup") / ("memory" if controllers else "")
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        for directory in [group_dir := root / path.lstrip("/"), *group_dir.parents]:
            try:
                text = (directory / file).read_text().strip()
            except OSError:  # in a container its own group is the root
                continue
            if text.isdigit():
                yield int(text)


def shard_bytes(tree: Any) -> int:
    """Return the bytes per device of a tree of shapes with shardings, on the device with most."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the bytes per device of a compiled function, with its arguments and results."""
    memory: Any = compiled.memory_analysis()
    state = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    used: int = state + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return used


def failed_allocation_bytes(error: BaseException) -> int | None:
    """Return the bytes that an out-of-memory error of XLA names; None for another error.

    A compiler's error names all memory of the program, a run-time error the last allocation. VMEM,
    the memory of a TPU core, is not counted.
    """
    message = str(error)
    if "in memory space vmem" in message:
        return None
    if match := _FAILED_ALLOCATION.search(message):  # on CPUs with another status code
        return int(match[1])
    if "RESOURCE_EXHAUSTED" in message and (match := _REQUIRED_MEMORY.search(message)):
        number, unit = (part for part in match.groups() if part)
        return round(float(number) * 1024 ** (" KMGT".index(unit)))
    return None


def format_bytes(number: float) -> str:
    """Return a number of bytes as text, in GiB or MiB."""
    return f"{number / GIB:,.2f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.1f} MiB"
