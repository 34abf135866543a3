"""Arguments for multi-process runs, as of `jax.distributed.initialize`."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.mesh.cluster import Cluster


def add_distributed_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the processes of a run to `parser`."""
    text = "needed only where Cloud TPU, GKE and Slurm do not provide them"
    group = parser.add_argument_group("several processes", text)
    group.add_argument(
        "--coordinator-address", metavar="HOST:PORT", help="address of process 0 (detected)"
    )
    group.add_argument("--num-processes", type=int, help="number of processes (detected)")
    group.add_argument("--process-id", type=int, help="index of this process, from 0 (detected)")


def run_in_child_if_distributed(args: argparse.Namespace) -> int | None:
    """Run the command in a child process if other processes take part.

    Returns:
      The child's exit status once it has ended. None in the child, or for a single process: the
      caller then does the work.
    """
    from bertjax.mesh import child_process

    if child_process.is_child() or not _cluster(args):
        return None
    return child_process.supervise_child(args.argv)


def initialize_distributed(args: argparse.Namespace, handles_preemption: bool) -> None:
    """Initialize `jax.distributed` if other processes take part.

    Args:
      args: parsed arguments of `add_distributed_arguments`.
      handles_preemption: whether the command saves its state on SIGTERM.
    """
    from bertjax.mesh import distributed

    distributed.initialize_distributed(_cluster(args), handles_preemption)


def _cluster(args: argparse.Namespace) -> "Cluster | None":
    from bertjax.mesh.cluster import find_cluster

    return find_cluster(args.coordinator_address, args.num_processes, args.process_id)
