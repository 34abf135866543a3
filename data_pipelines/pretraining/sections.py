"""Sections of documents: the units that are shuffled and from which pairs are drawn."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from data_pipelines.corpus.shards import Shard


@dataclasses.dataclass(frozen=True)
class Sections:
    """The sections of a shard. A section is a run of consecutive sentences of one document.

    In a corpus of pairs it is a pair: two sentences, of two documents if the second is random.
    """

    shard: Shard
    bounds: np.ndarray  # int64 [U+1]: section u has sentences bounds[u] .. bounds[u+1] - 1
    documents: np.ndarray  # int64 [U]: document of each section
    are_pairs: bool = False

    @classmethod
    def from_shard(cls, shard: Shard, max_tokens: int) -> "Sections":
        """Split each document at the first sentence end after every `max_tokens` tokens."""
        begins = shard.sentences[shard.documents]
        long = np.flatnonzero(np.diff(begins) > max_tokens)
        cuts = [np.arange(begins[d] + max_tokens, begins[d + 1], max_tokens) for d in long]
        cut_sentences = np.searchsorted(shard.sentences, np.concatenate([begins[:0], *cuts]))
        bounds = np.union1d(shard.documents, cut_sentences)
        return cls(shard, bounds, np.searchsorted(shard.documents, bounds[:-1], "right") - 1)

    @classmethod
    def of_pairs(cls, shard: Shard) -> "Sections":
        """Return the pairs of a shard of a corpus of pairs."""
        bounds = np.arange(0, len(shard.sentences), 2)
        documents = np.searchsorted(shard.documents, bounds[:-1], "right") - 1
        return cls(shard, bounds, documents, are_pairs=True)

    def __len__(self) -> int:
        return len(self.documents)

    def sizes(self, section_ids: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each section in `section_ids` (int [W]), int64 [W]."""
        begin, end = self.bounds[section_ids], self.bounds[section_ids + 1]
        return self.shard.sentences[end] - self.shard.sentences[begin]

    def sentence_offsets(self, section_ids: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Yield the document of each section and the token offsets of its sentences.

        The offsets include the end of the last sentence.
        """
        columns = (
            self.documents[section_ids],
            self.bounds[section_ids],
            self.bounds[section_ids + 1],
        )
        for document, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            yield document, self.shard.sentences[begin : end + 1].tolist()

    def split_into_chunks(self, section_ids: np.ndarray, tokens: int) -> list[np.ndarray]:
        """Split `section_ids` into consecutive, nonempty chunks of about `tokens` tokens each."""
        ends = np.cumsum(self.sizes(section_ids))
        num_chunks = max(1, round(int(ends[-1]) / tokens))
        bounds = np.searchsorted(ends, ends[-1] * np.arange(1, num_chunks) // num_chunks)
        return [chunk for chunk in np.split(section_ids, bounds) if len(chunk)]
