"""How much faster the tokenizer is than the published algorithm written out plainly in Python.

    python -m experiments.bench.tokenization --text TEXT --vocab VOCAB

Both read the same lines in one process, on one core, in turns, so that the ratio does not depend on
the machine; processor time is measured. Both must give the same ids. Peak memory is that
of a process of its own on a quarter of the text and on all of it, read line by line.
"""

import argparse
import bz2
import gzip
import itertools
import lzma
import multiprocessing
import pathlib
import resource
import time
import unicodedata
from collections.abc import Iterator
from typing import Any

from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}


def read_lines(path: pathlib.Path) -> Iterator[str]:
    """The lines of a text, plain or compressed."""
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", newline="\n") as file:
        yield from file


class PlainTokenizer:
    """BERT's tokenisation pass by pass, as published: the peer. Shares no code with ours."""

    def __init__(self, vocab: pathlib.Path, lower_case: bool):
        tokens = vocab.read_text("utf-8").split("\n")
        self.index = {token: i for i, token in enumerate(tokens) if token}
        self.lower_case = lower_case

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.words(text):
            ids += self.longest_matches(word)
        return ids

    def words(self, text: str) -> list[str]:
        text = self.space_ideographs(self.clean(text))
        words = []
        for token in text.split():
            if self.lower_case:
                token = self.strip_accents(token.lower())
            words += self.split_punctuation(token)
        return words

    def clean(self, text: str) -> str:
        output = []
        for char in text:
            if ord(char) in (0, 0xFFFD) or self.is_control(char):
                continue
            output.append(" " if self.is_space(char) else char)
        return "".join(output)

    def space_ideographs(self, text: str) -> str:
        output = []
        for char in text:
            if self.is_ideograph(ord(char)):
                output += [" ", char, " "]
            else:
                output.append(char)
        return "".join(output)

    def strip_accents(self, token: str) -> str:
        decomposed = unicodedata.normalize("NFD", token)
        return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")

    def split_punctuation(self, token: str) -> list[str]:
        words: list[list[str]] = []
        start_new = True
        for char in token:
            if self.is_punctuation(char):
                words.append([char])
                start_new = True
            else:
                if start_new:
                    words.append([])
                start_new = False
                words[-1].append(char)
        return ["".join(word) for word in words]

    def longest_matches(self, word: str) -> list[int]:
        if len(word) > 200:
            return [self.index["[UNK]"]]
        ids = []
        start = 0
        while start < len(word):
            end = len(word)
            while end > start:
                token = ("##" if start else "") + word[start:end]
                if token in self.index:
                    ids.append(self.index[token])
                    break
                end -= 1
            else:
                return [self.index["[UNK]"]]
            start = end
        return ids

    @staticmethod
    def is_space(char: str) -> bool:
        return char in " \t\n\r" or unicodedata.category(char) == "Zs"

    @staticmethod
    def is_control(char: str) -> bool:
        return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")

    @staticmethod
    def is_punctuation(char: str) -> bool:
        code = ord(char)
        if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
            return True
        return unicodedata.category(char).startswith("P")

    @staticmethod
    def is_ideograph(code: int) -> bool:
        return (
            0x4E00 <= code <= 0x9FFF
            or 0x3400 <= code <= 0x4DBF
            or 0x20000 <= code <= 0x2A6DF
            or 0x2A700 <= code <= 0x2B73F
            or 0x2B740 <= code <= 0x2B81F
            or 0x2B820 <= code <= 0x2CEAF
            or 0xF900 <= code <= 0xFAFF
            or 0x2F800 <= code <= 0x2FA1F
        )


def compare(lines: Iterator[str], ours: Tokenizer, peer: PlainTokenizer) -> None:
    """Times both on the same text, a thousand lines each in turn, and prints the ratio."""
    seconds = {"bertjax": 0.0, "plain Python": 0.0}
    tokens = 0
    while part := list(itertools.islice(lines, 1000)):
        started = time.process_time()
        expected = [peer.encode(line) for line in part]
        between = time.process_time()
        result = [ours.encode(line) for line in part]
        seconds["bertjax"] += time.process_time() - between
        seconds["plain Python"] += between - started
        if result != expected:
            raise AssertionError("the two tokenizers differ")
        tokens += sum(map(len, result))
    for name, spent in seconds.items():
        print(f"{name:12}  {tokens / spent:12,.0f} pieces/s  {spent:6.1f} s  {tokens:,} pieces")
    print(f"ratio         {seconds['plain Python'] / seconds['bertjax']:12.1f}")


def peak_memory(path: pathlib.Path, vocab: pathlib.Path, lines: int) -> int:
    """Tokenises the first lines of the text as a stream; the peak resident size in MiB."""
    tokenizer = load_tokenizer(vocab)
    for line in itertools.islice(read_lines(path), lines):
        tokenizer.encode(line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--vocab", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int, help="only the first lines, for a quick look")
    arguments = parser.parse_args()
    # Memory first: a new process starts with the peak of the one that it was made from.
    total = sum(1 for _ in itertools.islice(read_lines(arguments.text), arguments.lines))
    for lines in (total // 4, total):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak = pool.apply(peak_memory, (arguments.text, arguments.vocab, lines))
        print(f"peak memory, {lines:8,} lines: {peak} MiB")
    ours = load_tokenizer(arguments.vocab)
    text = itertools.islice(read_lines(arguments.text), arguments.lines)
    compare(text, ours, PlainTokenizer(arguments.vocab, not ours.cased))


if __name__ == "__main__":
    main()
