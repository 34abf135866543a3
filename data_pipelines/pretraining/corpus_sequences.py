"""The rows of one split of one corpus: of any stream, from any row on.

A stream is an endless sequence of rows from some of the corpus's shards; see `streams`. Held-out
data is one stream with an end.

Streams that have no shards of their own are siblings: they share those of a group. Each begins at a
place of its own in the pass, where another one's part of it ends, and reads on from there. So they
pass over all text together, and a batch has rows from all over the shards. Streams read as fast as
one another, so groups hold as much text as one another: a document that is longer than a shard
should be leaves them large.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining import streams
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.sequences import (
    SAMPLING_VERSIONS,
    PackedPairs,
    count_sequences_to_keep,
    draw_sequences,
)
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

SAMPLE_TOKENS = 1 << 19  # drawn at the start to learn how many rows a token gives
MAX_GROUP_SIZE_RATIO = 1.02  # the text of one group of shards to that of another, at most

Broadcast = Callable[[Callable[[], tuple[int, ...]], int], tuple[int, ...]]


class Corpus:
    """A split of a corpus directory, checked, of which nothing is open yet.

    Args:
      directory: a corpus that `bertjax prepare` wrote.
      split: "train" or "heldout".
      name: tells its randomness from that of other corpora in the same run.

    Raises:
      InputError: the corpus is unfinished or damaged, or has no such split.
    """

    def __init__(self, directory: epath.PathLike, split: str, name: str = "") -> None:
        self.directory, self.split, self.name = epath.Path(directory), split, name
        self.manifest = read_manifest(directory)
        self.sampling_version = SAMPLING_VERSIONS[self.manifest.version]
        self.tokenizer: Tokenizer = load_tokenizer(directory)
        self.shard_infos = (
            self.manifest.train_shards if split == "train" else self.manifest.eval_shards
        )
        if self.tokenizer.fingerprint() != self.manifest.tokenizer_fingerprint:
            raise InputError(
                f"{self.directory} was prepared with another tokenizer than the one that is in it "
                "now; prepare it again."
            )
        if not self.shard_infos:
            raise InputError(
                f"{self.directory} has no {split} documents; prepare it with some, or do "
                "without evaluation."
            )


class CorpusSequences:
    """Gives `PackedPairs`s of rows; opens only the shards of the streams that are asked of it.

    Args:
      corpus: whose rows they are.
      streams: how many there are; 1 for held-out data.
      own: the streams that are to be read.
      sequences_in_flight: about how many rows are made at the same time.
      share: gives all hosts the `size` integers that a function gives on the first one.

    Attributes:
      sequences_per_epoch: rows of one pass, all streams together.
    """

    def __init__(
        self,
        corpus: Corpus,
        options: PretrainingOptions,
        num_streams: int,
        stream_ids: Iterable[int],
        sequences_in_flight: int,
        share: Broadcast,
    ) -> None:
        self._corpus, self._options = corpus, options
        self._training = corpus.split == "train"
        self._sampling_version, self._infos = corpus.sampling_version, corpus.shard_infos
        self._groups = self._count_groups(num_streams) if self._training else 1
        self._streams_per_group = num_streams // self._groups
        stream_ids = sorted(stream_ids)
        least = 2 if options.objective == "mlm_nsp" else 1
        for info in self._infos:
            if info.documents < least:
                raise InputError(
                    f"{corpus.directory / info.name} holds {info.documents} document, and a random "
                    "second sentence must come from another one; prepare more text or fewer shards."
                )
        groups = sorted({stream // self._streams_per_group for stream in stream_ids})
        needed = list(itertools.chain.from_iterable(map(self._shards_of, groups)))
        with ThreadPoolExecutor(options.threads) as pool:
            self._sections = dict(zip(needed, pool.map(self._open, needed), strict=True))

        places = 2 * len(stream_ids)  # where each stream is, and where it will be
        self._chunk_tokens = self._sampling_version.chunk(options.max_seq_length)
        chunks = sequences_in_flight * options.max_seq_length // self._chunk_tokens
        self._order = streams.ThreadSafeLRUCache(self._make_order, places)
        self._plan = streams.ThreadSafeLRUCache(
            self._make_chunk_index, places if self._training else len(self._infos)
        )
        self._chunk = streams.ThreadSafeLRUCache(self._make_chunk, places + chunks)
        if self._training:
            kept, self._sampled_tokens = share(self._measure_tokens_per_sequence, 2)
            self._sampled_sequences = int(kept * (1 + self._sampling_version.extra_fraction))
            self._sequences_per_shard = [
                self._sequences_from_tokens(info.tokens) for info in self._infos
            ]
        else:
            self._sequences_per_shard = [
                self._plan(0, shard).ends[-1] for shard in range(len(self._infos))
            ]
        self.sequences_per_epoch = sum(self._sequences_per_shard)

    def sequences_per_pass(self, group: int) -> int:
        """Rows of one pass over a group's shards: of a stream without siblings, one pass of it."""
        return self._order(0, group).ends[-1]

    def parts(self, stream: int, start: int, count: int) -> Iterator[PackedPairs]:
        """Rows start .. start + count - 1 of a stream."""
        width = self._options.draws_per_sequence
        while count:
            epoch, shard, chunk, row, left = self._locate(stream, start)
            found = min(count, left)
            pairs, row_of = self._chunk(epoch, shard, chunk)
            drawn = slice(*row_of.searchsorted((row, row + found)))
            rng = streams.generator(*self._rng_key(epoch, shard, chunk, "masks"), skip=row * width)
            yield PackedPairs(
                self._sections[shard].shard.tokens,
                pairs.take(drawn),
                row_of[drawn] - row,
                rng.random((found, width)),
            )
            start += found
            count -= found

    def prefetch(self, stream: int, start: int, stop: int) -> None:
        """Makes what takes long of rows start .. stop - 1 of a stream."""
        while start < stop:
            *chunk, _, left = self._locate(stream, start)
            self._chunk(*chunk)
            start += left

    def _locate(self, stream: int, start: int) -> tuple[int, int, int, int, int]:
        """Epoch, shard and chunk of a row of a stream, which row it is there, and those left there.

        A pass of R rows has a part for each of S siblings, part p being rows R p // S and on. In
        epoch e sibling i reads part (i + e) mod S: so it goes round and round, and never in one
        epoch where another one does.
        """
        group, turn = divmod(stream, self._streams_per_group)
        rows = self.sequences_per_pass(group)
        at = rows * turn // self._streams_per_group + start  # rounds of the pass behind one another
        part = (self._streams_per_group * (at + 1) - 1) // rows
        epoch, row = part - turn, at % rows
        order = self._order(epoch, group)
        which, first, _ = order.find(row)
        shard, row = order.items[which], row - first
        chunk, first, end = self._plan(epoch, shard).find(row)
        left = min(end - row, rows * (part + 1) // self._streams_per_group - at)
        return epoch, shard, chunk, row - first, left

    def _rng_key(self, epoch: int, *rest: int | str) -> tuple[int | str, ...]:
        """What randomness depends on. Held-out data does not depend on the seed."""
        if not self._training:
            return ("eval", *rest)
        repeats = self._options.dupe_factor
        name = (self._corpus.name,) if self._corpus.name else ()
        return "train", self._options.seed, *name, epoch % repeats if repeats else epoch, *rest

    def _count_groups(self, num_streams: int) -> int:
        """As many as streams and shards divide into, and as are even."""
        most = math.gcd(num_streams, len(self._infos))
        tokens = np.array([info.tokens for info in self._infos])
        for groups in range(most, 1, -1):
            if most % groups == 0:
                sizes = tokens.reshape(-1, groups).sum(axis=0)
                if (
                    not self._sampling_version.even_groups
                    or sizes.max() <= MAX_GROUP_SIZE_RATIO * sizes.min()
                ):
                    return groups
        return 1

    def _shards_of(self, group: int) -> range:
        return range(group, len(self._infos), self._groups)

    def _make_order(self, epoch: int, group: int) -> streams.Plan:
        """The shards of a group in the order in which an epoch reads them."""
        shards = self._shards_of(group)
        order = streams.permutation(len(shards), *self._rng_key(epoch, group, "shards"))
        items = [shards[i] for i in order]
        return streams.Plan(
            items, list(itertools.accumulate(self._sequences_per_shard[i] for i in items))
        )

    def _open(self, shard: int) -> Sections:
        opened = read_shard(self._corpus.directory, self._infos[shard])
        return Sections.from_shard(
            opened, self._sampling_version.section(self._options.max_seq_length)
        )

    def _split_into_chunks(self, shard: int, *key: int | str) -> list[np.ndarray]:
        """The shuffled sections of a shard in chunks."""
        sections = self._sections[shard]
        return sections.split_into_chunks(
            streams.permutation(len(sections), *key), self._chunk_tokens
        )

    def _make_chunk_index(self, epoch: int, shard: int) -> streams.Plan:
        """The chunks of a shard, and how many rows each is to have."""
        chunks = self._split_into_chunks(shard, *self._rng_key(epoch, shard, "documents"))
        if self._training:
            sizes = [self._sections[shard].sizes(chunk).sum() for chunk in chunks]
            return streams.Plan(chunks, self._sequences_from_tokens(np.cumsum(sizes)).tolist())
        drawn = [
            self._draw_sequences(shard, chunk, self._rng_key(epoch, shard, i))
            for i, chunk in enumerate(chunks)
        ]
        rows = [int(row_of.max()) + 1 for _, row_of in drawn]
        return streams.Plan(chunks, list(itertools.accumulate(rows)))

    def _measure_tokens_per_sequence(self) -> tuple[int, int]:
        """Rows worth keeping, and the tokens that gave them: equal on all hosts, for any seed."""
        rows = tokens = 0
        for shard in self._shards_of(0):
            if shard not in self._sections:
                self._sections[shard] = self._open(shard)
            for chunk in self._split_into_chunks(shard, "sample", shard):
                pairs, row_of = self._draw_sequences(shard, chunk, ("sample", shard, tokens))
                rows += count_sequences_to_keep(
                    pairs, row_of, self._options, self._sampling_version
                )
                tokens += int(self._sections[shard].sizes(chunk).sum())
                if tokens >= SAMPLE_TOKENS:
                    return rows, tokens
        return rows, tokens

    def _sequences_from_tokens(self, tokens: Any) -> Any:
        """Rows of an epoch in the first `tokens` of a shard (an integer, or an array of them)."""
        return -(-tokens * self._sampled_sequences // self._sampled_tokens)

    def _draw_sequences(
        self, shard: int, which: np.ndarray, key: tuple[int | str, ...], wanted: int = 0
    ) -> tuple[Pairs, np.ndarray]:
        rng = streams.generator(*key, "pairs")
        return draw_sequences(
            self._sections[shard], which, self._options, self._sampling_version, rng, wanted
        )

    def _make_chunk(self, epoch: int, shard: int, chunk: int) -> tuple[Pairs, np.ndarray]:
        """The pairs of a chunk in the order of its rows, and the row of each."""
        plan = self._plan(epoch, shard)
        rows = plan.ends[chunk] - (plan.ends[chunk - 1] if chunk else 0)
        key = self._rng_key(epoch, shard, chunk)
        wanted = rows if self._training else 0  # of held-out data all that there are
        pairs, row_of = self._draw_sequences(shard, plan.items[chunk], key, wanted)
        kept = np.flatnonzero(row_of < rows)
        row = streams.permutation(rows, *key, "order")[row_of[kept]]
        order = np.argsort(row, kind="stable")
        return pairs.take(kept[order]), row[order]
