"""Arguments of subcommands that read text: `--input`, its format, and `--output`."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from data_pipelines.errors import InputError
from data_pipelines.parallel import MAX_WORKERS

if TYPE_CHECKING:
    from data_pipelines.text.sources import ReadOptions


def add_text(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the arguments.

    Args:
      parser: parser of the subcommand.
      output: help text of `--output`.
    """
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        required=True,
        metavar="GLOB",
        help="files or directories of text, JSON, CSV or TSV, Wikipedia dumps, also compressed; "
        "Parquet or Arrow; tfds:NAME/CONFIG; builtin",
    )
    parser.add_argument(
        "--field",
        default="text",
        help="field of JSON or column of tables with the text (%(default)s)",
    )
    parser.add_argument(
        "--documents",
        choices=["blocks", "lines", "wrapped"],
        default="blocks",
        help="documents of plain text: blocks between blank lines, one a line, or chapters of "
        "paragraphs whose wrapped lines are joined (%(default)s)",
    )
    parser.add_argument(
        "--wikitext",
        choices=["passages", "lists", "markup"],
        default="passages",
        help="content of Wikipedia dumps: passages alone, with lists also headings and list items, "
        "or all markup (%(default)s)",
    )
    parser.add_argument(
        "--max-bad-fraction",
        default="0",
        metavar="FRACTION",
        help="largest fraction of damaged records of an input, such as 0.1%%; they are skipped "
        "and counted (%(default)s)",
    )
    parser.add_argument(
        "--max-line-mb",
        type=int,
        default=64,
        metavar="MB",
        help="longest line of a text file, which is in memory (%(default)s)",
    )
    parser.add_argument(
        "--cased",
        action=argparse.BooleanOptionalAction,
        help="keep case and accents (as the vocabulary; a new one is uncased)",
    )
    parser.add_argument("--output", required=True, help=output)


def check_text(
    args: argparse.Namespace, is_left_out: Callable[[str], bool] = lambda name: False
) -> None:
    """Check the arguments of `add_text`, and that every input exists.

    Args:
      args: the arguments.
      is_left_out: as of `text.sources.resolve_inputs`.

    Raises:
      InputError: an argument is invalid, or an input does not exist or is named twice.
    """
    from data_pipelines.text.sources import resolve_inputs

    read_options(args)
    resolve_inputs(args.input, is_left_out)


def read_options(args: argparse.Namespace) -> "ReadOptions":
    """Return the options for reading text.

    Raises:
      InputError: `--max-bad-fraction` is not a fraction.
    """
    from data_pipelines.text.sources import ReadOptions

    max_bad_fraction = parse_fraction("--max-bad-fraction", args.max_bad_fraction)
    return ReadOptions(
        args.field, args.documents, max_bad_fraction, args.wikitext, args.max_line_mb
    )


def num_workers(text: str) -> int:
    """Return a number of worker processes, for argparse's `type`."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    if number > MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{number} is more than {MAX_WORKERS}")
    return number


def parse_fraction(name: str, text: str) -> float:
    """Return "0.1%" or "0.001" as a number.

    Raises:
      InputError: the text is neither; `name` is the argument's.
    """
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise InputError(f"{name}={text}: not a fraction. Write it as 0.1%.") from None
