"""The processes of a run, given by arguments or detected; imports no JAX."""

import dataclasses
import glob
import importlib.util
import os

from data_pipelines.errors import InputError


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
        _check_process_id(num_processes, process_id)
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


@dataclasses.dataclass(frozen=True)
class ProcessShare:
    """The share of one of several processes that divide the work and exchange nothing.

    Attributes:
      process_id: index of the process, from 0.
      num_processes: number of processes.
    """

    process_id: int
    num_processes: int


def find_share(num_processes: int | None, process_id: int | None) -> ProcessShare | None:
    """Return the share of the arguments; None for a single process.

    Raises:
      InputError: an argument is missing, or there is no such process.
    """
    if num_processes is None and process_id is None:
        return None
    if num_processes is None or process_id is None:
        raise InputError("--num-processes, --process-id: one is missing. Give both.")
    _check_process_id(num_processes, process_id)
    return ProcessShare(process_id, num_processes)


def _check_process_id(num_processes: int, process_id: int) -> None:
    if not 0 <= process_id < num_processes:
        raise InputError(
            f"--process-id={process_id}: is not one of --num-processes={num_processes}. Count "
            "processes from 0."
        )


def on_tpu() -> bool:
    """Return whether this machine has TPUs that JAX uses."""
    enabled = "tpu" in (os.environ.get("JAX_PLATFORMS") or "tpu")
    chips = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return enabled and bool(chips) and importlib.util.find_spec("libtpu") is not None
