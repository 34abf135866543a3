"""Sentence pairs for next sentence prediction, and single segments, drawn from a token shard.

The procedure follows the paper (section A.2), but truncates nothing. For each document:

1. The target is the room for text, max_seq_length - 3 tokens. With probability `short_seq_prob` it
   is a uniform integer from 2 to that number.
2. Sentences form a chunk until it reaches the target or the document ends. Tokens beyond the room
   start the next chunk. If fewer than `MIN_CHUNK_TOKENS` tokens of the document would remain, the
   chunk takes them too. Where there is no space for them, it leaves its last sentence to the next.
3. A is the first sentences of the chunk. Their number is uniform among those that leave a B. A
   partial sentence shorter than `MIN_CHUNK_TOKENS` is never A or B alone.
4. B is the remaining sentences of the chunk. With probability one half, B is random instead: it
   starts at a uniform sentence of all other documents. A random B ends when it is as long as the
   true B would be, when the room is full, or when its document ends. The true B then starts the
   next chunk.
5. If the chunk is a single sentence, A is all of it and B is random, until both reach the target.
   If that leaves less than a third of the room for B, steps 3 and 4 apply to the halves of the
   sentence. A random B then also starts with half a sentence, so that a cut does not reveal the
   label.
6. A pair may fill more than half of a sequence and leave a hole. The hole is then the room of a
   later chunk with several sentences, so that both pairs fill one sequence.

google-research/bert differs in three points. It truncates both ends of the longer segment, which
loses a tenth of the text in each pass, always the same parts of long sentences. It draws the
document of a random B first, which favors short documents. It fills the sequence with a random B
where a true B could not, so that the length reveals the label.

A single segment is a chunk of exactly the target, with room for max_seq_length - 2 tokens. The
first segment of a document has a uniform length among those that do not increase their number, so
that each pass cuts elsewhere.

Pairs are spans of the shard's flat token array: tokens are copied only into batches.
"""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np

from data_pipelines.corpus.shards import Shard
from data_pipelines.pretraining.sections import Sections
from data_pipelines.ranges import concatenate_ranges

MIN_CHUNK_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Pairs:
    """P pairs, or single segments, as spans of a shard's tokens. Every array is int64 [P].

    A single segment has `b_length` 0.
    """

    a_start: np.ndarray
    a_length: np.ndarray  # at least 1
    b_start: np.ndarray
    b_length: np.ndarray
    is_random: np.ndarray  # NSP label: 1 where B is random

    def __len__(self) -> int:
        return len(self.a_start)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each pair, int64 [P]: `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`."""
        return self.a_length + self.b_length + 2 + (self.b_length > 0)

    @property
    def text_lengths(self) -> np.ndarray:
        """Lengths of A and B, alternating: int64 [2P]."""
        return np.stack([self.a_length, self.b_length], 1).ravel()

    @property
    def token_indices(self) -> np.ndarray:
        """Indices into the shard's tokens of A and B, alternating: int64 [C]."""
        return concatenate_ranges(
            np.stack([self.a_start, self.b_start], 1).ravel(), self.text_lengths
        )

    def take(self, indices: np.ndarray | slice) -> Self:
        """Return the pairs at `indices`."""
        return type(self)(*(getattr(self, f.name)[indices] for f in dataclasses.fields(self)))

    @classmethod
    def concatenate(cls, parts: Iterable["Pairs"]) -> "Pairs":
        """Concatenate several `Pairs`."""
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
    """Draw the pairs of sections, in the order of `section_ids`.

    Args:
      sections: the sections of a shard, with two documents or more for next sentences.
      section_ids: int [W].
      max_seq_length: tokens of the longest pair, including special tokens.
      short_seq_prob: fraction of sections with a shorter target.
      rng: source of randomness.
      next_sentence: False draws single segments.
    """
    uniform = _uniforms(rng).__next__
    drawn: list[int] = []  # the fields of all pairs, concatenated
    holes: list[int] = []  # room for text that earlier pairs left
    room = max_seq_length - (3 if next_sentence else 2)
    for document, offsets in sections.sentence_offsets(section_ids):
        target = room
        if uniform() < short_seq_prob:
            target = 2 + int(uniform() * (room - 1))
        if next_sentence:
            _draw_document_pairs(
                sections.shard, document, offsets, target, room, holes, uniform, drawn
            )
        else:
            ends = offsets[0], offsets[-1]
            for start, stop in _chunk_spans(*ends, target, room, holes, uniform):
                drawn += (start, stop - start, stop, 0, 0)
    return Pairs(*np.array(drawn, np.int64).reshape(-1, len(dataclasses.fields(Pairs))).T)


