"""Injected faults: their points, counts and actions."""

import pathlib
import re
import signal
import subprocess
import sys

import pytest

from bertjax import faults
from bertjax.faults import FAULT_ENV, POINTS, InjectedFaultError, fault_point, inject_fault
from data_pipelines.errors import InputError

PACKAGE = pathlib.Path(faults.__file__).parent
PASS_TWICE = """
from bertjax.faults import fault_point
for _ in range(2):
    fault_point("step.before_update")
print("passed")
"""


def run_with(fault: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PASS_TWICE],
        env={FAULT_ENV: fault, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_fault_point_does_nothing_by_default() -> None:
    for point in POINTS:
        fault_point(point)


def test_inject_fault_raises_at_the_given_count_only() -> None:
    with inject_fault("join:2=raise"):
        fault_point("step.before_update")
        fault_point("join")
        with pytest.raises(InjectedFaultError, match="fault injected at join"):
            fault_point("join")
        fault_point("join")
    fault_point("join")


def test_environment_variable_kills_the_process() -> None:
    killed = run_with("step.before_update:2=kill")
    assert killed.returncode == -signal.SIGKILL and not killed.stdout
    assert run_with("step.before_update:3=kill").stdout == "passed\n"


@pytest.mark.parametrize("spec", ["join", "join=stop", "join:0=raise", "elsewhere=raise", ""])
def test_inject_fault_rejects_an_invalid_specification(spec: str) -> None:
    with pytest.raises(InputError, match=f"{FAULT_ENV}={spec!r}: is not"), inject_fault(spec):
        pass


def test_every_point_is_placed_once() -> None:
    text = "".join(file.read_text("utf-8") for file in PACKAGE.rglob("*.py"))
    assert sorted(re.findall(r'fault_point\("([\w.]+)"\)', text)) == sorted(POINTS)
