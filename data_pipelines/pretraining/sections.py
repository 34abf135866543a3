"""Documents as they are shuffled and drawn from: those longer than a bound in several sections."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from data_pipelines.corpus.shards import Shard


@dataclasses.dataclass(frozen=True)
class Sections:
    """The sections of a shard: each a run of sentences of one document."""

    shard: Shard
    bounds: np.ndarray  # int64 [U+1]: section u has sentences bounds[u] .. bounds[u+1] - 1
    documents: np.ndarray  # int64 [U]: the document that each is from

    @classmethod
    def from_shard(cls, shard: Shard, longest: int | None) -> "Sections":
        """Cuts documents at the first end of a sentence after each `longest` tokens, if given."""
        bounds = shard.documents
        begins = shard.sentences[bounds]
        long = np.flatnonzero(np.diff(begins) > longest) if longest else ()
        if len(long):
            cuts = [np.arange(begins[d] + longest, begins[d + 1], longest) for d in long]
            bounds = np.union1d(bounds, np.searchsorted(shard.sentences, np.concatenate(cuts)))
        return cls(shard, bounds, np.searchsorted(shard.documents, bounds[:-1], "right") - 1)

    def __len__(self) -> int:
        return len(self.documents)

    def sizes(self, section_ids: np.ndarray) -> np.ndarray:
        """Tokens of each of the sections `section_ids` (int [W]), int64 [W]."""
        begin, end = self.bounds[section_ids], self.bounds[section_ids + 1]
        return self.shard.sentences[end] - self.shard.sentences[begin]

    def offsets(self, section_ids: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Each of `section_ids`: its document and its sentences' offsets in tokens, the end included."""
        columns = (
            self.documents[section_ids],
            self.bounds[section_ids],
            self.bounds[section_ids + 1],
        )
        for document, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            yield document, self.shard.sentences[begin : end + 1].tolist()

    def split_into_chunks(self, section_ids: np.ndarray, tokens: int) -> list[np.ndarray]:
        """Consecutive parts of `section_ids` of about so many tokens each, none without a section."""
        ends = np.cumsum(self.sizes(section_ids))
        count = max(1, round(int(ends[-1]) / tokens))
        bounds = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
        return [part for part in np.split(section_ids, bounds) if len(part)]
