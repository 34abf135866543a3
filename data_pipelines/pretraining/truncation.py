"""Pairs of a corpus of version 1, whose sentences may be of any length: too long ones are cut.

The sampling of google-research/bert, `create_instances_from_document`, for each document:

1. The target is the room for text, max_seq_length - 3 pieces; with probability `short_seq_prob` it is a
   uniform integer from 2 to that.
2. Sentences form a chunk until it reaches the target or the document ends.
3. A is the first sentences of the chunk, their number uniform in 1 .. n - 1 (1 if it has only one).
4. If the chunk is a single sentence, or else with probability one half, B is random: sentences of
   another document from a uniform one on, until A and B reach the target or that document ends; the
   rest of the chunk goes back and starts the next chunk. Otherwise B is the rest of the chunk.
5. While both together pass the room, the longer one (B in a tie) loses a piece, from its front or
   its back with equal probability.

A single segment (`next_sentence=False`) is a chunk by steps 1, 2 and 5, with room for
max_seq_length - 2 pieces.

What is cut in step 5 is not seen in this pass, and of a long sentence the middle is kept every
time: newer corpora are drawn from by `pairs`.
"""

from bisect import bisect_left

import numpy as np

from data_pipelines.corpus.shards import Shard
from data_pipelines.pretraining.pairs import Pairs, check_enough_documents, uniforms
from data_pipelines.pretraining.sections import Sections


def draw_truncated_pairs(
    sections: Sections,
    section_ids: np.ndarray,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
    next_sentence: bool = True,
) -> Pairs:
    """Walks through documents (the sections `section_ids`, int [W]) and draws their pairs, in that order.

    Args:
      max_seq_length: pieces of the longest pair, special pieces included.
      short_seq_prob: share of documents with a shorter target.
      next_sentence: False draws single segments.

    Raises:
      InputError: pairs are asked for where there is no other document to draw a random B from.
    """
    shard = sections.shard
    if next_sentence:
        check_enough_documents(shard)
    room = max_seq_length - (3 if next_sentence else 2)
    drawn: list[int] = []
    uniform = uniforms(rng).__next__
    for document, offsets in sections.offsets(section_ids):
        end = len(offsets) - 1
        target = 2 + int(uniform() * (room - 1)) if uniform() < short_seq_prob else room
        first = 0
        while first < end:
            start = offsets[first]
            last = bisect_left(offsets, start + target, first + 1, end)
            split, is_random = last, False
            if next_sentence:
                if last - first == 1:
                    is_random = True
                else:
                    split = first + 1 + int(uniform() * (last - first - 1))
                    is_random = uniform() < 0.5
            drawn += (document, start, offsets[split], offsets[last], is_random, target)
            first = split if is_random else last
    columns = np.array(drawn, np.int64).reshape(-1, 6).T
    a_document, a_start, b_start, b_end, random, targets = columns
    a_length, b_length, b_document = b_start - a_start, b_end - b_start, a_document.copy()
    at = np.flatnonzero(random)
    b_start[at], b_length[at], b_document[at] = _random_segments(
        shard, a_document[at], (targets - a_length)[at], rng
    )
    a_cut, b_cut = _tokens_to_cut(a_length, b_length, room)
    return Pairs(
        a_start=a_start + _count_front_cuts(a_cut, rng),
        a_length=a_length - a_cut,
        a_document=a_document,
        b_start=b_start + _count_front_cuts(b_cut, rng),
        b_length=b_length - b_cut,
        b_document=b_document,
        is_random=random,
    )


def _random_segments(
    shard: Shard, documents: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step 4 for R pairs: start, length and document of whole sentences outside `documents` [R].

    At least one sentence, then as many as it takes to reach `wanted` [R] pieces.
    """
    count = len(documents)
    other = (rng.random(count) * (len(shard.documents) - 2)).astype(np.int64)
    other += other >= documents
    begin, end = shard.documents[other], shard.documents[other + 1]
    first = begin + (rng.random(count) * (end - begin)).astype(np.int64)
    start = shard.sentences[first]
    last = np.clip(np.searchsorted(shard.sentences, start + wanted), first + 1, end)
    return start, shard.sentences[last] - start, other


def _tokens_to_cut(a: np.ndarray, b: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Step 5 in closed form: how many pieces A and B lose.

    Cutting the longer one until both fit leaves the shorter one whole or makes them equal, A with
    the odd piece since B is cut first in a tie.
    """
    a_left = np.where(a + b > room, np.minimum(a, np.maximum(room - b, room - room // 2)), a)
    b_left = np.minimum(b, room - a_left)
    return a - a_left, b - b_left


def _count_front_cuts(cut: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many of `cut` [P] pieces go from the front: a fair coin for each."""
    heads = np.concatenate([[0], np.cumsum(rng.random(int(cut.sum())) < 0.5)])
    end = np.cumsum(cut)
    return heads[end] - heads[end - cut]
