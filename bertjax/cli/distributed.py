"""Arguments for multi-process runs, as of `jax.distributed.initialize`."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from bertjax.version import __version__

if TYPE_CHECKING:
    from bertjax.config.config import Config
    from bertjax.mesh.cluster import Cluster, ProcessShare

_AGREEMENT_SECONDS = 60.0  # between processes that have just joined
# They decide what is computed, or how it is compiled.
_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")
_SHARED_ARGUMENTS = (
    *("checkpoint", "grid", "seeds", "runs_per_device"),
    *("search", "range", "trials", "prune"),
)
_JAX_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)


def add_distributed_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the processes of a run to `parser`."""
    text = "needed only where Cloud TPU, GKE and Slurm do not provide them"
    group = parser.add_argument_group("several processes", text)
    group.add_argument(
        "--coordinator-address", metavar="HOST:PORT", help="address of process 0 (detected)"
    )
    group.add_argument("--num-processes", type=int, help="number of processes (detected)")
    group.add_argument("--process-id", type=int, help="index of this process, from 0 (detected)")


def add_share_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of several processes that divide the work and exchange nothing."""
    text = "each writes its share of the shards of a directory; they need not run at the same time"
    group = parser.add_argument_group("several processes", text)
    group.add_argument(
        "--num-processes", type=int, help="number of processes; --output is a directory (one file)"
    )
    group.add_argument("--process-id", type=int, help="index of this process, from 0 (one file)")


def share_from_args(args: argparse.Namespace) -> "ProcessShare | None":
    """Return the share of this process, of `add_share_arguments`; None without several processes.

    Raises:
      InputError: an argument is missing, or there is no such process.
    """
    from bertjax.mesh.cluster import find_share

    return find_share(args.num_processes, args.process_id)


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


def initialize_distributed(
    args: argparse.Namespace, config: "Config", handles_preemption: bool
) -> None:
    """Initialize `jax.distributed` if other processes take part; compare them.

    Args:
      args: parsed arguments of `add_distributed_arguments`.
      config: configuration of the run.
      handles_preemption: whether the command saves its state on SIGTERM.

    Raises:
      InputError: subcommand, configuration, code or packages differ between processes.
    """
    from bertjax.mesh import distributed
    from bertjax.mesh.agreement import check_agreement

    if (cluster := _cluster(args)) is None:
        return
    distributed.initialize_distributed(cluster, handles_preemption)
    check_agreement(_facts(args, config), _AGREEMENT_SECONDS)


def _facts(args: argparse.Namespace, config: "Config") -> dict[str, Any]:
    """Return what must be the same in all processes before devices are used."""
    import platform
    from importlib import metadata

    import jax

    from bertjax.mesh.agreement import code_digest
    from bertjax.workdir.workdir import comparable_fields

    def installed(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    xla_flags = os.environ.get("XLA_FLAGS", "").split()
    facts = {"subcommand": args.subcommand, "--num-processes": args.num_processes}
    facts |= {name: vars(args)[name] for name in _SHARED_ARGUMENTS if name in args}
    facts |= {"version of bertjax": __version__, "code of bertjax": code_digest()}
    facts |= {"version of Python": platform.python_version()}
    packages = [*_PACKAGES, *(["optuna"] if vars(args).get("search") else [])]
    facts |= {f"version of {package}": installed(package) for package in packages}
    facts |= {name: jax.config.values.get(name) for name in _JAX_SETTINGS}
    facts |= {"XLA_FLAGS": sorted(flag for flag in xla_flags if "_dump_" not in flag)}
    facts |= {"LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", "")}
    return facts | comparable_fields(config)


def _cluster(args: argparse.Namespace) -> "Cluster | None":
    from bertjax.mesh.cluster import find_cluster

    return find_cluster(args.coordinator_address, args.num_processes, args.process_id)
