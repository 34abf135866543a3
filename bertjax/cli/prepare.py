"""Turn text into shards of token ids."""

import argparse
import sys

from bertjax.cli.config_args import reject_unknown_arguments
from bertjax.cli.files import check_directory
from bertjax.cli.text_args import add_text, nonnegative_int, read_options

ORDER = 20
EXAMPLE = "bertjax prepare --input 'text/*.txt' --vocab vocab.txt --output corpora/mine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(parse_extra_args=list)
    add_text(parser, "a directory for the shards, a new one or one that was not finished")
    parser.add_argument(
        "--vocab", required=True, metavar="FILE", help="the vocabulary, or a directory that has one"
    )
    parser.add_argument(
        "--workers", type=nonnegative_int, help="processes that tokenize (one a core)"
    )
    parser.add_argument(
        "--eval-fraction",
        type=float,
        default=0.01,
        help="share of documents kept for evaluation (%(default)s)",
    )
    parser.add_argument("--dedup", action="store_true", help="drop documents seen before")
    parser.add_argument(
        "--min-document-tokens",
        type=int,
        default=1,
        metavar="PIECES",
        help="length of documents that are kept, at least (%(default)s)",
    )
    parser.add_argument(
        "--languages",
        default="",
        metavar="en+de",
        help="languages of documents that are kept (all)",
    )
    parser.add_argument(
        "--near-dedup", action="store_true", help="drop documents nearly seen before"
    )
    parser.add_argument("--shards", type=int, help="files of training data (by its size)")
    parser.add_argument(
        "--license",
        default="",
        metavar="TEXT",
        help="that of the text; told where a model is exported (none)",
    )
    parser.add_argument(
        "--runner",
        help="an Apache Beam runner that does it instead, such as DataflowRunner; "
        "arguments that are none of the above go to it (processes of this machine)",
    )


def run(args: argparse.Namespace) -> None:
    from data_pipelines.corpus.filters import Filters
    from data_pipelines.corpus.prepare import prepare
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    if not args.runner:
        reject_unknown_arguments(args.rest)
    check_directory(args.output, "--output")
    tokenizer = load_tokenizer(args.vocab, cased=args.cased)
    options = {
        "eval_fraction": args.eval_fraction,
        "dedup": args.dedup,
        "shards": args.shards,
        "filters": Filters(args.min_document_tokens, args.languages, args.near_dedup),
        "reading": read_options(args),
        "license": args.license,
    }
    if args.runner:
        from data_pipelines.corpus.beam import prepare_with_beam

        flags = [f"--runner={args.runner}", *args.rest]
        manifest = prepare_with_beam(args.input, tokenizer, args.output, flags, **options)
    else:
        manifest = prepare(
            args.input,
            tokenizer,
            args.output,
            workers=args.workers,
            progress=sys.stderr,
            **options,
        )
    totals = [_format_total(name, number) for name, number in manifest.totals.items()]
    print(f"{args.output}: {', '.join(totals)}.")


def _format_total(name: str, number: float) -> str:
    """("text_bytes", 1200) -> "1,200 bytes of text"; shares in percent."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.3%}"
    return f"{shown} {name.replace('_', ' ')}"
