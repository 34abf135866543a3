"""Write a run, the output of an evaluation or a corpus as one HTML page."""

import argparse

ORDER = 100
EXAMPLE = "bertjax report runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="a workdir, or what evaluate, sweep or prepare wrote"
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.reports.run import write_report

    print(write_report(args.directory))
