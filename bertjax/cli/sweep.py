"""Train and compare the runs of a grid, several at once."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertjax.cli.cluster import add_hosts, join, supervise
from bertjax.cli.configuration import add_config, load
from bertjax.cli.devices import keep_compiled, pass_over_absent_tpu
from bertjax.cli.files import check_directory
from bertjax.html.tables import aligned

if TYPE_CHECKING:
    from bertjax.config.config import Config

ORDER = 55
EXAMPLE = (
    "bertjax sweep --config glue:task=mrpc,init=DIR,data=GLUE --workdir runs/grid "
    "--grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid batch_size=16,32 --seeds 5"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_hosts(parser)
    parser.add_argument(
        "--workdir",
        required=True,
        metavar="DIR",
        help="a new one, or that of a sweep to go on with, to which seeds and values may be added",
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=V,V,...",
        help="a field of the configuration with the values to try; several are combined (none)",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="runs of each combination (%(default)s)"
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="runs that a device has at once; a GPU may have room for several (%(default)s)",
    )


def run(args: argparse.Namespace) -> int | None:
    if (status := supervise(args)) is not None:
        return status
    from bertjax.mesh import hosts
    from bertjax.sweeps.grid import make_trials
    from bertjax.sweeps.sweep import sweep
    from data_pipelines.errors import InputError

    pass_over_absent_tpu()
    check_directory(args.workdir, "--workdir")
    if args.together < 1:
        raise InputError(f"--together {args.together} must be at least 1.")
    overrides = dict(args.rest)

    def load_with(point: Mapping[str, str]) -> "Config":
        args.rest = {**overrides, **point}
        return load(args)

    original = load_with({})
    trials = make_trials(load_with, args.grid, args.seeds)
    join(args, saves=True)
    keep_compiled(args.workdir)
    found = sweep(trials, original, args.workdir, args.together)
    if hosts.is_first():
        print(table(found))
        print(f"\nbest: {found['best']}, in {args.workdir}/best")
    return None


def table(found: Mapping[str, Any]) -> str:
    """The points of a grid, a line each."""
    head = (found["score"], "n", "failed", "mean", "deviation", "min", "max")
    rows = [
        (
            point["point"],
            *(str(point[name]) for name in ("n", "failed")),
            *(
                "-" if point[name] is None else f"{point[name]:.4f}"
                for name in ("mean", "deviation", "min", "max")
            ),
        )
        for point in found["points"]
    ]
    return aligned(head, rows)
