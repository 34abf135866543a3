"""Sentence pairs and paragraphs of a text.

Samples are those with the smallest digests of seed, document and place. They do not depend on the
order of processes, and memory holds the samples alone.
"""

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from data_pipelines.text.sentence_splitting import split_sentences

_SOURCE_WORDS = 60  # before the sentence that is to be generated
_TARGET_WORDS = range(5, 31)
_PARAGRAPH_WORDS = range(40, 251)  # those of SQuAD have about 120
_MAX_PARAGRAPHS = 10  # of a document
_OVERLAP_WORDS = 13  # as many equal words mark a passage as known (Brown et al. 2020)


def digest(*parts: object) -> int:
    """Return 64 bits that depend on the parts alone."""
    data = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def sample_sentence_pairs(
    documents: Iterable[Sequence[str]], count: int, seed: int
) -> list[dict[str, str]]:
    """Return pairs {"source", "target"} of some sentences and the next one of a paragraph.

    Args:
      documents: lists of paragraphs.
      count: maximal number of pairs.
      seed: decides which.
    """
    heap: list[tuple[int, str, str]] = []  # of negated digests, the largest digest first
    for number, document in enumerate(documents):
        for line_number, line in enumerate(document):
            sentences = split_sentences(line)
            for i in range(1, len(sentences)):
                if len(sentences[i].split()) not in _TARGET_WORDS:
                    continue
                key = -digest(seed, number, line_number, i)
                if len(heap) == count and key <= heap[0][0]:
                    continue
                source = " ".join(" ".join(sentences[:i]).split()[-_SOURCE_WORDS:])
                add = heapq.heappushpop if len(heap) == count else heapq.heappush
                add(heap, (key, source, sentences[i]))
    return [{"source": source, "target": target} for _, source, target in sorted(heap)[::-1]]


def known_words(passages: Iterable[str]) -> set[int]:
    """Return the hashes of all runs of 13 words of passages."""
    return {key for passage in passages for key in _word_runs(passage)}


def _word_runs(text: str) -> Iterable[int]:
    words = text.lower().split()
    starts = range(len(words) - _OVERLAP_WORDS + 1)
    return (digest(*words[start : start + _OVERLAP_WORDS]) for start in starts)


def sample_paragraphs(
    documents: Iterable[Sequence[str]], count: int, seed: int, known: set[int]
) -> list[dict[str, Any]]:
    """Return paragraphs {"id", "document", "context"} of whole documents.

    Args:
      documents: lists of paragraphs.
      count: maximal number of paragraphs.
      seed: decides which documents.
      known: hashes of `known_words`; documents with one of them in any paragraph are left out.
    """
    heap: list[tuple[int, int, list[str]]] = []  # of negated digests, the largest digest first
    total = 0
    for number, document in enumerate(documents):
        key = -digest("document", seed, number)
        if total >= count and key <= heap[0][0]:
            continue
        paragraphs = [" ".join(p.split()) for p in document if len(p.split()) in _PARAGRAPH_WORDS]
        paragraphs = list(dict.fromkeys(paragraphs))[:_MAX_PARAGRAPHS]
        if not paragraphs or any(run in known for p in document for run in _word_runs(p)):
            continue
        heapq.heappush(heap, (key, number, paragraphs))
        total += len(paragraphs)
        while total - len(heap[0][2]) >= count:
            total -= len(heapq.heappop(heap)[2])
    rows = [
        {"id": f"{number}-{i}", "document": number, "context": paragraph}
        for _, number, paragraphs in sorted(heap, key=lambda item: item[1])
        for i, paragraph in enumerate(paragraphs)
    ]
    return rows[:count]
