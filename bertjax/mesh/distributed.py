"""Several hosts: how they find each other, agree on numbers, and end when one of them is lost.

JAX's runtime ends a process at once, past all of Python, when another process is lost. What joins
other hosts therefore runs in a child, whose parent says in a sentence what happened.
"""

import ctypes
import dataclasses
import glob
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

import jax
from jax.experimental import multihost_utils

from bertjax.errors import CHILD_ENV, EXIT_RESTART, RunError
from bertjax.faults import fault_point
from data_pipelines.errors import InputError

HEARTBEAT_SECONDS = 60  # a host that was silent for so long is lost
_INITIALIZATION_TIMEOUT_SECONDS = 300
_BARRIER_TIMEOUT_SECONDS = (
    3600  # between the first and the last host, when one of them compiles or copies
)
_barrier_ids = itertools.count()
# What ends a process when another one is lost, when memory is short, and when the machine goes.
_EXTERNAL_SIGNALS = {signal.SIGABRT, signal.SIGKILL, signal.SIGTERM}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """How this process finds the others.

    Attributes:
      coordinator: HOST:PORT at which the first process listens, or "" for JAX to find all out.
      hosts, host: how many processes there are, and which of them this is.
      devices: of this machine that are this process's; all for an empty tuple.
      optional: whether a process to which JAX finds no others goes on alone.
    """

    coordinator_address: str = ""
    hosts: int | None = None
    host: int | None = None
    devices: tuple[int, ...] = ()
    allow_single_process: bool = False


def find_cluster(
    coordinator_address: str | None, hosts: int | None, host: int | None
) -> Cluster | None:
    """The cluster that the arguments name, or the one around this process; None if it is alone.

    Cloud TPU, GKE and Slurm tell a process of the others.

    Raises:
      InputError: the arguments are incomplete or contradict each other.
    """
    if (coordinator_address, hosts, host) != (None, None, None):
        if coordinator_address is None or hosts is None or host is None:
            raise InputError(
                "--coordinator-address, --num-processes and --host go together: give all three."
            )
        if not 0 <= host < hosts:
            raise InputError(
                f"--host={host} is none of --num-processes={hosts}: count them from 0."
            )
        if not coordinator_address.rpartition(":")[2].isdigit():
            raise InputError(
                f"--coordinator-address={coordinator_address} has no port: write HOST:PORT."
            )
        return Cluster(coordinator_address, hosts, host)
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        # A process a node has all of its GPUs; by itself JAX would give it one.
        alone = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0] == "1"
        gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", "0")) if alone else 0
        return Cluster(devices=tuple(range(gpus)))
    return Cluster(allow_single_process=True) if on_tpu() else None


def on_tpu() -> bool:
    """Whether TPUs are here and JAX is to use them."""
    wanted = "tpu" in (os.environ.get("JAX_PLATFORMS") or "tpu")
    chips = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return wanted and bool(chips) and importlib.util.find_spec("libtpu") is not None


def is_child() -> bool:
    """Whether this process is the child that `run_in_child` started."""
    return CHILD_ENV in os.environ


def run_in_child(argv: Sequence[str]) -> int:
    """Runs the command line in a child process and returns its exit status.

    SIGTERM and SIGINT are passed on as SIGTERM, a second SIGINT as SIGKILL. The child dies with
    this process. Where a signal ends the child, says so; the status is `EXIT_RESTART` after one such as
    JAX's runtime sends when it loses another host, and 1 after one of a fault in the program.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *argv],
        env=os.environ | {CHILD_ENV: str(os.getpid())},
        start_new_session=True,  # or a terminal would interrupt it a second time
    )
    # Who else is told of signals would end this process in a moment, and the child must save first.
    signal.set_wakeup_fd(-1)
    interrupts = iter([signal.SIGTERM])
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: child.send_signal(next(interrupts, signal.SIGKILL)))
    status = child.wait()
    if status >= 0:
        return status
    ended = f"bertjax: this host's process was ended by {signal.Signals(-status).name}"
    if -status not in _EXTERNAL_SIGNALS:
        print(f"{ended}, a fault of the program or the machine.", file=sys.stderr)
        return 1
    print(
        f"{ended}, as happens when another host is lost (the cause stands above, here or on that "
        "host) or a machine has no memory left: run the same command on all hosts to go on from "
        "the last checkpoint.",
        file=sys.stderr,
    )
    return EXIT_RESTART


def run_child(run: Callable[[], int]) -> int:
    """The exit status of `run`, in a child of `run_in_child`; ends the process where `run` failed.

    At its exit JAX waits for the other hosts, which wait for this one in the midst of a step, until
    it aborts. Only where the failure may be the loss of another host is that left to JAX.
    """
    try:
        status = run()
    except jax.errors.JaxRuntimeError:
        raise
    except Exception:
        traceback.print_exc()
        status = 1
    if status not in (0, EXIT_RESTART):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def join(cluster: Cluster | None, handles_preemption: bool) -> None:
    """Makes the processes of the cluster one program; to be called before JAX looks for devices.

    Args:
      saves: whether the program will ask `stop_signals`; otherwise SIGTERM ends it at once.
    Raises:
      RunError: the others were not there in time.
    """
    if cluster is None:
        return
    if is_child():
        _die_with_parent()
    fault_point("join")
    jax.config.update("jax_enable_preemption_service", handles_preemption)
    try:
        jax.distributed.initialize(
            cluster.coordinator_address or None,
            cluster.hosts,
            cluster.host,
            cluster.devices or None,
            cluster_detection_method="deactivate" if cluster.coordinator_address else None,
            initialization_timeout=_INITIALIZATION_TIMEOUT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        if cluster.allow_single_process and isinstance(error, ValueError):  # it found none
            return
        raise RunError(
            f"the hosts did not come together ({str(error).splitlines()[0]}): start the same "
            f"command on every host within {_INITIALIZATION_TIMEOUT_SECONDS} s."
        ) from error
    if jax.process_count() == 1:  # nobody will ask JAX for the signal that it took for itself
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def is_process_0() -> bool:
    """Whether this process is the one that writes what is written once."""
    return jax.process_index() == 0


def broadcast_from_process_0(make: Callable[[], Sequence[int]], size: int) -> tuple[int, ...]:
    """The `size` integers, of 32 bits, that `make` gives on the first process, on all of them."""
    if jax.process_count() == 1:
        return tuple(make())
    numbers = make() if is_process_0() else [0] * size
    sync_processes("share")  # `make` may read for minutes
    mine = jax.numpy.asarray(numbers, jax.numpy.int32)
    return tuple(int(n) for n in multihost_utils.broadcast_one_to_all(mine))


def failing_processes(ok: bool) -> list[int]:
    """The processes on which something is not so; the same on all of them."""
    if jax.process_count() == 1:
        return [] if ok else [0]
    sync_processes("fact")
    facts = multihost_utils.process_allgather(jax.numpy.asarray([ok], jax.numpy.int32))
    return [host for host, is_so in enumerate(facts.ravel()) if not is_so]


def sync_processes(name: str) -> None:
    """Returns once every process is here; the loss of one ends the others before the limit does.

    By the coordinator and not by the devices, where on CPUs none may be half a minute late.
    """
    if jax.process_count() > 1:
        import orbax.checkpoint as ocp  # a second, which a process that only supervises is spared

        meet = ocp.multihost.get_barrier_sync_fn()
        meet(key=f"{name} {next(_barrier_ids)}", timeout_ms=1000 * _BARRIER_TIMEOUT_SECONDS)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[CHILD_ENV]):  # it died meanwhile
        os.kill(os.getpid(), signal.SIGKILL)
