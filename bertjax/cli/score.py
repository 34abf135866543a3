"""Score predictions of any system as a benchmark's official script does."""

import argparse

from bertjax.cli.files import as_json
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

ORDER = 80
EXAMPLE = (
    "bertjax score squad --data dev-v2.0.json --predictions predictions.json "
    "--null-odds null_odds.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "benchmark", choices=["squad", "cmrc", "korquad"], help="benchmark whose script is followed"
    )
    parser.add_argument(
        "--data", required=True, metavar="FILE", help="data set with the gold answers"
    )
    parser.add_argument(
        "--predictions", required=True, metavar="FILE", help="JSON object from id to text"
    )
    parser.add_argument(
        "--null-odds",
        metavar="FILE",
        help="JSON object from id to null odds, for the best thresholds (none)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    if args.null_odds and args.benchmark != "squad":
        raise InputError(
            "--null-odds: every question of CMRC and KorQuAD has an answer. Leave it out."
        )
    for path in filter(None, (args.data, args.predictions, args.null_odds)):
        check_file(path)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    if args.benchmark == "squad":
        from bertjax.tasks.question_answering import metrics as squad

        scores = squad.score_files(args.data, args.predictions, args.null_odds)
    else:
        from bertjax.tasks.question_answering import cmrc, korquad
        from bertjax.tasks.question_answering.metrics import read_predictions
        from data_pipelines.finetuning.question_answering.squad import read_squad

        benchmark = {"cmrc": cmrc, "korquad": korquad}[args.benchmark]
        scores = benchmark.score(read_squad(args.data), read_predictions(args.predictions))
    print(as_json(scores, indent=1))
