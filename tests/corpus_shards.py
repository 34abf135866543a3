"""Shards in memory, and hypothesis strategies for drawing pairs from them."""

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from data_pipelines.corpus.shards import Shard, ShardWriter

Documents = list[list[int]]  # the length of each sentence of each document
WHOLE = 1 << 40  # section length in tokens with which every document is one section


def append_document(writer: ShardWriter, document: Sequence[Sequence[int]]) -> None:
    """Append a document, given as the token ids of its sentences."""
    lengths = np.array([len(sentence) for sentence in document], np.int64)
    tokens = np.array([token for sentence in document for token in sentence], np.int64)
    writer.append(tokens, lengths, np.array([len(lengths)]))


def make_shard(documents: Documents) -> Shard:
    """Return a shard whose token i has id i."""
    sentences = np.cumsum([0, *itertools.chain.from_iterable(documents)])
    return Shard(
        tokens=np.arange(sentences[-1], dtype=np.uint32),
        sentences=sentences,
        documents=np.cumsum([0, *map(len, documents)]),
    )


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


lengths = st.integers(1, 40) | st.integers(1, 3)
corpora = st.lists(st.lists(lengths, min_size=1, max_size=8), min_size=2, max_size=6)
seq_lens = st.integers(8, 80)
shorts = st.sampled_from([0.0, 0.1, 1.0])
seeds = st.integers(0, 2**32)
