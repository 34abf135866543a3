"""Pack the answers of runs to GLUE's tests as its server takes them."""

import argparse
from collections.abc import Iterator

from etils import epath

from bertjax.cli.files import check_output
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from data_pipelines.errors import InputError

ORDER = 75
EXAMPLE = (
    "bertjax submit --checkpoint runs/* --data GLUE --majority-class wnli --output submission.zip"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        required=True,
        nargs="+",
        metavar="DIR",
        help="a workdir or checkpoint of each task; MNLI's answers AX too",
    )
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="the directory of GLUE's folders; or tfds:glue"
    )
    parser.add_argument(
        "--majority-class",
        nargs="+",
        default=[],
        metavar="TASK",
        help="answered by what is most frequent in training, as the paper did wnli (none)",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE.zip", help="the archive, as the server takes it"
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.tasks.sequence_classification.glue_submission import build_submission

    check_output(args.output)
    skip_missing_tpu()
    enable_compilation_cache()
    files: dict[str, str] = {}
    sources: dict[str, str] = {}
    for source, answers in _answers(args):
        for file, content in answers.items():
            if file in files:
                raise InputError(f"{sources[file]} and {source} both answer {file}: give one.")
            files[file], sources[file] = content, source
            print(f"{file}: {len(content.splitlines()) - 1:,} answers by {source}", flush=True)
    epath.Path(args.output).write_bytes(build_submission(files))


def _answers(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.sequence_classification.glue_submission import (
        predict_majority,
        predict_test_files,
    )

    for name in args.majority_class:
        yield f"--majority-class {name}", predict_majority(name, args.data)
    for path in args.checkpoint:
        yield path, predict_test_files(Predictor(path), args.data)
