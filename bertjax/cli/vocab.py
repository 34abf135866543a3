"""Train a vocabulary on text."""

import argparse

from etils import epath

from bertjax.cli.files import check_directory
from bertjax.cli.text import add_text, reading

ORDER = 10
EXAMPLE = "bertjax vocab --input 'text/*.txt' --size 30522 --output vocab.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser)
    parser.add_argument("--size", type=int, default=30522, help="pieces, exactly (%(default)s)")
    parser.add_argument("--kind", choices=["wordpiece", "bpe", "unigram"], default="wordpiece")


def run(args: argparse.Namespace) -> None:
    from data_pipelines.text.sources import read_documents
    from data_pipelines.vocabulary.training import train_vocabulary

    check_directory(epath.Path(args.output).parent, "--output")
    lines = (line for document in read_documents(args.input, reading(args)) for line in document)
    path = train_vocabulary(
        lines, size=args.size, cased=bool(args.cased), kind=args.kind, output=args.output
    )
    print(f"{args.size:,} pieces in {path}")
