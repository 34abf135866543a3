"""Time of text functions on pathological texts: linear, so that no text blocks a server.

    python -m experiments.bench.text_time
    python -m experiments.bench.text_time --size 100000 --limit 2.5

Each function reads each pattern at one, two and four times a number of characters: `--size`, or as
many times two as take 20 ms. A time is the smallest processor time of several calls without
garbage collection. A row is printed for each pair of function and pattern; the exit status is 1 if
one grows by more than `--limit` a doubling. It takes about 15 minutes.
"""

import argparse
import contextlib
import gc
import itertools
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from types import FrameType

from etils import epath

from bertjax.mesh.allocator import keep_freed_memory
from bertjax.tasks.fill_mask import encode_with_masks
from bertjax.tasks.question_answering.metrics import f1, normalize
from data_pipelines.errors import InputError
from data_pipelines.finetuning.labels import parse_list
from data_pipelines.finetuning.question_answering.squad import Answer
from data_pipelines.finetuning.question_answering.windows import nearest_answer
from data_pipelines.finetuning.table import read_table
from data_pipelines.finetuning.token_classification.dataset import read_tagged_file
from data_pipelines.finetuning.token_classification.running_text import word_offsets
from data_pipelines.text.plain_text import extractor_documents, wikitext_documents
from data_pipelines.text.sentence_splitting import split_sentences
from data_pipelines.text.sources import read_documents
from data_pipelines.text.wikitext import make_extractor
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

PATTERNS: dict[str, str | tuple[str, str]] = {  # a unit that is repeated, or a pair of them
    "one word": "a",
    "short words": "a ",
    "combining marks": "a\u0301\u0301\u0301\u0301\u0301\u0301\u0301",
    "marks alone": "\u0301",
    "marks out of order": "\u0301\u0316",
    "viramas and tone marks": "\u302e\u1b44",
    "final sigmas": "Σ'\u0301",
    "control characters": "\x00\x01\u200b",
    "full stops": ".",
    "initials": "A. ",
    "spaces": " ",
    "blank lines": "\n",
    "carriage returns": "\r",
    "ideographs": "中。",
    "special tokens": "[MASK]",
    "open brackets": "[",
    "open tags": "<a <!--",
    "open templates": "{{a|",
    "nested templates": ("{{a|", "}}"),
    "open tables": "\n{|\n|-\na",
    "open references": "<ref>",
    "closed comments": "<!-- -->",
    "open links": "[[a|",
    "parentheses": "( ",
    "quotes": "''\"",
    "commas and quotes": '",a\t"',
    "headings": ("= ", " = x"),
    "titles": '<doc id="1" title="',
    "entities": "&amp;&#",
    "nested lists": "[{'a':",
    "Thai": "ก ",
}
_VOCABULARY = [*SPECIAL_TOKENS, "a", "##a", "A", ".", "[", "]", "中", "ma", "##s", "k", "##k"]
_SECONDS = 20  # of a call, after which it counts as too slow
_SHORTEST, _LONGEST = 0.02, 400_000  # seconds and characters of the shortest text
_MIN_CALLS, _MAX_CALLS = 3, 20
Function = Callable[[str], object]


