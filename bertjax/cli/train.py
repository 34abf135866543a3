"""Train, or go on training, in a workdir."""

import argparse

from bertjax.cli.cluster import add_hosts, join, supervise
from bertjax.cli.configuration import add_config, load
from bertjax.cli.devices import keep_compiled, pass_over_absent_tpu
from bertjax.cli.files import check_directory

ORDER = 50
EXAMPLE = "bertjax train --config pretrain:smoke,data=corpora/mine --workdir runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_hosts(parser)
    parser.add_argument(
        "--workdir", required=True, metavar="DIR", help="a new one, or that of a run to go on with"
    )
    parser.add_argument(
        "--report-to",
        metavar="WHOM",
        help="gives the metrics to wandb too, or to what MODULE:FUNCTION makes of configuration "
        "and workdir (nobody)",
    )


def run(args: argparse.Namespace) -> int | None:
    if (status := supervise(args)) is not None:
        return status
    from bertjax.training.trackers import reporter
    from bertjax.training.trainer import Run

    pass_over_absent_tpu()
    check_directory(args.workdir, "--workdir")
    config = load(args)
    tell = reporter(args.report_to, config, args.workdir) if args.report_to else None
    join(args, saves=True)
    keep_compiled(args.workdir)
    Run(config, args.workdir, tell).train()
    return None
