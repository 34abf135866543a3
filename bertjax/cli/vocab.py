"""Train a vocabulary on text, or extend that of a model."""

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.cli.files import check_directory, check_new_file
from bertjax.cli.text_args import (
    add_text,
    check_text,
    num_workers,
    parse_fraction,
    read_options,
)
from data_pipelines.errors import InputError
from data_pipelines.paths import check_expanded

ORDER = 10
EXAMPLE = "bertjax vocab --input 'text/*.txt' --vocab-size 30522 --output vocab.txt"
_DEFAULTS: dict[str, Any] = {"vocab_size": 30_522, "kind": "wordpiece", "sampling_alpha": 1.0}
_NUM_SHOWN = 8  # new tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_text(parser, "new file of the vocabulary; with --extend, new directory of the model")
    parser.add_argument("--vocab-size", type=int, help="exact number of tokens (30522)")
    parser.add_argument(
        "--kind",
        choices=["wordpiece", "bpe", "unigram"],
        help="WordPiece as in BERT, or an algorithm of SentencePiece (wordpiece)",
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
        help="exponent of each --input's fraction of all words; 0.7 raises small languages (1)",
    )
    parser.add_argument("--workers", type=num_workers, help="counting processes (one a core)")
    parser.add_argument(
        "--extend",
        metavar="MODEL",
        help="model directory, checkpoint or workdir whose WordPiece vocabulary gets the tokens "
        "that save most tokens of the text; old tokens keep their ids (none)",
    )
    parser.add_argument(
        "--add", type=int, metavar="N", help="number of new tokens for --extend (none)"
    )
    parser.add_argument(
        "--new-embeddings",
        choices=["mean", "normal"],
        help="word embeddings of new tokens: the mean of those of the tokens that one replaces, or "
        "random from a normal distribution with initializer_range (mean)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    check_expanded(args.output)
    check_directory(os.path.dirname(args.output) or ".", "--output")
    if not 0 < parse_fraction("--sample", args.sample) <= 1:
        raise InputError(f"--sample={args.sample}: not in (0%, 100%]. Give a fraction such as 10%.")
    check_text(args)
    only = ("add", "new_embeddings") if args.extend is None else (*_DEFAULTS, "cased")
    for name in only:
        if (value := getattr(args, name)) is not None:
            problem = "needs --extend. Name a model by it."
            if args.extend is not None:
                problem = "--extend keeps what the model has. Remove the option."
            raise InputError(f"--{name.replace('_', '-')}={value}: {problem}")
    if args.extend is None:
        check_new_file(args.output)
        if args.sampling_alpha not in (None, 1) and len(args.input) == 1:
            raise InputError(
                f"--sampling-alpha={args.sampling_alpha}: one --input has one fraction. Name an "
                "input for each language."
            )
        return
    from bertjax.formats.detection import find_format

    if args.add is None or args.add < 1:
        raise InputError(f"--add={args.add}: no number of new tokens. Give one, such as 2000.")
    find_format(args.extend)
    check_directory(args.output, "--output")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    if args.extend is not None:
        _extend(args)
        return
    from data_pipelines.vocabulary.training import train_vocabulary

    values = {name: getattr(args, name) for name in _DEFAULTS}
    values = _DEFAULTS | {name: value for name, value in values.items() if value is not None}
    # With an exponent of 1 all inputs are one corpus.
    groups = [[glob] for glob in args.input] if values["sampling_alpha"] != 1 else [args.input]
    path = train_vocabulary(
        [itertools.chain.from_iterable(_read_sample(args, group)) for group in groups],
        size=values["vocab_size"],
        cased=bool(args.cased),
        kind=values["kind"],
        output=args.output,
        sampling_alpha=values["sampling_alpha"],
        workers=args.workers,
    )
    print(f"{values['vocab_size']:,} tokens in {path}")


def _read_sample(args: argparse.Namespace, inputs: Sequence[str]) -> Iterator[list[str]]:
    from data_pipelines.text.sources import read_documents
    from data_pipelines.vocabulary.counting import sample_documents

    documents = read_documents(inputs, read_options(args), args.workers)
    return sample_documents(documents, parse_fraction("--sample", args.sample))


def _extend(args: argparse.Namespace) -> None:
    from bertjax.formats.sentence_transformers import MODULES_FILE
    from bertjax.inference.vocabulary_extension import EVAL_FRACTION, write_extended_model
    from data_pipelines.hub import model_path

    extension = write_extended_model(
        args.extend,
        args.output,
        lambda: _read_sample(args, args.input),
        " ".join(args.input),
        args.add,
        args.new_embeddings or "mean",
        args.workers,
    )
    before, after = extension.before, extension.after
    old = sum(id_ < extension.num_old for id_ in extension.ids)
    print(
        f"{args.output}: {len(extension.tokens):,} tokens added, {old:,} of them in place of "
        f"[unusedN], {extension.model.config.vocab_size:,} in all: "
        f"{', '.join(extension.tokens[:_NUM_SHOWN])} ..."
    )
    print(
        f"Tokens per word on {EVAL_FRACTION:.0%} of the documents, which chose none "
        f"({before.words:,} words): {before.tokens / before.words:.3f} before, "
        f"{after.tokens / after.words:.3f} after ({1 - after.tokens / before.tokens:.1%} fewer). "
        f"[UNK]: {before.unknown:,} words before, {after.unknown:,} after."
    )
    if not extension.model.pooling and (model_path(args.extend) / MODULES_FILE).exists():
        print(
            f"{args.output} has no pooling configuration: give `bertjax embed` --pooling and "
            "--normalize."
        )
    if extension.model.unexpected_keys:
        print(f"not kept, unknown heads: {', '.join(extension.model.unexpected_keys)}")
