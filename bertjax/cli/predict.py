"""Fill [MASK]s of lines of text, or answer questions, as JSON lines."""

import argparse
import json
import sys

from bertjax.cli.devices import keep_compiled, pass_over_absent_tpu
from bertjax.cli.files import as_json, output, read_lines
from data_pipelines.errors import InputError

ORDER = 70
EXAMPLE = "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'"
_TOGETHER = 64  # lines of a file that are answered at once; standard input may wait for its answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, help="a checkpoint or a workdir")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help='lines of text; or {"question": ..., "context": ...} a line, or a file in SQuAD\'s '
        "layout; - for standard input",
    )
    source.add_argument("--text", metavar="LINE", help="one line instead")
    source.add_argument("--question", metavar="TEXT", help="one question, on --context")
    parser.add_argument("--context", metavar="TEXT", help="the passage that has the answer")
    parser.add_argument(
        "--output", default="-", metavar="FILE", help="- for standard output (%(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from bertjax.runs.predict import Predictor

    if (args.question is None) != (args.context is None):
        raise InputError("--question and --context go together: give both.")
    if args.question is not None:
        args.text = json.dumps({"question": args.question, "context": args.context})
    pass_over_absent_tpu()
    keep_compiled()
    lines = read_lines(args.input) if args.text is None else iter([args.text])
    together = _TOGETHER if args.text is None and args.input != "-" else 1
    with output(args.output) as sink:
        for answer in Predictor(args.checkpoint).answers(lines, together):
            # A remote file that is flushed is written anew as a whole.
            print(as_json(answer), file=sink, flush=sink is sys.stdout)
