"""Write the vectors that a model has for texts, or for their words or pieces."""

import argparse
import json
import logging
import re
from collections.abc import Iterable

from bertjax.cli.files import check_output, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from data_pipelines.errors import InputError

ORDER = 78
EXAMPLE = "bertjax features --checkpoint models/base --input lines.txt --output vectors.npz"

_log = logging.getLogger("bertjax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Else "--layers -1,-2" would have to be written with "=": only plain numbers may be negative.
    parser._negative_number_matcher = re.compile(r"-\d[\d,.-]*$")
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="a checkpoint or a workdir, or a model of Hugging Face, sentence-transformers or TF1",
    )
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help='lines of text, or JSON objects {"text": ...}; a table with a column "text" (.csv, '
        ".tsv, .parquet); - for standard input",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help=".npz, .jsonl or .parquet; work that was stopped goes on by the same command",
    )
    parser.add_argument(
        "--layers",
        default="-1",
        metavar="N,N,...",
        help="-1 is the last, 0 the embeddings; of a text their mean is taken (%(default)s)",
    )
    parser.add_argument(
        "--level",
        default="text",
        help="a vector of each text, or those of its words or pieces (%(default)s)",
    )
    parser.add_argument(
        "--pooling",
        help="mean, cls or max of a text's pieces (mean, or what a model of sentence-transformers "
        "says)",
    )
    parser.add_argument(
        "--normalize", action="store_true", help="make each text's vector one of length 1"
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.inference.feature_extraction import Features, recipe_of

    try:
        layers = tuple(int(each) for each in args.layers.split(","))
    except ValueError:
        raise InputError(f"--layers {args.layers} must be numbers, such as -1,-2.") from None
    if args.pooling and args.level != "text":
        raise InputError(
            f"--pooling {args.pooling} is for --level text and not for {args.level}: leave it out."
        )
    model, wanted = recipe_of(args.checkpoint, layers, args.level, args.pooling, args.normalize)
    check_output(args.output)
    skip_missing_tpu()
    enable_compilation_cache()
    count = Features(model, wanted).write(_lines(args.input), args.output)
    _log.info("%s: the vectors of %d texts.", args.output, count)


def _lines(path: str) -> Iterable[str]:
    from data_pipelines.finetuning.table import is_table, read_table

    if not is_table(path):
        return read_lines(path)
    return [json.dumps({"text": row.text(("text",))}) for row in read_table(path)]
