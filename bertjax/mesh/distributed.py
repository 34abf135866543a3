"""Several processes: how they join, agree on numbers, and end when one of them is lost.

JAX's runtime aborts a process, without running Python's handlers, when another process is lost. A
process that joins others therefore runs in a child, whose parent reports the loss in one sentence.
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

HEARTBEAT_SECONDS = 60  # a process that is silent for longer is lost
_INITIALIZATION_TIMEOUT_SECONDS = 300
# Between the first and the last process at a barrier, when one of them compiles or copies.
_BARRIER_TIMEOUT_SECONDS = 3600
_barrier_ids = itertools.count()
# Signals after the loss of another process, without free memory, and when the machine goes.
_EXTERNAL_SIGNALS = {signal.SIGABRT, signal.SIGKILL, signal.SIGTERM}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Arguments of `jax.distributed.initialize`.

    Attributes:
      coordinator_address: HOST:PORT at which process 0 listens, or "" if JAX detects the cluster.
      num_processes: number of processes; None if JAX detects it.
      process_id: index of this process; None if JAX detects it.
      local_device_ids: devices of this machine that the process uses; all for an empty tuple.
      allow_single_process: whether the process runs alone if JAX detects no others.
    """

    coordinator_address: str = ""
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: tuple[int, ...] = ()
    allow_single_process: bool = False


def find_cluster(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> Cluster | None:
    """Return the cluster of the arguments, or a detected one; None for a single process.

    Clusters of Cloud TPU, GKE and Slurm are detected.

    Args:
      coordinator_address: HOST:PORT of process 0.
      num_processes: number of processes.
      process_id: index of this process.

    Raises:
      InputError: the arguments are incomplete or contradict each other.
    """
    arguments = (coordinator_address, num_processes, process_id)
    if arguments != (None, None, None):
        if coordinator_address is None or num_processes is None or process_id is None:
            raise InputError(
                "--coordinator-address, --num-processes, --process-id: one is missing. Give all "
                "three."
            )
        if not 0 <= process_id < num_processes:
            raise InputError(
                f"--process-id={process_id}: is not one of --num-processes={num_processes}. Count "
                "processes from 0."
            )
        if not coordinator_address.rpartition(":")[2].isdigit():
            raise InputError(
                f"--coordinator-address={coordinator_address}: has no port. Write HOST:PORT."
            )
        return Cluster(coordinator_address, num_processes, process_id)
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        # With one process per node it uses all GPUs of the node; JAX's default is one GPU.
        one_per_node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0] == "1"
        num_gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", "0")) if one_per_node else 0
        return Cluster(local_device_ids=tuple(range(num_gpus)))
    return Cluster(allow_single_process=True) if on_tpu() else None


def on_tpu() -> bool:
    """Return whether this machine has TPUs that JAX uses."""
    enabled = "tpu" in (os.environ.get("JAX_PLATFORMS") or "tpu")
    chips = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return enabled and bool(chips) and importlib.util.find_spec("libtpu") is not None


def is_child() -> bool:
    """Return whether this process is the child that `run_in_child` started."""
    return CHILD_ENV in os.environ


def run_in_child(argv: Sequence[str]) -> int:
    """Run the command line in a child process and return its exit status.

    SIGTERM and SIGINT are forwarded as SIGTERM, a second SIGINT as SIGKILL. The child dies with
    this process. If a signal ends the child, a sentence is printed. The status is then
    `EXIT_RESTART` for the signals that follow the loss of another process, and 1 for a fault.

    Args:
      argv: arguments of `bertjax`.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *argv],
        env=os.environ | {CHILD_ENV: str(os.getpid())},
        start_new_session=True,  # or a terminal would interrupt it a second time
    )
    # Another handler that learns of the signal would end this process before the child has saved.
    signal.set_wakeup_fd(-1)
    interrupts = iter([signal.SIGTERM])
    signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: child.send_signal(next(interrupts, signal.SIGKILL)))
    status = child.wait()
    if status >= 0:
        return status
    ended = f"bertjax: the process was ended by {signal.Signals(-status).name}"
    if -status not in _EXTERNAL_SIGNALS:
        print(f"{ended}, a fault of the program or the machine.", file=sys.stderr)
        return 1
    print(
        f"{ended}: another process was lost (its error is above, here or in its log), or the "
        "machine ran out of memory. Run the same command in all processes to resume.",
        file=sys.stderr,
    )
    return EXIT_RESTART


def run_child(run: Callable[[], int]) -> int:
    """Return the exit status of `run` in a child; end the process if `run` failed.

    At exit JAX waits for the other processes, which wait for this one inside a step, until it
    aborts. Only a failure that may be the loss of another process is left to JAX.
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


def initialize_distributed(cluster: Cluster | None, handles_preemption: bool) -> None:
    """Join the processes of the cluster; called before JAX looks for devices.

    Args:
      cluster: as `find_cluster` returns it; None does nothing.
      handles_preemption: whether the program polls `stop_signals`. Otherwise SIGTERM ends it.

    Raises:
      RunError: the other processes did not join in time.
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
            cluster.num_processes,
            cluster.process_id,
            cluster.local_device_ids or None,
            cluster_detection_method="deactivate" if cluster.coordinator_address else None,
            initialization_timeout=_INITIALIZATION_TIMEOUT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        if cluster.allow_single_process and isinstance(error, ValueError):  # none was detected
            return
        raise RunError(
            f"the processes did not join ({str(error).splitlines()[0]}). Start the same command in "
            f"all processes within {_INITIALIZATION_TIMEOUT_SECONDS} s."
        ) from error
    if jax.process_count() == 1:  # JAX's handler of SIGTERM is not polled
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def is_process_0() -> bool:
    """Return whether this is process 0, which writes what is written once."""
    return jax.process_index() == 0


def broadcast_from_process_0(make: Callable[[], Sequence[int]], size: int) -> tuple[int, ...]:
    """Return on every process the integers that `make` returns on process 0.

    Args:
      make: returns `size` integers of 32 bits; called on process 0 only.
      size: their number.
    """
    if jax.process_count() == 1:
        return tuple(make())
    numbers = make() if is_process_0() else [0] * size
    sync_processes("share")  # `make` may read for minutes
    array = jax.numpy.asarray(numbers, jax.numpy.int32)
    return tuple(int(n) for n in multihost_utils.broadcast_one_to_all(array))


def failing_processes(ok: bool) -> list[int]:
    """Return, on every process, the indices of the processes where `ok` is False."""
    if jax.process_count() == 1:
        return [] if ok else [0]
    sync_processes("fact")
    all_ok = multihost_utils.process_allgather(jax.numpy.asarray([ok], jax.numpy.int32))
    return [index for index, process_ok in enumerate(all_ok.ravel()) if not process_ok]


def sync_processes(name: str) -> None:
    """Wait until every process is here; the loss of one ends the others earlier.

    The barrier is the coordinator's: on CPUs a barrier of the devices fails after 30 seconds.
    """
    if jax.process_count() > 1:
        import orbax.checkpoint as ocp  # takes a second, which a supervising process does not need

        barrier = ocp.multihost.get_barrier_sync_fn()
        barrier(key=f"{name} {next(_barrier_ids)}", timeout_ms=1000 * _BARRIER_TIMEOUT_SECONDS)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(os.environ[CHILD_ENV]):  # the parent has died already
        os.kill(os.getpid(), signal.SIGKILL)
