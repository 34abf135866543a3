"""Corpus preparation: speed compared with plain Python, and peak memory.

    python -m experiments.bench.prepare --text wiki_en.txt.xz --vocab bert-base-uncased-vocab.txt

Speed: all of `bertjax prepare` (reading, splitting, tokenizing, writing shards) compared with the
published tokenization in plain Python, which only reads and tokenizes, on the same text with the
same number of worker processes. Programs take turns; figures are medians over the rounds. Memory:
peak of all processes for a quarter of the text and for all of it.
"""

import itertools
import json
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator

from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.bench.harness import (
    BERTJAX,
    Cost,
    comparison_table,
    make_parser,
    measure_cost,
    peak_memory,
)
from experiments.bench.peers.plain_tokenizer import PlainTokenizer

PLAIN = "plain Python"
_peer: PlainTokenizer


def _init_worker(vocab: pathlib.Path, lower_case: bool) -> None:
    global _peer
    _peer = PlainTokenizer(vocab, lower_case)


def _count_tokens(documents: list[list[str]]) -> int:
    return sum(len(_peer.encode(line)) for document in documents for line in document)


def _batched(documents: Iterable[list[str]], size: int = 100) -> Iterator[list[list[str]]]:
    documents = iter(documents)
    return iter(lambda: list(itertools.islice(documents, size)), [])


def tokenize_plainly(text: str, vocab: pathlib.Path, workers: int) -> int:
    """Tokenize a text with the peer and return the number of tokens."""
    lower_case = not load_tokenizer(vocab).cased
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _init_worker, (vocab, lower_case)) as pool:
        tokens = sum(pool.imap(_count_tokens, _batched(read_documents([text]))))
        pool.close()
        pool.join()  # without which the CPU time of the workers is unknown
        return tokens


def write_quarter_and_whole(texts: list[str], directory: pathlib.Path) -> list[pathlib.Path]:
    """Write a quarter of the documents, and all of them, as plain text."""
    paths = [directory / "quarter.txt", directory / "whole.txt"]
    with paths[0].open("w") as quarter, paths[1].open("w") as whole:
        for number, document in enumerate(read_documents(texts)):
            block = "\n".join([*document, "", ""])
            whole.write(block)
            if number % 4 == 0:
                quarter.write(block)
    return paths


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--vocab", type=pathlib.Path, required=True)
    args = parser.parse_args()
    if args.worker:
        print(f"{tokenize_plainly(args.text[0], args.vocab, args.cores):,} tokens", flush=True)
        return

    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        quarter, whole = write_quarter_and_whole(args.text, directory)

        def prepare_command(text: pathlib.Path, output: str) -> list[str]:
            options = ["--vocab", str(args.vocab), "--workers", str(args.cores)]
            command = [sys.executable, "-m", "bertjax", "prepare", "--input", str(text)]
            return [*command, *options, "--output", str(directory / output)]

        plain = [sys.executable, __file__, "--worker", PLAIN, f"--cores={args.cores}"]
        plain += ["--text", str(whole), "--vocab", str(args.vocab)]
        rounds: list[dict[str, Cost]] = []
        for number in range(args.rounds):
            ours = measure_cost(prepare_command(whole, f"corpus-{number}"))
            rounds.append({BERTJAX: ours, PLAIN: measure_cost(plain)})
        manifest = json.loads((directory / "corpus-0" / "manifest.json").read_text())
        tokens = manifest["totals"]["tokens"]
        print("\n".join(comparison_table("", "tokens", tokens, rounds)), flush=True)

        peaks = [
            peak_memory(prepare_command(text, f"memory-{text.stem}")) for text in (quarter, whole)
        ]
        print(f"\npeak memory: {peaks[0]:.0f} MiB for a quarter of the text", end="")
        print(f", {peaks[1]:.0f} MiB for all of it ({peaks[1] / peaks[0] - 1:+.1%})")


if __name__ == "__main__":
    main()
