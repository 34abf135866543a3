"""Predict with a model of any task, as JSON lines."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bertjax.cli.files import add_checkpoint, as_json, open_output, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

if TYPE_CHECKING:
    from bertjax.tasks.task import Input, Task
    from data_pipelines.finetuning.table import TableRow
    from data_pipelines.finetuning.token_classification import TaggedSentence

ORDER = 70
EXAMPLE = "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'"
# Inputs of a file that are predicted together: the remainder of each part compiles a program of its
# own. A reader of standard output waits for fewer, and a writer to standard input for one.
_FILE_BATCH_SIZE, _STDOUT_BATCH_SIZE = 4096, 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help='lines of text or JSON objects, such as {"question": ..., "context": ...}; a file in '
        "SQuAD's layout; a table (.csv, .tsv, .parquet); words in CoNLL columns (.conll, .bio, "
        ".iob); - for standard input",
    )
    source.add_argument(
        "--text", action="append", metavar="LINE", help="one input; may be repeated"
    )
    source.add_argument("--question", metavar="TEXT", help="question about --context")
    parser.add_argument("--context", metavar="TEXT", help="passage with the answer (none)")
    parser.add_argument(
        "--return-all-scores",
        action="store_true",
        help="return the score of every label or choice",
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="file for the predictions, - for standard output (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.predictor import Predictor

    if (args.question is None) != (args.context is None):
        raise InputError("--question, --context: one is missing. Give both.")
    if not all(text.strip() for text in args.text or ()):
        raise InputError("--text: empty. Write a text.")
    if (
        args.output != "-"
        and args.input
        and _resolve_path(args.output) == _resolve_path(args.input)
    ):
        raise InputError(
            f"--output={args.output}: is the input, which would be lost. Name another."
        )
    skip_missing_tpu()
    enable_compilation_cache()
    read_inputs = _input_reader(args)
    batch_size = _STDOUT_BATCH_SIZE if args.output == "-" else _FILE_BATCH_SIZE
    if args.input == "-":
        batch_size = 1
    with open_output(args.output) as sink:
        predictor, count = Predictor(args.checkpoint), 0
        try:
            for answer in predictor.answers(
                read_inputs(predictor.task), batch_size, args.return_all_scores
            ):
                # Flushing a remote file would write it again as a whole.
                print(as_json(answer), file=sink, flush=sink is sys.stdout)
                count += 1
        except InputError as error:
            if args.input is not None:  # the error names the line
                raise
            sample_arguments = predictor.task.sample_arguments(predictor.config)
            raise InputError(
                f"{error} This model {predictor.description}: {sample_arguments}"
            ) from error
    if args.output != "-":
        print(f"{args.output}: {count:,} predictions.", file=sys.stderr)


def _resolve_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _input_reader(args: argparse.Namespace) -> Callable[["type[Task]"], Iterable["Input"]]:
    """Return a function that reads the inputs for a task; a missing file is an error here."""
    from bertjax.tasks.task import Input
    from data_pipelines.finetuning.table import is_table, read_table
    from data_pipelines.finetuning.token_classification import is_conll, parse_conll

    if args.question is not None:
        question = Input("line 1", {"question": args.question, "context": args.context})
        return lambda task: [question]
    if args.input is not None and is_table(args.input):
        rows = read_table(args.input)
        return lambda task: map(_input_of_row, rows)
    lines = read_lines(args.input) if args.text is None else args.text
    if args.input is not None and is_conll(args.input):
        return lambda task: map(_input_of_sentence, parse_conll(args.input, lines))
    return lambda task: task.inputs(lines)


def _input_of_sentence(sentence: "TaggedSentence") -> "Input":
    """Return a sentence of words as an input, whose location is the line of its first word."""
    from bertjax.tasks.task import Input

    return Input(sentence.locations[0], {"words": [*sentence.words]})


def _input_of_row(row: "TableRow") -> "Input":
    """Return a row of a table as an input; values that JSON lacks, such as dates, become text."""
    from bertjax.tasks.task import Input

    values = json.loads(json.dumps(row.values, default=str))
    return Input(row.location, values)
