"""Rerank the documents of a retrieval by a classifier of pairs, and evaluate both orders."""

import argparse
import logging
import sys

from bertjax.cli.files import add_checkpoint, as_json, check_directory, open_output
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists, check_file

ORDER = 62
EXAMPLE = (
    "bertjax rerank --checkpoint runs/reranker --data scifact "
    "--run runs/similar/scifact/predictions.trec --output runs/reranker/scifact"
)
SCORES_FILE = "scores.json"

_log = logging.getLogger("bertjax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help="data set in the layout of BEIR: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--run", dest="run_file", metavar="FILE", help="ranked documents, a run file of TREC"
    )
    source.add_argument(
        "--retriever",
        metavar="DIR",
        help="model of embeddings that searches the documents: a run, or a directory of "
        "sentence-transformers",
    )
    parser.add_argument(
        "--qrels", default="test", metavar="SPLIT", help="split of the data set (%(default)s)"
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=100,
        metavar="N",
        help="documents of each query that are scored, 10 or more (%(default)s)",
    )
    parser.add_argument(
        "--relevant-label",
        default="",
        metavar="NAME",
        help="label of relevant documents, of a model with two labels (the second of 0 and 1)",
    )
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="directory for scores and predictions"
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from etils import epath

    from bertjax.formats.detection import check_model_exists, find_format

    check_directory(args.output, "--output")
    find_format(args.checkpoint)
    check_exists(args.data, "Name a directory with corpus.jsonl.")
    if args.retriever:
        check_model_exists(args.retriever)
    else:
        check_file(args.run_file)
    from data_pipelines.finetuning.embeddings.run_files import RUN_FILE  # imports NumPy

    for name in (SCORES_FILE, RUN_FILE):
        if (epath.Path(args.output) / name).exists():
            raise InputError(f"--output={args.output}: has {name}. Name another directory.")


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from etils import epath

    from bertjax.html.tables import align_columns
    from bertjax.inference.reranking import open_reranker, rerank, search_documents
    from bertjax.tasks.embeddings.retrieval.evaluation import check_top_k
    from data_pipelines.finetuning.embeddings.beir import read_retrieval_dataset
    from data_pipelines.finetuning.embeddings.run_files import read_run

    data = read_retrieval_dataset(epath.Path(args.data), args.qrels)
    check_top_k(args.top_k, data, "--top-k")
    enable_compilation_cache()
    reranker = open_reranker(args.checkpoint, args.relevant_label)  # before hours of search
    if args.retriever:
        first = search_documents(args.retriever, data, args.qrels, args.top_k)
    else:
        first = read_run(args.run_file, data)
    result = rerank(reranker, data, first, args.top_k, _log.info)
    rows = [
        (name, f"{result.first_stage[name]:.4f}", f"{score:.4f}")
        for name, score in result.scores.items()
    ]
    print(align_columns(("score", "first stage", "reranked"), rows), file=sys.stderr)
    scores = as_json(result.scores, indent=1)
    if not sys.stdout.isatty():  # a program reads it
        print(scores, flush=True)
    directory = epath.Path(args.output)
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (*result.files.items(), (SCORES_FILE, scores)):
        with open_output(str(directory / name)) as sink:
            sink.write(text)
    print(f"wrote {', '.join([*result.files, SCORES_FILE])} to {directory}.", file=sys.stderr)
