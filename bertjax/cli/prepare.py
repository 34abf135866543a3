"""Tokenize text into the shards of a corpus."""

import argparse
import dataclasses
import functools
import sys

from bertjax.cli.config_args import reject_unknown_arguments
from bertjax.cli.files import check_directory
from bertjax.cli.text_args import add_text, check_text, num_workers, read_options
from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists
from data_pipelines.vocabulary.special_tokens import VOCABULARY_FIX

ORDER = 20
EXAMPLE = "bertjax prepare --input 'text/*.txt' --vocab vocab.txt --output corpora/mine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.set_defaults(parse_extra_args=list)
    add_text(parser, "directory of the corpus: new, or one that was not finished")
    parser.add_argument(
        "--vocab", required=True, metavar="FILE", help="vocabulary, or a directory with one"
    )
    parser.add_argument(
        "--spans",
        default="",
        metavar="FIELD",
        help='field of JSON lines with entity spans, such as "entities" in the output of '
        "`bertjax predict`; for masking=entity (none)",
    )
    parser.add_argument("--workers", type=num_workers, help="tokenizing processes (one a core)")
    parser.add_argument(
        "--eval-fraction",
        type=float,
        default=0.01,
        help="fraction of the documents in the eval split (%(default)s)",
    )
    parser.add_argument("--dedup", action="store_true", help="drop exact duplicates of documents")
    parser.add_argument(
        "--min-document-tokens",
        type=int,
        default=1,
        metavar="TOKENS",
        help="shortest document that is kept (%(default)s)",
    )
    parser.add_argument(
        "--languages", default="", metavar="en+de", help="languages that are kept (all)"
    )
    parser.add_argument(
        "--near-dedup", action="store_true", help="drop near-duplicates of documents"
    )
    parser.add_argument("--num-shards", type=int, help="number of training shards (by size)")
    parser.add_argument(
        "--license", default="", metavar="TEXT", help="license of the text, for model cards (none)"
    )
    parser.add_argument(
        "--runner",
        help="Apache Beam runner, such as DataflowRunner; it receives all unknown arguments "
        "(processes of this machine)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    if not args.runner:
        reject_unknown_arguments(args.overrides)
    elif args.workers is not None:
        raise InputError(f"--workers={args.workers}: --runner has its own. Leave it out.")
    check_directory(args.output, "--output")
    check_exists(args.vocab, VOCABULARY_FIX)
    from etils import epath

    from data_pipelines.corpus.staging import check_output, is_in_output

    output = epath.Path(args.output)
    check_output(output)  # else its files would be left out of the inputs
    check_text(args, functools.partial(is_in_output, output=output))


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from data_pipelines.corpus.filters import Filters
    from data_pipelines.corpus.options import CorpusOptions
    from data_pipelines.corpus.prepare import prepare
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer = load_tokenizer(args.vocab, cased=args.cased)
    options = CorpusOptions(
        args.eval_fraction,
        args.dedup,
        args.num_shards,
        Filters(args.min_document_tokens, args.languages, args.near_dedup),
        dataclasses.replace(read_options(args), spans=args.spans),
        args.license,
    )
    if args.runner:
        from data_pipelines.corpus.beam import prepare_with_beam

        flags = [f"--runner={args.runner}", *args.overrides]
        manifest = prepare_with_beam(args.input, tokenizer, args.output, options, flags)
    else:
        manifest = prepare(
            args.input, tokenizer, args.output, options, workers=args.workers, progress=sys.stderr
        )
    totals = [_format_total(name, number) for name, number in manifest.totals.items()]
    print(f"{args.output}: {', '.join(totals)}.")


def _format_total(name: str, number: float) -> str:
    """Return ("text_bytes", 1200) as "1,200 text bytes"; fractions in percent."""
    text = f"{number:,}" if isinstance(number, int) else f"{number:.3%}"
    return f"{text} {name.replace('_', ' ')}"
