"""Text that a verb reads, `--input`, and where what it makes of it goes, `--output`."""

import argparse
from typing import TYPE_CHECKING

from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from data_pipelines.text.sources import ReadOptions


def add_text(parser: argparse.ArgumentParser, output: str) -> None:
    """To a parser; `output` says what `--output` is of this verb."""
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        required=True,
        metavar="GLOB",
        help="files or directories of text or JSON lines, also compressed, Parquet or Arrow; "
        "tfds:NAME/CONFIG; builtin",
    )
    parser.add_argument(
        "--field",
        default="text",
        help="field of JSON lines, column of tables, that holds text (%(default)s)",
    )
    parser.add_argument(
        "--documents",
        choices=["blocks", "lines"],
        default="blocks",
        help="of plain text: blocks with a blank line between, or one on each line (%(default)s)",
    )
    parser.add_argument(
        "--max-bad-fraction",
        default="0",
        metavar="SHARE",
        help="share of an input's records, such as 0.1%%, that may be damaged and are left out "
        "(%(default)s)",
    )
    parser.add_argument(
        "--cased",
        action=argparse.BooleanOptionalAction,
        help="keep case and accents (as the vocabulary does; a new one does not)",
    )
    parser.add_argument("--output", required=True, help=output)


def read_options(args: argparse.Namespace) -> "ReadOptions":
    """How the text is to be read; InputError if it cannot be so."""
    from data_pipelines.text.sources import ReadOptions

    return ReadOptions(
        args.field, args.documents, parse_fraction("--max-bad-fraction", args.max_bad_fraction)
    )


def nonnegative_int(text: str) -> int:
    """A number of something, for a parser of arguments."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{number} is less than 0")
    return number


def parse_fraction(name: str, text: str) -> float:
    """ "0.1%" or "0.001" as a number; InputError that names the argument for anything else."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise InputError(f"{name}={text} is no share; give one as 0.1%.") from None
