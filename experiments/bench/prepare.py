"""How fast a corpus is prepared, and whether memory stays flat.

    python -m experiments.bench.prepare --text wiki_en.txt.xz --vocab bert-base-uncased-vocab.txt

Speed: the whole of `prepare` (reading, sentences, ids, shards) against the published tokenisation
written out plainly in Python, which only reads and tokenises; the same text, the same number of
worker processes, in turns, of which the medians count. Processor seconds stand beside those of the
clock: they tell more on a machine that others use too. Memory: the greatest sum over all processes
while a quarter of the text is prepared, and all of it.
"""

import argparse
import itertools
import multiprocessing
import os
import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator

import psutil

from data_pipelines.corpus.prepare import prepare
from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.bench.tokenization import PlainTokenizer

_peer: PlainTokenizer


def start_peer(vocab: pathlib.Path, lower_case: bool) -> None:
    global _peer
    _peer = PlainTokenizer(vocab, lower_case)


def peer_pieces(documents: list[list[str]]) -> int:
    return sum(len(_peer.encode(line)) for document in documents for line in document)


def batches(documents: Iterable[list[str]], size: int = 100) -> Iterator[list[list[str]]]:
    documents = iter(documents)
    return iter(lambda: list(itertools.islice(documents, size)), [])


def run_peer(text: str, vocab: pathlib.Path, workers: int) -> int:
    """Tokenises the text with the peer; the number of pieces."""
    lower_case = not load_tokenizer(vocab).cased
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, start_peer, (vocab, lower_case)) as pool:
        tokens = sum(pool.imap(peer_pieces, batches(read_documents([text]))))
        pool.close()
        pool.join()  # so that the processor time of the workers is known
        return tokens


def run_prepare(text: str, vocab: pathlib.Path, workers: int) -> int:
    """Prepares the text; the number of pieces."""
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory, "corpus")
        manifest = prepare([text], load_tokenizer(vocab), output, workers=workers)
        for worker in multiprocessing.active_children():
            worker.join()  # as above
        return int(manifest.totals["tokens"])


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_memory(text: str, vocab: pathlib.Path, workers: int) -> float:
    """MiB resident in all processes of one `prepare`, at most; sampled every 10 ms."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=run_prepare, args=(text, vocab, workers))
    process.start()
    peak = 0
    root = psutil.Process(process.pid)
    while process.is_alive():
        total = 0
        for member in [root, *root.children(recursive=True)]:
            try:
                total += member.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak = max(peak, total)
        time.sleep(0.01)
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--vocab", type=pathlib.Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    vocab, workers = arguments.vocab, arguments.workers

    with tempfile.TemporaryDirectory() as directory:
        texts = [pathlib.Path(directory, name) for name in ("quarter.txt", "all.txt")]
        with texts[0].open("w") as quarter, texts[1].open("w") as whole:
            for number, document in enumerate(read_documents(arguments.text)):
                block = "\n".join([*document, "", ""])
                whole.write(block)
                if number % 4 == 0:
                    quarter.write(block)

        spent: dict[str, list[tuple[float, float]]] = {"prepare": [], "plain Python": []}
        for _ in range(arguments.rounds):
            for (name, seconds), run in zip(spent.items(), (run_prepare, run_peer), strict=True):
                clock, cpu_seconds = time.perf_counter(), processor_seconds()
                tokens = run(str(texts[1]), vocab, workers)
                seconds.append((time.perf_counter() - clock, processor_seconds() - cpu_seconds))
                print(
                    f"{name:12}  {tokens:,} pieces  {tokens / seconds[-1][0]:10,.0f} pieces/s  "
                    f"{seconds[-1][0]:6.1f} s  {seconds[-1][1]:6.1f} processor s"
                )
        ours, peer = (
            [statistics.median(kind) for kind in zip(*seconds, strict=True)]
            for seconds in spent.values()
        )
        by_clock, by_processor = (b / a for a, b in zip(ours, peer, strict=True))
        print(f"ratio         {by_clock:.1f} by the clock, {by_processor:.1f} by processor time")

        peaks = [peak_memory(str(text), vocab, workers) for text in texts]
        print(f"peak memory on a quarter of the text {peaks[0]:.0f} MiB, on all {peaks[1]:.0f} MiB")
        print(f"growth        {100 * (peaks[1] / peaks[0] - 1):12.1f}%")


if __name__ == "__main__":
    main()
