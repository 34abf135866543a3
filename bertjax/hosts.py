"""Several hosts: how they find each other, agree on numbers, and end when one of them is lost.

JAX's runtime ends a process at once, past all of Python, when another process is lost. What joins
other hosts therefore runs in a child, whose parent says in a sentence what happened.
"""

import ctypes
import dataclasses
import glob
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import jax
from jax.experimental import multihost_utils

from bertjax import RESTART, RunError

HEARTBEAT_SECONDS = 60  # a host that was silent for so long is lost
_JOIN_SECONDS = 300
_CHILD = "BERTJAX_CHILD"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """How this process finds the others.

    Attributes:
      coordinator: HOST:PORT at which the first process listens, or "" for JAX to find all out.
      hosts, host: how many processes there are, and which of them this is.
      devices: of this machine that are this process's; all for an empty tuple.
    """

    coordinator: str = ""
    hosts: int | None = None
    host: int | None = None
    devices: tuple[int, ...] = ()


def find_cluster(coordinator: str | None, hosts: int | None, host: int | None) -> Cluster | None:
    """The cluster that the arguments name, or the one around this process; None if it is alone.

    Cloud TPU, GKE and Slurm tell a process of the others.

    Raises:
      ValueError: the arguments are incomplete or contradict each other.
    """
    if (coordinator, hosts, host) != (None, None, None):
        if coordinator is None or hosts is None or host is None:
            raise ValueError("--coordinator, --hosts and --host go together: give all three.")
        if not 0 <= host < hosts:
            raise ValueError(f"--host={host} is none of --hosts={hosts}: count them from 0.")
        if not coordinator.rpartition(":")[2].isdigit():
            raise ValueError(f"--coordinator={coordinator} has no port: write HOST:PORT.")
        return Cluster(coordinator, hosts, host)
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        # A process a node has all of its GPUs; by itself JAX would give it one.
        alone = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0] == "1"
        gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", "0")) if alone else 0
        return Cluster(devices=tuple(range(gpus)))
    return Cluster() if _on_tpu() else None


def is_child() -> bool:
    """Whether this process is the child that `supervise` started."""
    return _CHILD in os.environ


def supervise(argv: Sequence[str]) -> int:
    """Runs the command line in a child process and returns its exit status.

    SIGTERM and SIGINT are passed on as SIGTERM. The child dies with this process. Where a signal
    ends the child, as JAX's runtime does when it loses another host, says so and gives `RESTART`.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *argv],
        env=os.environ | {_CHILD: str(os.getpid())},
        start_new_session=True,  # or a terminal would interrupt it a second time
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.send_signal(signal.SIGTERM))
    status = child.wait()
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    print(
        f"bertjax: this host's process was ended by {name}, as happens when another host is lost "
        "(the cause stands above, here or on that host): run the same command on all hosts to go "
        "on from the last checkpoint.",
        file=sys.stderr,
    )
    return RESTART


def join(cluster: Cluster | None) -> None:
    """Makes the processes of the cluster one program; to be called before JAX looks for devices.

    Raises:
      RunError: the others were not there in time.
    """
    if cluster is None:
        return
    if is_child():
        _die_with_parent()
    try:
        jax.distributed.initialize(
            cluster.coordinator or None,
            cluster.hosts,
            cluster.host,
            cluster.devices or None,
            cluster_detection_method="deactivate" if cluster.coordinator else None,
            initialization_timeout=_JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"the hosts did not come together in {_JOIN_SECONDS} s ({str(error).splitlines()[0]}): "
            "start the same command on every host."
        ) from error


def is_first() -> bool:
    """Whether this process is the one that writes what is written once."""
    return jax.process_index() == 0


def from_first(make: Callable[[], Sequence[int]], size: int) -> tuple[int, ...]:
    """The `size` integers, of 32 bits, that `make` gives on the first process, on all of them."""
    if jax.process_count() == 1:
        return tuple(make())
    mine = jax.numpy.asarray(make() if is_first() else [0] * size, jax.numpy.int32)
    return tuple(int(n) for n in multihost_utils.broadcast_one_to_all(mine))


def wait_for_all(what: str) -> None:
    """Returns once every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def _on_tpu() -> bool:
    """Whether TPUs are here and JAX is to use them."""
    wanted = "tpu" in (os.environ.get("JAX_PLATFORMS") or "tpu")
    chips = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return wanted and bool(chips) and importlib.util.find_spec("libtpu") is not None


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[_CHILD]):  # it died meanwhile
        os.kill(os.getpid(), signal.SIGKILL)
