"""The hosts that a command runs on: arguments that name them, and their coming together."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertjax.mesh.hosts import Cluster


def add_hosts(parser: argparse.ArgumentParser) -> None:
    text = "where Cloud TPU, GKE or Slurm do not tell the hosts of each other"
    group = parser.add_argument_group("several hosts", text)
    group.add_argument(
        "--coordinator", metavar="HOST:PORT", help="address of host 0 (what they tell)"
    )
    group.add_argument("--hosts", type=int, help="how many take part (what they tell)")
    group.add_argument("--host", type=int, help="which of them this is, from 0 (what they tell)")


def supervise(args: argparse.Namespace) -> int | None:
    """Gives the command to a child of this process, if there are other hosts to join.

    The exit status of the child is returned once it has ended, and None in the child, or without
    other hosts: the work is then to be done here. What is slow to import is to be imported after.
    """
    from bertjax.mesh import hosts

    if hosts.is_child() or not _cluster(args):
        return None
    return hosts.supervise(args.argv)


def join(args: argparse.Namespace, saves: bool) -> None:
    """Joins the other hosts, if there are any; see `bertjax.mesh.hosts.join`."""
    from bertjax.mesh import hosts

    hosts.join(_cluster(args), saves)


def _cluster(args: argparse.Namespace) -> "Cluster | None":
    from bertjax.mesh import hosts

    return hosts.find_cluster(args.coordinator, args.hosts, args.host)
