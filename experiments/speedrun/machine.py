"""The machine of a speedrun, as its record describes it."""

import datetime
import json
import pathlib
import platform
import subprocess
from importlib import metadata

from bertjax.version import __version__
from data_pipelines.parallel import usable_cores
from data_pipelines.paths import atomic_write_text

_CORES = 2  # of the class `cpu`


def reject_machine(device_class: str) -> str:
    """Return why a run on this machine is no record of a class, or ""."""
    cores = usable_cores()
    if device_class == "cpu" and cores != _CORES:
        return f"{cores} cores, not {_CORES}: on a larger machine start it with taskset -c 0,1."
    return ""


def is_one_gpu(devices: str) -> bool:
    """Return whether the devices of a run, such as "1 NVIDIA H200", are one GPU."""
    return devices.startswith("1 ") and not devices.endswith((" cpu", "TPU"))


def read_start(output: pathlib.Path) -> tuple[dict[str, object], list[str]]:
    """Return when and where a run was started, which is written at its start.

    Also returns the fields that differ now: such a run was resumed on another machine or commit.

    Args:
      output: directory of the run.
    """
    path, now = output / "start.json", describe_machine()
    if not path.exists():
        output.mkdir(parents=True, exist_ok=True)
        date = datetime.datetime.now(datetime.UTC)
        atomic_write_text(path, json.dumps({"date": f"{date:%Y-%m-%d}", **now}, indent=1) + "\n")
    start = json.loads(path.read_text())
    return start, [name for name, value in now.items() if start[name] != value]


def describe_machine() -> dict[str, object]:
    """Return the processor, the cores that this process may use, versions and commit."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "jaxlib": metadata.version("jaxlib"),
        "bertjax": __version__,
        "commit": _commit(),
    }


def _commit() -> str:
    """Return the commit of the source, "-dirty" behind it if files differ, or "" without git."""
    command = ["git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