def text_functions(directory: pathlib.Path) -> dict[str, Function]:
    """Return the functions by name; readers of files write the text into the directory."""
    cased, uncased = (WordPieceTokenizer(_VOCABULARY, cased=value) for value in (True, False))
    extract = make_extractor("lists", ())

    def read(suffix: str, reader: Callable[[epath.Path], object], start: str = "") -> Function:
        path = directory / f"text{suffix}"

        def call(text: str) -> object:
            path.write_text(start + text, newline="")
            return reader(epath.Path(path))

        return call

    return {
        "encode, cased": cased.encode,
        "encode, uncased": uncased.encode,
        "encode_with_offsets, cased": cased.encode_with_offsets,
        "encode_with_offsets, uncased": uncased.encode_with_offsets,
        "encode_words": lambda text: uncased.encode_words([text]),
        "split_sentences": split_sentences,
        "word_offsets": lambda text: list(word_offsets(text)),
        "normalize": normalize,
        "f1": lambda text: f1(text, text[::2], 2),
        "nearest_answer": lambda text: nearest_answer(
            text, Answer(text[: len(text) // 2] + "b", 3)
        ),
        "parse_list": lambda text: parse_list(f"[{text}]"),
        "encode_with_masks": lambda text: encode_with_masks(uncased, text),
        "wikitext": extract,
        "wikitext_documents": lambda text: list(wikitext_documents("", text.split("\n"))),
        "extractor_documents": lambda text: list(
            extractor_documents("", text.split("\n"), lambda error: None)
        ),
        "read_documents": read(".txt", lambda path: list(read_documents([str(path)]))),
        "read_documents, JSON": read(".jsonl", lambda path: list(read_documents([str(path)]))),
        "read_documents, CSV": read(".csv", lambda path: list(read_documents([str(path)]))),
        "read_table, CSV": read(".csv", read_table, "text,label\n"),
        "read_table, TSV": read(".tsv", read_table, "text\tlabel\n"),
        "read_table, JSON": read(".json", read_table, "["),
        "read_tagged_file": read(".conll", read_tagged_file, "a B-X\n"),
    }


def seconds(function: Function, text: str) -> float:
    """Return the processor time of a call, inf if it exceeds the limit."""
    start = time.process_time()
    try:
        with _time_limit(), contextlib.suppress(InputError):
            function(text)
    except TimeoutError:
        return float("inf")
    return time.process_time() - start


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def make_text(pattern: str, size: int) -> str:
    """Return a pattern with about `size` characters.

    Its units are of an even number, so that quotes are open or closed at the end of all sizes. What
    Python's parser does with them differs by a third of the time.
    """
    units = PATTERNS[pattern]
    if isinstance(units, str):
        return units * (size // (2 * len(units)) * 2)
    count = size // (2 * sum(map(len, units))) * 2
    return "".join(unit * count for unit in units)


def measure(
    function: Function, pattern: str, size: int, limit: float
) -> tuple[int, list[float], list[float]]:
    """Return the smallest size in characters, three times in seconds, and two growths.

    Further calls lower the times until no growth is above the limit: other programs only add time.
    """
    while seconds(function, make_text(pattern, size)) < _SHORTEST and size < _LONGEST:
        size *= 2
    texts = [make_text(pattern, scale * size) for scale in (1, 2, 4)]
    times = [float("inf")] * len(texts)
    for call in range(_MAX_CALLS):
        gc.collect()
        new = [seconds(function, text) for text in texts]
        times = [min(pair) for pair in zip(times, new, strict=True)]
        growths = [after / before for before, after in itertools.pairwise(times)]
        if call + 1 >= _MIN_CALLS and max(growths) <= limit:
            break
    return size, times, growths


def main() -> int:
    """Print a row for each pair of function and pattern."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=50_000, help="characters (%(default)s)")
    parser.add_argument("--limit", type=float, default=2.5, help="growth a doubling (%(default)s)")
    args = parser.parse_args()
    gc.disable()  # its share depends on the objects that exist
    keep_freed_memory()  # as commands do
    slow, largest, slowest = 0, 0.0, 0.0
    print(f"{'function':<29}{'pattern':<25}{'characters':>10}  {'seconds at 1x, 2x, 4x':<23}growth")
    with tempfile.TemporaryDirectory() as directory:
        for name, function in text_functions(pathlib.Path(directory)).items():
            for pattern in PATTERNS:
                size, times, growths = measure(function, pattern, args.size, args.limit)
                largest, slowest = max(largest, *growths), max(slowest, times[-1] / size / 4)
                is_slow = not max(growths) <= args.limit
                slow += is_slow
                print(
                    f"{name:<29}{pattern:<25}{size:>10,}  {' '.join(f'{t:7.3f}' for t in times)}  "
                    f"{' '.join(f'{g:.2f}' for g in growths)}{' TOO SLOW' * is_slow}",
                    flush=True,
                )
    print(f"{slow} above {args.limit}; largest growth {largest:.2f}; ", end="")
    print(f"at most {1e6 * slowest:.1f} s for a million characters")
    return slow > 0


if __name__ == "__main__":
    sys.exit(main())
