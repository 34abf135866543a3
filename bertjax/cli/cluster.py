"""The hosts that a command runs on: arguments that name them, and their coming together."""

import argparse


def add_hosts(parser: argparse.ArgumentParser) -> None:
    text = "where Cloud TPU, GKE or Slurm do not tell the hosts of each other"
    group = parser.add_argument_group("several hosts", text)
    group.add_argument("--coordinator", metavar="HOST:PORT", help="address of host 0")
    group.add_argument("--hosts", type=int, help="how many take part")
    group.add_argument("--host", type=int, help="which of them this is, from 0")


def join(args: argparse.Namespace, saves: bool) -> int | None:
    """Joins the other hosts, if there are any.

    What joins is a child of this process. The exit status of the child is returned once it has
    ended, and None in the child, or without other hosts: the work is then to be done here.

    Args:
      saves: see `bertjax.mesh.hosts.join`.
    """
    from bertjax.mesh import hosts

    cluster = hosts.find_cluster(args.coordinator, args.hosts, args.host)
    if cluster and not hosts.is_child():
        return hosts.supervise(args.argv)
    hosts.join(cluster, saves)
    return None
