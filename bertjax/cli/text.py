"""Text that a verb reads, `--input`, and where what it makes of it goes, `--output`."""

import argparse


def add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="GLOB",
        help="text or JSON-lines files, also compressed; tfds:NAME/CONFIG; builtin",
    )
    parser.add_argument("--field", default="text", help="field of JSON lines that holds text")
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument("--output", required=True)
