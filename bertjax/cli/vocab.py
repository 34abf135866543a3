"""Train a vocabulary on text."""

import argparse

from etils import epath

from bertjax.cli.files import check_directory
from bertjax.cli.text_args import add_text, nonnegative_int, parse_fraction, read_options
from data_pipelines.errors import InputError

ORDER = 10
EXAMPLE = "bertjax vocab --input 'text/*.txt' --vocab-size 30522 --output vocab.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_text(parser, "a new file")
    parser.add_argument(
        "--vocab-size", type=int, default=30522, help="pieces that it has, exactly (%(default)s)"
    )
    parser.add_argument(
        "--kind",
        choices=["wordpiece", "bpe", "unigram"],
        default="wordpiece",
        help="WordPiece as BERT has it, or one of SentencePiece's two (%(default)s)",
    )
    parser.add_argument(
        "--sample",
        default="100%",
        metavar="SHARE",
        help="share of the documents to count (%(default)s)",
    )
    parser.add_argument(
        "--sampling-alpha",
        type=float,
        default=1.0,
        help="exponent of each --input's part in all words; 0.7 lifts small languages "
        "(%(default)s)",
    )
    parser.add_argument("--workers", type=nonnegative_int, help="processes that count (one a core)")


def run(args: argparse.Namespace) -> None:
    from data_pipelines.text.sources import read_documents, resolve_inputs
    from data_pipelines.vocabulary.counting import sample_documents
    from data_pipelines.vocabulary.training import train_vocabulary

    check_directory(epath.Path(args.output).parent, "--output")
    if epath.Path(args.output).is_file():
        raise InputError(f"--output={args.output} exists: name another file, or remove it.")
    how, share = read_options(args), parse_fraction("--sample", args.sample)
    if not 0 < share <= 1:
        raise InputError(f"--sample={args.sample} is no share to count; give one up to 100%.")
    resolve_inputs(args.input)  # all together: none may be named twice
    # Without smoothing all inputs are one corpus.
    groups = [[given] for given in args.input] if args.sampling_alpha != 1 else [args.input]
    corpora = [
        (
            line
            for document in sample_documents(read_documents(group, how), share)
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
    print(f"{args.vocab_size:,} pieces in {path}")
