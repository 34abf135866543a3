"""Several processes: how they join and agree on numbers."""

import dataclasses
import glob
import importlib.util
import itertools
import os
import signal
from collections.abc import Callable, Sequence

import jax
from jax.experimental import multihost_utils

from bertjax.errors import CommandError
from bertjax.faults import fault_point
from bertjax.mesh.child_process import die_with_parent, is_child
from data_pipelines.errors import InputError

HEARTBEAT_SECONDS = 60  # a process that is silent for longer is lost
_INITIALIZATION_TIMEOUT_SECONDS = 300
# Between the first and the last process at a barrier, when one of them compiles or copies.
_BARRIER_TIMEOUT_SECONDS = 3600
_barrier_ids = itertools.count()


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


def initialize_distributed(cluster: Cluster | None, handles_preemption: bool) -> None:
    """Join the processes of the cluster; called before JAX looks for devices.

    Args:
      cluster: as `find_cluster` returns it; None does nothing.
      handles_preemption: whether the program polls `stop_signals`. Otherwise SIGTERM ends it.

    Raises:
      CommandError: the other processes did not join in time.
    """
    if cluster is None:
        return
    if is_child():
        die_with_parent()
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
        raise CommandError(
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
