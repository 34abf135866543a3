"""Fill [MASK]s, answer questions, say the class of texts or tag words, as JSON lines."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bertjax.cli.files import add_checkpoint, as_json, output, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

if TYPE_CHECKING:
    from bertjax.tasks.task import Input, Task
    from data_pipelines.finetuning.table import TableRow
    from data_pipelines.finetuning.token_classification import TaggedSentence

ORDER = 70
EXAMPLE = "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'"
# Lines of a file that are answered at once: what is left over of each such part costs a program of
# its own. Who looks on waits for fewer, and who writes to standard input for each.
_FILE_BATCH_SIZE, _STDOUT_BATCH_SIZE = 4096, 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help='lines of text, or JSON objects, such as {"question": ..., "context": ...}; a file in '
        "SQuAD's layout; a table (.csv, .tsv, .parquet); words in columns (.conll, .bio, .iob); - "
        "for standard input",
    )
    source.add_argument(
        "--text", action="append", metavar="LINE", help="one line instead; again for more of them"
    )
    source.add_argument("--question", metavar="TEXT", help="one question, on --context")
    parser.add_argument("--context", metavar="TEXT", help="the passage that has the answer (none)")
    parser.add_argument(
        "--return-all-scores",
        action="store_true",
        help="tell the probability of every label or choice",
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="a file for the answers, - for standard output (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.inference.predictor import Predictor

    if (args.question is None) != (args.context is None):
        raise InputError("--question and --context go together: give both.")
    if not all(text.strip() for text in args.text or ()):
        raise InputError("--text is empty: write a text.")
    if (
        args.output != "-"
        and args.input
        and _resolve_path(args.output) == _resolve_path(args.input)
    ):
        raise InputError(f"--output={args.output} is the input, which would be lost: name another.")
    skip_missing_tpu()
    enable_compilation_cache()
    inputs_of = _input_reader(args)
    together = _STDOUT_BATCH_SIZE if args.output == "-" else _FILE_BATCH_SIZE
    if args.input == "-":
        together = 1
    with output(args.output) as sink:
        predictor, count = Predictor(args.checkpoint), 0
        try:
            for answer in predictor.answers(
                inputs_of(predictor.task), together, args.return_all_scores
            ):
                # A remote file that is flushed is written anew as a whole.
                print(as_json(answer), file=sink, flush=sink is sys.stdout)
                count += 1
        except InputError as error:
            if args.input is not None:  # where a line is named
                raise
            sample_arguments = predictor.task.sample_arguments(predictor.config)
            raise InputError(
                f"{error} This model {predictor.description}: {sample_arguments}"
            ) from error
    if args.output != "-":
        print(f"{args.output}: {count:,} answers.", file=sys.stderr)


def _resolve_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _input_reader(args: argparse.Namespace) -> Callable[["type[Task]"], Iterable["Input"]]:
    """What there is to answer, as a task reads it; what is no file is refused here."""
    from bertjax.tasks.task import Input
    from data_pipelines.finetuning.table import is_table, read_table
    from data_pipelines.finetuning.token_classification import is_conll, parse_conll

    if args.question is not None:
        asked = Input("line 1", {"question": args.question, "context": args.context})
        return lambda task: [asked]
    if args.input is not None and is_table(args.input):
        rows = read_table(args.input)
        return lambda task: map(_input_of_row, rows)
    lines = read_lines(args.input) if args.text is None else args.text
    if args.input is not None and is_conll(args.input):
        return lambda task: map(_input_of_sentence, parse_conll("the input", lines))
    return lambda task: task.inputs(lines)


def _input_of_sentence(sentence: "TaggedSentence") -> "Input":
    """A sentence of words, whose place is the line of its first one."""
    from bertjax.tasks.task import Input

    return Input(f"line {sentence.locations[0].rpartition(' ')[2]}", {"words": [*sentence.words]})


def _input_of_row(row: "TableRow") -> "Input":
    """A row of a table, whose place is its line; of what JSON has no word for, a date, the text."""
    from bertjax.tasks.task import Input

    values = json.loads(json.dumps(row.values, default=str))
    return Input(f"line {row.place.rpartition(' ')[2]}", values)
