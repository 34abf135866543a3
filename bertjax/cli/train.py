"""Train a model in a workdir, or resume a run."""

import argparse

from bertjax.cli.config_args import add_config, check_config, load
from bertjax.cli.distributed import add_distributed_arguments, initialize_distributed
from bertjax.cli.files import check_directory
from bertjax.cli.jax_setup import enable_compilation_cache

ORDER = 50
EXAMPLE = "bertjax train --config pretraining:smoke,data=corpora/mine --workdir runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_config(parser)
    add_distributed_arguments(parser)
    parser.add_argument(
        "--workdir", required=True, metavar="DIR", help="new directory, or one of a run to resume"
    )
    parser.add_argument(
        "--report-to",
        metavar="TRACKER",
        help="tracker that also receives the metrics: wandb, mlflow, or MODULE:FUNCTION, which is "
        "called with configuration and workdir (none)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_directory(args.workdir, "--workdir")
    check_config(args)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.mesh.watchdog import Watchdog
    from bertjax.training.setup import make_trainer
    from bertjax.training.trackers import make_tracker
    from bertjax.workdir.goodput import process_start_time

    config = load(args)
    trackers = [make_tracker(args.report_to, config, args.workdir)] if args.report_to else []
    initialize_distributed(args, config, handles_preemption=True)
    enable_compilation_cache(args.workdir)
    trainer = make_trainer(config, args.workdir, trackers, process_start_time())
    with Watchdog(config.watchdog_minutes):
        trainer.train()
