"""The hosts that a command runs on: arguments that name them, and their coming together."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.mesh.distributed import Cluster


def add_distributed_arguments(parser: argparse.ArgumentParser) -> None:
    text = "where Cloud TPU, GKE or Slurm do not tell the hosts of each other"
    group = parser.add_argument_group("several hosts", text)
    group.add_argument(
        "--coordinator-address", metavar="HOST:PORT", help="address of host 0 (what they tell)"
    )
    group.add_argument("--num-processes", type=int, help="how many take part (what they tell)")
    group.add_argument(
        "--process-id", type=int, help="which of them this is, from 0 (what they tell)"
    )


def run_in_child(args: argparse.Namespace) -> int | None:
    """Gives the command to a child of this process, if there are other hosts to join.

    The exit status of the child is returned once it has ended, and None in the child, or without
    other hosts: the work is then to be done here. What is slow to import is to be imported after.
    """
    from bertjax.mesh import distributed

    if distributed.is_child() or not _cluster(args):
        return None
    return distributed.run_in_child(args.argv)


def join(args: argparse.Namespace, handles_preemption: bool) -> None:
    """Joins the other hosts, if there are any; see `bertjax.mesh.distributed.join`."""
    from bertjax.mesh import distributed

    distributed.join(_cluster(args), handles_preemption)


def _cluster(args: argparse.Namespace) -> "Cluster | None":
    from bertjax.mesh import distributed

    return distributed.find_cluster(args.coordinator_address, args.num_processes, args.process_id)
