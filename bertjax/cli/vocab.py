"""Train a vocabulary on text."""

import argparse
import os

from bertjax.cli.files import check_directory, check_new_file
from bertjax.cli.text_args import (
    add_text,
    check_text,
    num_workers,
    parse_fraction,
    read_options,
)
from data_pipelines.errors import InputError

ORDER = 10
EXAMPLE = "bertjax vocab --input 'text/*.txt' --vocab-size 30522 --output vocab.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_text(parser, "new file of the vocabulary")
    parser.add_argument(
        "--vocab-size", type=int, default=30522, help="exact number of tokens (%(default)s)"
    )
    parser.add_argument(
        "--kind",
        choices=["wordpiece", "bpe", "unigram"],
        default="wordpiece",
        help="WordPiece as in BERT, or an algorithm of SentencePiece (%(default)s)",
    )
    parser.add_argument(
        "--sample",
        default="100%",
        metavar="FRACTION",
        help="fraction of the documents to count (%(default)s)",
    )
    parser.add_argument(
        "--sampling-alpha",
        type=float,
        default=1.0,
        help="exponent of each --input's fraction of all words; 0.7 raises small languages "
        "(%(default)s)",
    )
    parser.add_argument("--workers", type=num_workers, help="counting processes (one a core)")


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_directory(os.path.dirname(args.output) or ".", "--output")
    check_new_file(args.output)
    if not 0 < parse_fraction("--sample", args.sample) <= 1:
        raise InputError(f"--sample={args.sample}: not in (0%, 100%]. Give a fraction such as 10%.")
    check_text(args)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from data_pipelines.text.sources import read_documents
    from data_pipelines.vocabulary.counting import sample_documents
    from data_pipelines.vocabulary.training import train_vocabulary

    options, fraction = read_options(args), parse_fraction("--sample", args.sample)
    # With an exponent of 1 all inputs are one corpus.
    groups = [[glob] for glob in args.input] if args.sampling_alpha != 1 else [args.input]
    corpora = [
        (
            line
            for document in sample_documents(read_documents(group, options, args.workers), fraction)
            for line in document
        )
        for group in groups
    ]
    path = train_vocabulary(
        corpora,
        size=args.vocab_size,
        cased=bool(args.cased),
        kind=args.kind,
        output=args.output,
        sampling_alpha=args.sampling_alpha,
        workers=args.workers,
    )
    print(f"{args.vocab_size:,} tokens in {path}")
