"""Memory of devices: how much there is, what arrays and programs take of it, and when it is short.

What a CPU computes lies in the memory of the machine, of which a container or `ulimit -v` may allow
a process less.
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
_RESERVED_BYTES = GIB // 2  # of a process, for threads, batches, and what is read and written

_REQUIRED_MEMORY = re.compile(r"Used ([\d.]+)([KMGT]) of|memory required[^(]*\(([\d.]+)([KMGT])\)")
_FAILED_ALLOCATION = re.compile(
    r"[Oo]ut of memory (?:while trying to allocate|allocating) (\d+) ?bytes"
)


def device_memory_limit(devices: Sequence[jax.Device]) -> int | None:
    """Bytes that arrays and programs may take on each of these devices; None where it is not known.

    Of a CPU what the process holds already is left out.
    """
    own = [device for device in devices if device.process_index == jax.process_index()]
    if own[0].platform == "cpu":
        return available_host_memory() // len(own)
    limit: int | None = (own[0].memory_stats() or {}).get("bytes_limit")
    return limit


def available_host_memory() -> int:
    """Bytes that arrays of this process may have besides what it has: of the machine, its
    containers and `ulimit -v`, what allows the least.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    limit = min([page * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()])
    try:
        sizes = pathlib.Path("/proc/self/statm").read_text().split()
    except OSError:  # no Linux
        return limit
    left = limit - page * int(sizes[1])
    addresses = free_address_space()
    if addresses is not None:
        left = min(left, addresses)
    return max(left - _RESERVED_BYTES, 0)


def free_address_space() -> int | None:
    """Bytes of addresses that `ulimit -v` leaves this process; None where it sets no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    return max(limit - os.sysconf("SC_PAGE_SIZE") * pages, 0)


def _cgroup_limits() -> Iterator[int]:
    """The limits of the control groups that this process is in."""
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
        for place in [own := root / path.lstrip("/"), *own.parents]:
            try:
                text = (place / file).read_text().strip()
            except OSError:  # a container sees its own groups as the root
                continue
            if text.isdigit():
                yield int(text)


def shard_bytes(tree: Any) -> int:
    """Bytes of a tree of shapes with shardings on the device that holds most of it."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def program_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes of a device that a program takes with all that it is given and gives."""
    memory: Any = compiled.memory_analysis()
    state = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    used: int = state + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    return used


def failed_allocation_bytes(error: BaseException) -> int | None:
    """Bytes for which there was no room, as an error of XLA says: of a program that its compiler
    refused all that it needs, else those that came last. None for another error.
    """
    message = str(error)
    if found := _FAILED_ALLOCATION.search(message):  # of a CPU the status is another one
        return int(found[1])
    if "RESOURCE_EXHAUSTED" in message and (found := _REQUIRED_MEMORY.search(message)):
        number, unit = (part for part in found.groups() if part)
        return round(float(number) * 1024 ** (" KMGT".index(unit)))
    return None


def format_bytes(number: float) -> str:
    """Bytes for a person."""
    return f"{number / GIB:,.2f} GiB" if number >= GIB / 10 else f"{number / 2**20:,.1f} MiB"
