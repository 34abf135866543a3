"""Write a GLUE submission from the test predictions of runs."""

import argparse

from bertjax.cli.files import check_output
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.paths import atomic_write_bytes
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
    from bertjax.inference.predictor import Predictor, open_model
    from bertjax.tasks.sequence_classification import glue_submission as glue

    enable_compilation_cache()
    files: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name in args.majority_class:
        source = f"--majority-class {name}"
        glue.add_task(sources, source, name, args.data)
        files |= _report(source, glue.predict_majority(name, args.data))
    models = [open_model(path) for path in args.checkpoint]
    for path, model in zip(args.checkpoint, models, strict=True):
        name = glue.glue_task_name(model.path, model.config())
        glue.add_task(sources, path, name, args.data)
    glue.check_complete(sources)
    for path, model in zip(args.checkpoint, models, strict=True):
        predictor = Predictor(model)
        predictions = glue.predict_test_files(
            predictor.path, predictor.pipeline, predictor.run, args.data
        )
        files |= _report(path, predictions)
    atomic_write_bytes(args.output, glue.build_submission(files))


def _report(source: str, predictions: dict[str, str]) -> dict[str, str]:
    for file, content in predictions.items():
        print(f"{file}: {len(content.splitlines()) - 1:,} predictions of {source}", flush=True)
    return predictions
