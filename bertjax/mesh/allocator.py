"""Memory of a host that computes itself: what is freed stays with the process."""

import ctypes
import sys

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Lets the next step have the pages of the last one.

    glibc gives what is freed back to the system where it is large, and a step's arrays are: every
    step would wait until the system has cleared their pages anew, a tenth to a quarter of its time.
    Threads that there are by then go on to do so with what is over 64 MiB, for they have a place of
    their own to take memory from: best called before there are any. Does nothing without glibc.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.mallopt(_M_ARENA_MAX, 1)
