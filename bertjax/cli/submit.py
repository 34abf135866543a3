"""Write a GLUE submission from the test predictions of runs."""

import argparse
from collections.abc import Iterator

from bertjax.cli.files import check_output
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.text.tfds import TFDS, check_tfds_installed

ORDER = 75
EXAMPLE = (
    "bertjax submit --checkpoint runs/* --data GLUE --majority-class wnli --output submission.zip"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        nargs="+",
        metavar="DIR",
        help="workdir or checkpoint of each task; MNLI's also predicts AX",
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="directory of GLUE's folders, or tfds:glue"
    )
    parser.add_argument(
        "--majority-class",
        nargs="+",
        default=[],
        metavar="TASK",
        help="tasks predicted by the most frequent training label, as the paper's WNLI (none)",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE.zip", help="archive for the GLUE server"
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import check_model_exists

    check_output(args.output)
    if args.data.startswith(TFDS):
        check_tfds_installed(args.data)
    for path in args.checkpoint:
        check_model_exists(path)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from etils import epath

    from bertjax.tasks.sequence_classification.glue_submission import build_submission

    enable_compilation_cache()
    files: dict[str, str] = {}
    sources: dict[str, str] = {}
    for source, predictions in _predictions(args):
        for file, content in predictions.items():
            if file in files:
                raise InputError(f"{file}: predicted by {sources[file]} and {source}. Give one.")
            files[file], sources[file] = content, source
            print(f"{file}: {len(content.splitlines()) - 1:,} predictions of {source}", flush=True)
    epath.Path(args.output).write_bytes(build_submission(files))


def _predictions(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.sequence_classification.glue_submission import (
        predict_majority,
        predict_test_files,
    )

    for name in args.majority_class:
        yield f"--majority-class {name}", predict_majority(name, args.data)
    for path in args.checkpoint:
        predictor = Predictor(path)
        yield path, predict_test_files(predictor.path, predictor.pipeline, predictor.run, args.data)
