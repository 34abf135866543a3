"""Fill [MASK]s, answer questions, say the class of texts or tag words, as JSON lines."""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from bertjax.cli.devices import keep_compiled, pass_over_absent_tpu
from bertjax.cli.files import as_json, output, read_lines
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from data_pipelines.finetuning.table import Row

ORDER = 70
EXAMPLE = "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'"
# Lines of a file that are answered at once: what is left over of each such part costs a program of
# its own. Who looks on waits for fewer, and who writes to standard input for each.
_TOGETHER, _WATCHED = 4096, 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="a checkpoint or a workdir, or a model of Hugging Face or TF1",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help='lines of text, or JSON objects, such as {"question": ..., "context": ...}; a file in '
        "SQuAD's layout; a table (.csv, .tsv, .parquet); - for standard input",
    )
    source.add_argument("--text", metavar="LINE", help="one line instead")
    source.add_argument("--question", metavar="TEXT", help="one question, on --context")
    parser.add_argument("--context", metavar="TEXT", help="the passage that has the answer (none)")
    parser.add_argument(
        "--all", action="store_true", help="tell the probability of every label or choice"
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="a file for the answers, - for standard output (%(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.runs.predict import Predictor

    if (args.question is None) != (args.context is None):
        raise InputError("--question and --context go together: give both.")
    if args.question is not None:
        args.text = json.dumps({"question": args.question, "context": args.context})
    pass_over_absent_tpu()
    keep_compiled()
    lines = _read(args.input) if args.text is None else iter([args.text])
    together = _WATCHED if args.output == "-" else _TOGETHER
    if args.text is not None or args.input == "-":
        together = 1
    with output(args.output) as sink:
        for answer in Predictor(args.checkpoint).answers(lines, together, args.all):
            # A remote file that is flushed is written anew as a whole.
            print(as_json(answer), file=sink, flush=sink is sys.stdout)


def _read(path: str) -> Iterator[str]:
    """The lines of a file; the rows of a table as JSON objects, each as the line that it is on."""
    from data_pipelines.finetuning.table import is_table, read_table

    return _placed(read_table(path)) if is_table(path) else read_lines(path)


def _placed(rows: Iterable["Row"]) -> Iterator[str]:
    line = 1
    for row in rows:
        number = int(row.place.rpartition(" ")[2])
        yield from itertools.repeat("", number - line)
        # What JSON has no word for, such as a date, is text.
        yield json.dumps(row.values, default=str)
        line = number + 1
