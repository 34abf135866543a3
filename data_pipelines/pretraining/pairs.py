"""Sentence pairs for next-sentence prediction, and single segments, drawn from a token shard.

The sampling of the paper (section A.2), of which nothing is cut away. For each document:

1. The target is the room for text, max_seq_length - 3 pieces; with probability `short_seq_prob` it is a
   uniform integer from 2 to that.
2. Sentences form a chunk until it reaches the target or the document ends. What passes the room is
   cut off and begins the next chunk. If that leaves the document less than `MIN_CHUNK_TOKENS`, the chunk takes
   it too, or, where there is no room, leaves its last sentence.
3. A is the first sentences of the chunk, their number uniform among those that leave a B. What a
   cut left of a sentence is no A or B by itself if it is shorter than `MIN_CHUNK_TOKENS`.
4. B is the rest of the chunk. But with probability one half it is random: sentences from one on
   that is uniform among those of all other documents, until they are as long as the rest, which
   goes back and starts the next chunk, or the room is full or that document ends.
5. If the chunk is a single sentence, A is all of it and B is random, until both reach the target;
   but if that leaves B less than a third of the room, the halves of the sentence are two to steps 3
   and 4. A random B then begins with half a sentence too: the place of a cut must not tell the
   label.
6. A pair that fills more than half of a row and leaves a hole makes the room of a later chunk, one
   that has several sentences: both will share a row.

(The original cuts pieces from both ends of the longer segment until all fits. They are lost, a
tenth of the text in each pass, and of a long sentence always the same. It also draws the document
of a random B first, which reads short documents more often than long ones, and fills the row with
it also where a true B could not: lengths would tell the label.)

A single segment is a chunk of exactly the target, with room for max_seq_length - 2 pieces; the first one
of a document is of uniform length among those that do not make them more, so that each pass cuts
elsewhere.

Pairs are spans of the shard's flat token array: nothing is copied before rows are laid out.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np

from data_pipelines.corpus.shards import Shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.sections import Sections
from data_pipelines.ranges import concatenate_ranges

MIN_CHUNK_TOKENS = 8  # pieces


@dataclasses.dataclass(frozen=True)
class Pairs:
    """P pairs, or single segments, as spans of a shard's tokens. Every array is int64 [P].

    A single segment has `b_length` 0 everywhere and stands for no pair of sentences.
    """

    a_start: np.ndarray
    a_length: np.ndarray  # at least 1
    a_document: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    b_document: np.ndarray  # is `a_document` exactly where B follows A
    is_random: np.ndarray  # 1 where B is random: the NSP label

    def __len__(self) -> int:
        return len(self.a_start)

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of each pair, int64 [P]: `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`."""
        return self.a_length + self.b_length + 2 + (self.b_length > 0)

    @property
    def text_lengths(self) -> np.ndarray:
        """Pieces of A and B, by turns: int64 [2P]."""
        return np.stack([self.a_length, self.b_length], 1).ravel()

    @property
    def token_indices(self) -> np.ndarray:
        """Where in the shard's tokens the pieces of A and B are, by turns: int64 [C]."""
        return concatenate_ranges(
            np.stack([self.a_start, self.b_start], 1).ravel(), self.text_lengths
        )

    def take(self, indices: np.ndarray | slice) -> Self:
        """The pairs at `indices`."""
        return type(self)(*(getattr(self, f.name)[indices] for f in dataclasses.fields(self)))

    @classmethod
    def concatenate(cls, parts: Iterable["Pairs"]) -> "Pairs":
        """One `Pairs` from several."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))


def draw_pairs(
    sections: Sections,
    section_ids: np.ndarray,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
    next_sentence: bool = True,
) -> Pairs:
    """Walks through sections, `section_ids` (int [W]), and draws their pairs, in that order.

    Args:
      max_seq_length: pieces of the longest pair, special pieces included.
      short_seq_prob: share of sections with a shorter target.
      next_sentence: False draws single segments.

    Raises:
      InputError: pairs are asked for where there is no other document to draw a random B from.
    """
    uniform = uniforms(rng).__next__
    drawn: list[int] = []  # the fields of a pair, one after the other
    holes: list[int] = []  # rooms for text that earlier pairs leave
    room = max_seq_length - (3 if next_sentence else 2)
    for document, offsets in sections.offsets(section_ids):
        target = room
        if uniform() < short_seq_prob:
            target = 2 + int(uniform() * (room - 1))
        if next_sentence:
            check_enough_documents(sections.shard)
            _draw_document_pairs(
                sections.shard, document, offsets, target, room, holes, uniform, drawn
            )
        else:
            ends = offsets[0], offsets[-1]
            for start, stop in _chunk_spans(*ends, target, room, holes, uniform):
                drawn += (start, stop - start, document, stop, 0, document, 0)
    return Pairs(*np.array(drawn, np.int64).reshape(-1, len(dataclasses.fields(Pairs))).T)


def _draw_document_pairs(
    shard: Shard,
    document: int,
    offsets: list[int],
    target: int,
    room: int,
    holes: list[int],
    uniform: Callable[[], float],
    drawn: list[int],
) -> None:
    """Steps 2 to 6 for the sentences at `offsets`; fills `drawn`, and fills and empties `holes`."""
    start, end = offsets[0], offsets[-1]
    while start < end:
        wanted, most = target, room
        if (
            holes
            and uniform() < 0.5
            and len(_candidate_ends(offsets, start, holes[-1], holes[-1])) > 1
        ):
            wanted = most = holes.pop()
        *ends, stop = _candidate_ends(offsets, start, wanted, most)
        if not ends and 3 * (stop - start) > 2 * most:
            ends = [(start + stop + 1) // 2]
        split = ends[int(uniform() * len(ends))] if ends else stop
        is_random = not ends or uniform() < 0.5
        a = split - start
        if is_random:
            is_cut = offsets[bisect_left(offsets, split)] != split
            least = stop - split or wanted - a
            begin, stop, other = _draw_random_b(shard, document, least, is_cut, uniform)
            b = min(stop - begin, most - a)
            drawn += (start, a, document, begin, b, other, 1)
            start = split
        else:
            b = stop - split
            drawn += (start, a, document, split, b, document, 0)
            start = stop
        hole = room - a - b - 3
        if most == room and 2 * MIN_CHUNK_TOKENS <= hole < room // 2:
            holes.append(hole)


def _chunk_spans(
    start: int, end: int, target: int, room: int, holes: list[int], uniform: Callable[[], float]
) -> Iterator[tuple[int, int]]:
    """From where to where the chunks of a document go; fills and empties `holes`."""
    least = (end - start - 1) % target + 1
    size = least + int(uniform() * (target - least + 1))
    while start < end:
        is_filling = bool(holes) and holes[-1] < end - start and uniform() < 0.5
        stop = min(start + (holes.pop() if is_filling else size), end)
        yield start, stop
        hole = room - (stop - start) - 2
        if not is_filling and 2 * MIN_CHUNK_TOKENS <= hole < room // 2:
            holes.append(hole)
        start, size = stop, target


def _candidate_ends(offsets: list[int], start: int, target: int, room: int) -> list[int]:
    """Where the A of a chunk that begins at `start` can end, and at last where the chunk does."""
    stop = offsets[bisect_left(offsets, min(start + target, offsets[-1]))]
    stop = min(stop, start + room)
    if 0 < (end := offsets[-1]) - stop < MIN_CHUNK_TOKENS:
        before = offsets[bisect_left(offsets, stop) - 1]
        if end - start <= room:
            stop = end
        elif before > start:
            stop = before
    first = bisect_right(offsets, start)
    last = bisect_left(offsets, stop)
    first += offsets[first] - start < MIN_CHUNK_TOKENS and offsets[first - 1] != start
    last -= offsets[last] != stop and stop - offsets[last - 1] < MIN_CHUNK_TOKENS
    return [*offsets[first:last], stop]


def _draw_random_b(
    shard: Shard, document: int, wanted: int, is_cut: bool, uniform: Callable[[], float]
) -> tuple[int, int, int]:
    """Sentences that reach `wanted` pieces, at least one: from, to, and of which other document.

    Of the first one the second half, if it `is_cut`.
    """
    begin, end = int(shard.documents[document]), int(shard.documents[document + 1])
    first = int(uniform() * (len(shard.sentences) - 1 - (end - begin)))
    if first >= begin:
        first += end - begin
    other = int(np.searchsorted(shard.documents, first, "right")) - 1
    end = int(shard.documents[other + 1])
    start = int(shard.sentences[first])
    if is_cut:
        start += int(shard.sentences[first + 1] - start) // 2
    last = bisect_left(shard.sentences, start + max(wanted, 1), first, end)
    return start, int(shard.sentences[last]), other


def check_enough_documents(shard: Shard) -> None:
    """InputError where there is no other document to draw a random B from."""
    if len(shard.documents) < 3:
        raise InputError(
            "a random second sentence must come from another document, and there is only one; "
            "prepare at least two documents a shard."
        )


def uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Numbers in [0, 1), for ever."""
    while True:
        yield from rng.random(1024).tolist()
