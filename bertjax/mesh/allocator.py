"""Memory of a process that computes on CPUs: freed memory stays with the process."""

import ctypes
import sys

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Reuse the pages of one step for the next.

    glibc returns large freed blocks to the system, and the system clears their pages again for
    every step: a tenth to a quarter of a step's time. Call it before threads are started: threads
    that exist already keep returning blocks over 64 MiB, as they have arenas of their own. Does
    nothing without glibc.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.mallopt(_M_ARENA_MAX, 1)
