"""A process that computes on CPUs keeps the memory that it frees."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
import numpy as np
from bertjax.mesh.allocator import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

def steps():
    for _ in range(3):
        block = np.ones(25 << 20)
        del block

if "keep" in sys.argv:
    keep_freed_memory()
before = resident()
if "thread" in sys.argv:
    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
else:
    steps()
print(resident() - before)
"""


@pytest.mark.seconds
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, where memory is glibc's")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_keep_freed_memory_reuses_a_freed_block(where) -> None:
    freed, kept = (
        int(subprocess.check_output([sys.executable, "-c", PROGRAM, where, option]))
        for option in ("", "keep")
    )
    assert freed < 50 < 150 < kept < 300  # MiB, of a block of 200
