"""Write embeddings of texts, or of their words or tokens."""

import argparse
import functools
import json
import logging
import os
import re
from collections.abc import Iterable

from bertjax.cli.distributed import add_share_arguments, share_from_args
from bertjax.cli.files import add_task, check_directory, check_output, find_inputs, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

ORDER = 78
EXAMPLE = "bertjax embed --checkpoint models/base --input lines.txt --output embeddings.npz"

_log = logging.getLogger("bertjax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    # argparse accepts only plain negative numbers: "--layers -1,-2" would need a "=".
    parser._negative_number_matcher = re.compile(r"-\d[\d,.-]*$")
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="checkpoint or workdir, or a model directory of Hugging Face, "
        "sentence-transformers or TF1",
    )
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help='lines of text or JSON objects {"text": ...}; a table with a column "text" (.csv, '
        ".tsv, .parquet); - for standard input; with --num-processes also a directory or pattern",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help=".npz, .jsonl or .parquet, with --num-processes a directory of such files; the same "
        "command resumes an interrupted one",
    )
    parser.add_argument(
        "--layers",
        default="-1",
        metavar="N,N,...",
        help="layers: -1 is the last, 0 the embedding layer; a text has their mean (%(default)s)",
    )
    parser.add_argument(
        "--level",
        default="text",
        help="unit that gets an embedding: text, word or token (%(default)s)",
    )
    parser.add_argument(
        "--pooling", help="mean, cls or max over a text's tokens (that of the model, or mean)"
    )
    parser.add_argument(
        "--normalize", action="store_true", help="scale each text's embedding to length 1"
    )
    add_task(parser)
    add_share_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import check_model_exists

    try:
        args.layers = tuple(int(layer) for layer in args.layers.split(","))
    except ValueError:
        raise InputError(f"--layers={args.layers}: not numbers. Write -1,-2.") from None
    if args.pooling and args.level != "text":
        raise InputError(f"--pooling={args.pooling}: not for --level={args.level}. Leave it out.")
    if share_from_args(args):
        check_directory(args.output, "--output")
        find_inputs(args.input)
    else:
        check_output(args.output)
        if args.input != "-":
            check_file(args.input)
    check_model_exists(args.checkpoint)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.feature_extraction import Embedder, find_embedding_options

    model, options = find_embedding_options(
        args.checkpoint, args.layers, args.level, args.pooling, args.normalize
    )
    enable_compilation_cache()
    embedder = Embedder(model, options)
    if share := share_from_args(args):
        from bertjax.inference.output_shards import InputFile

        files = [
            InputFile(os.path.basename(path), functools.partial(_lines, path))
            for path in find_inputs(args.input)
        ]
        summary = embedder.write_shards(files, args.output, share)
        _log.info("%s: %s", args.output, summary.describe("embeddings", share))
    else:
        name = "" if args.input == "-" else os.path.basename(args.input)
        count = embedder.write(_lines(args.input), args.output, name)
        _log.info("%s: embeddings of %d texts.", args.output, count)


def _lines(path: str) -> Iterable[str]:
    from etils import epath

    from data_pipelines.finetuning.table import file_format, is_table, read_table
    from data_pipelines.parsing import read_json_records

    if file_format(epath.Path(path)) == ".json":  # may be one list
        records = (record for _, record in read_json_records(path, read_lines(path)))
        return (record if isinstance(record, str) else json.dumps(record) for record in records)
    if not is_table(path):
        return read_lines(path)
    return [json.dumps({"text": row.text(("text",))}) for row in read_table(path)]
