"""Write an HTML report of a run, an evaluation, a sweep or a corpus."""

import argparse

from bertjax.cli.files import add_task
from data_pipelines.libraries import check_installed
from data_pipelines.paths import check_exists

ORDER = 100
EXAMPLE = "bertjax report runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="workdir, or the output of sweep, prepare or evaluate, of classification, tags, "
        "choices and question answering",
    )
    add_task(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_installed("report", "jinja2", "matplotlib", install="jinja2 matplotlib")
    check_exists(args.directory, "Name a workdir, or the output of evaluate, sweep or prepare.")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.reports.writer import write_report

    print(write_report(args.directory))
