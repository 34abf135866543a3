"""Train and compare the runs of a grid or of a search, several in one program."""

import argparse
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertjax.cli.config_args import add_config, check_config, load
from bertjax.cli.distributed import add_distributed_arguments, initialize_distributed
from bertjax.cli.files import check_directory
from bertjax.cli.jax_setup import enable_compilation_cache
from bertjax.html.tables import align_columns
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.config.config import Config

ORDER = 55
SAMPLERS = ("random", "tpe")  # of Optuna; see `bertjax.sweeps.search`
EXAMPLE = (
    "bertjax sweep --config glue:task=mrpc,init=DIR,data=GLUE --workdir runs/grid "
    "--grid optimizer.learning_rate=5e-5,3e-5,2e-5 --grid batch_size=16,32 --seeds 5"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_config(parser)
    add_distributed_arguments(parser)
    parser.add_argument(
        "--workdir",
        required=True,
        metavar="DIR",
        help="new directory, or that of a sweep to resume, which may get more seeds and values",
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=V,V,...",
        help="field of the configuration and its values; several fields are combined (none)",
    )
    parser.add_argument(
        "--search",
        choices=SAMPLERS,
        help="let Optuna choose points: at random, or by a tree-structured Parzen estimator; "
        "--grid gives choices then (all points of --grid)",
    )
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="FIELD=LOW..HIGH[:log]",
        help="field and range of a search, of integers if both ends are (none)",
    )
    parser.add_argument(
        "--trials", type=int, metavar="N", help="points of a search; may grow later (none)"
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="in a search end runs whose best score so far is worse, at an evaluation, than the "
        "median of earlier ones (no run)",
    )
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="runs of each combination (%(default)s)"
    )
    parser.add_argument(
        "--runs-per-device",
        type=int,
        default=1,
        metavar="N",
        help="runs that a device trains at once; a GPU may fit several (%(default)s)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_directory(args.workdir, "--workdir")
    if args.runs_per_device < 1:
        raise InputError(f"--runs-per-device={args.runs_per_device}: below 1. Give at least 1.")
    if not args.search and (args.range or args.trials is not None or args.prune):
        name = f"--range={args.range[0]}" if args.range else f"--trials={args.trials}"
        name = "--prune" if args.prune else name
        raise InputError(f"{name}: only a search reads it. Add --search=tpe or --search=random.")
    if args.search and args.trials is None:
        raise InputError(f"--search={args.search}: no number of points. Add --trials=N.")
    check_config(args)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.mesh import distributed
    from bertjax.mesh.watchdog import Watchdog
    from bertjax.sweeps.grid import Trial, make_trials
    from bertjax.sweeps.search import Search
    from bertjax.sweeps.sweep import sweep
    from bertjax.tasks.registry import task_argument

    overrides = dict(args.overrides)

    def load_with_fields(fields: Mapping[str, str]) -> "Config":
        args.overrides = {**overrides, **fields}
        return load(args)

    base_config = load_with_fields({})
    trials: list[Trial] | Search
    if args.search:
        options = args.search, args.range, args.grid, args.trials, args.seeds
        trials = Search(load_with_fields, *options, prunes=args.prune)
    else:
        trials = make_trials(load_with_fields, args.grid, args.seeds)
    initialize_distributed(args, base_config, handles_preemption=True)
    enable_compilation_cache(args.workdir)
    with Watchdog(base_config.watchdog_minutes):
        results = sweep(trials, base_config, args.workdir, args.runs_per_device)
    if distributed.is_process_0():
        print(format_results(results))
        print(f"\nbest: {results['best']}, in {args.workdir}/best")
        custom = task_argument(base_config.task)
        print(f"Next: bertjax report {shlex.quote(args.workdir)}{custom}", file=sys.stderr)


def format_results(results: Mapping[str, Any]) -> str:
    """Return the points of a grid as a text table.

    Args:
      results: the content of sweep.json; see `bertjax.sweeps.summary.summarize`.
    """
    counts = ["num_runs", "num_failed"]
    if any(point["num_pruned"] for point in results["points"]):
        counts.append("num_pruned")
    names = (name.removeprefix("num_") for name in counts)
    header = (results["primary_metric"], *names, "mean", "std", "min", "max")
    rows = [
        (
            point["label"],
            *(str(point[name]) for name in counts),
            *(
                "-" if point[name] is None else f"{point[name]:.4f}"
                for name in ("mean", "std", "min", "max")
            ),
        )
        for point in results["points"]
    ]
    return align_columns(header, rows)