def stored_pairs(sections: Sections, section_ids: np.ndarray) -> Pairs:
    """Return the pairs of a corpus of pairs; arguments as of `draw_pairs`."""
    first, shard = sections.bounds[section_ids], sections.shard
    start, middle, end = (shard.sentences[first + i] for i in range(3))
    # The second text is random where it begins a document of its own.
    document_end = shard.documents[sections.documents[section_ids] + 1]
    return Pairs(start, middle - start, middle, end - middle, (document_end == first + 1) + 0)


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
    """Apply steps 2 to 6 to the sentences at `offsets`; update `holes`, append to `drawn`."""
    start, end = offsets[0], offsets[-1]
    while start < end:
        chunk_target, chunk_room = target, room
        if (
            holes
            and uniform() < 0.5
            and len(_candidate_ends(offsets, start, holes[-1], holes[-1])) > 1
        ):
            chunk_target = chunk_room = holes.pop()
        *ends, stop = _candidate_ends(offsets, start, chunk_target, chunk_room)
        if not ends and 3 * (stop - start) > 2 * chunk_room:
            ends = [(start + stop + 1) // 2]
        split = ends[int(uniform() * len(ends))] if ends else stop
        is_random = not ends or uniform() < 0.5
        a_length = split - start
        if is_random:
            is_cut = offsets[bisect_left(offsets, split)] != split
            min_tokens = stop - split or chunk_target - a_length
            begin, stop = _draw_random_b(shard, document, min_tokens, is_cut, uniform)
            b_length = min(stop - begin, chunk_room - a_length)
            drawn += (start, a_length, begin, b_length, 1)
            start = split
        else:
            b_length = stop - split
            drawn += (start, a_length, split, b_length, 0)
            start = stop
        hole = room - a_length - b_length - 3
        if chunk_room == room and 2 * MIN_CHUNK_TOKENS <= hole < room // 2:
            holes.append(hole)


def _chunk_spans(
    start: int, end: int, target: int, room: int, holes: list[int], uniform: Callable[[], float]
) -> Iterator[tuple[int, int]]:
    """Yield start and end of each chunk of a document, single segments; update `holes`."""
    min_size = (end - start - 1) % target + 1
    size = min_size + int(uniform() * (target - min_size + 1))
    while start < end:
        is_filling = bool(holes) and holes[-1] < end - start and uniform() < 0.5
        stop = min(start + (holes.pop() if is_filling else size), end)
        yield start, stop
        hole = room - (stop - start) - 2
        if not is_filling and 2 * MIN_CHUNK_TOKENS <= hole < room // 2:
            holes.append(hole)
        start, size = stop, target


def _candidate_ends(offsets: list[int], start: int, target: int, room: int) -> list[int]:
    """Return the possible ends of A in the chunk that starts at `start`, then the chunk's end."""
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
    shard: Shard, document: int, min_tokens: int, is_cut: bool, uniform: Callable[[], float]
) -> tuple[int, int]:
    """Return start and end of a random B: at least one sentence of another document.

    B reaches `min_tokens` tokens unless its document ends. With `is_cut` it starts in the middle of
    its first sentence.
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
    last = bisect_left(shard.sentences, start + max(min_tokens, 1), first, end)
    return start, int(shard.sentences[last])


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Yield numbers in [0, 1) without end."""
    while True:
        yield from rng.random(1024).tolist()
