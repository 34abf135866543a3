"""Speed of corpus preparation, compared with plain Python.

    python -m experiments.bench.prepare --text wiki_en.txt.xz --vocab bert-base-uncased-vocab.txt

All of `bertjax prepare` (reading, splitting, tokenizing, writing shards) is compared with the
published tokenization in plain Python, which only reads and tokenizes, on the same text with the
same number of worker processes. Programs take turns; figures are medians over the rounds.
"""

import itertools
import json
import multiprocessing
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.harness import BERTJAX
from experiments.bench.peers.plain_tokenizer import PlainTokenizer

PLAIN = "plain Python"
_peer: PlainTokenizer


def _init_worker(vocab: pathlib.Path, lower_case: bool) -> None:
    global _peer
    _peer = PlainTokenizer(vocab, lower_case)


def _count_tokens(documents: list[list[str]]) -> int:
    return sum(len(_peer.encode(line)) for document in documents for line in document)


def tokenize_plainly(text: str, vocab: pathlib.Path, workers: int) -> int:
    """Tokenize a text with the peer and return the number of tokens."""
    lower_case = not load_tokenizer(vocab).cased
    documents = read_documents([text])
    batches: Iterator[list[list[str]]] = iter(lambda: list(itertools.islice(documents, 100)), [])
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _init_worker, (vocab, lower_case)) as pool:
        tokens = sum(pool.imap(_count_tokens, batches))
        pool.close()
        pool.join()  # without which the CPU time of the workers is unknown
        return tokens


def main() -> None:
    parser = harness.make_parser(__doc__, rounds=5)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--vocab", type=local_path, required=True)
    args = parser.parse_args()
    if args.worker:
        print(f"{tokenize_plainly(args.text[0], args.vocab, args.cores):,} tokens", flush=True)
        return

    with tempfile.TemporaryDirectory() as name:
        text, corpus = pathlib.Path(name, "text.txt"), pathlib.Path(name, "corpus")
        with text.open("w") as file:
            for document in read_documents(args.text):
                file.write("\n".join([*document, "", ""]))
        plain = [sys.executable, *sys.argv, "--worker", PLAIN, "--text", str(text)]
        options = ["--vocab", str(args.vocab), "--workers", str(args.cores)]
        options += ["--input", str(text), "--output"]
        rounds = []
        for number in range(args.rounds):
            prepare = harness.bertjax_command("prepare", *options, f"{corpus}-{number}")
            ours = harness.measure_cost(prepare)
            rounds.append({BERTJAX: ours, PLAIN: harness.measure_cost(plain)})
        manifest = json.loads(pathlib.Path(f"{corpus}-0", "manifest.json").read_text())
        harness.print_comparison("", "tokens", manifest["totals"]["tokens"], rounds)


if __name__ == "__main__":
    main()
