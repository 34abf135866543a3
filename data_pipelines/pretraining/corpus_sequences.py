"""The sequences of one split of one corpus: of any stream, from any sequence on.

A stream is an endless series of sequences from some of the corpus's shards (see `streams`). The
eval split is one finite stream.

A corpus may have fewer shards than there are streams. Its shards then form groups, and all streams
of a group read the shards of the group. Each stream starts at another part of the pass and rotates
through the parts. Together they pass over all text, and a batch has sequences from all over the
shards. All streams advance at the same rate, so groups must hold equal amounts of text. A document
longer than a shard should be makes them unequal; then fewer, larger groups are used.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from data_pipelines.corpus.shards import MAX_PAIR_LENGTH, SPANS, read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining import sequences, streams
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.sequences import (
    PackedPairs,
    choose_sequences,
    count_sequences_to_keep,
    draw_sequences,
)
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

SAMPLE_TOKENS = 1 << 19  # drawn at the start to measure the tokens per sequence
MAX_GROUP_SIZE_RATIO = 1.02  # tokens of the largest group of shards to those of the smallest

Broadcast = Callable[[Callable[[], tuple[int, ...]], int], tuple[int, ...]]


class _Location(NamedTuple):
    """The location of a sequence of a stream."""

    epoch: int
    shard: int
    chunk: int  # index of the chunk within the shard
    sequence: int  # index of the sequence within the chunk
    remaining: int  # sequences up to the end of the chunk, or of the stream's part of the pass


class Corpus:
    """A checked split of a corpus directory; its shards are not yet open.

    Args:
      directory: a corpus written by `bertjax prepare`.
      split: "train" or "eval".
      name: distinguishes its randomness from that of other corpora of the same run.

    Raises:
      InputError: the corpus is unfinished or damaged, or has no such split.
    """

    def __init__(self, directory: epath.PathLike, split: str, name: str = "") -> None:
        self.directory, self.split, self.name = epath.Path(directory), split, name
        self.manifest = read_manifest(directory)
        self.tokenizer: Tokenizer = load_tokenizer(directory)
        self.shard_infos = (
            self.manifest.train_shards if split == "train" else self.manifest.eval_shards
        )
        if self.tokenizer.fingerprint() != self.manifest.tokenizer_fingerprint:
            raise InputError(
                f"{self.directory}: prepared with another tokenizer than the one in this "
                "directory. Prepare it again."
            )
        # 0 for a corpus of documents, whose pairs are drawn.
        self.max_pair_length = self.manifest.options.get(MAX_PAIR_LENGTH) or 0
        if not self.shard_infos:
            raise InputError(
                f"{self.directory}: no {split} documents. Prepare it again with some, or train "
                "without evaluation."
            )


def _check_pair_options(corpus: Corpus, options: PretrainingOptions) -> None:
    """Raise InputError if the pairs of a corpus of pairs do not fit the options."""
    if options.max_seq_length < corpus.max_pair_length:
        raise InputError(
            f"max_seq_length={options.max_seq_length}: {corpus.directory} has pairs of "
            f"{corpus.max_pair_length} tokens, from tf_examples. Use at least that."
        )
    if options.short_seq_prob != PretrainingOptions.short_seq_prob:
        raise InputError(
            f"short_seq_prob={options.short_seq_prob}: the pairs of {corpus.directory} are those "
            "of tf_examples. Remove this option."
        )


class CorpusSequences:
    """The sequences of the streams of a corpus; opens only the shards that these streams read.

    Args:
      corpus: the corpus and its split.
      options: the options of the batches.
      num_streams: number of streams; 1 for the eval split.
      stream_ids: the streams that this process reads.
      sequences_in_flight: number of sequences made at the same time, about.
      broadcast: takes a function of `size` integers and `size`; returns, on every process, its
        result on process 0.
      group_per_shard: have a stream for each shard, as a sample of them needs it. Otherwise streams
        share shards if these are too uneven.

    Attributes:
      sequences_per_epoch: sequences of one pass of all streams together.
    """

    def __init__(
        self,
        corpus: Corpus,
        options: PretrainingOptions,
        num_streams: int,
        stream_ids: Iterable[int],
        sequences_in_flight: int,
        broadcast: Broadcast,
        group_per_shard: bool = False,
    ) -> None:
        self._corpus, self._options = corpus, options
        self._training = corpus.split == "train"
        self._infos = corpus.shard_infos
        self._groups = self._count_groups(num_streams) if self._training else 1
        if group_per_shard:
            self._groups = num_streams
        self._streams_per_group = num_streams // self._groups
        stream_ids = sorted(stream_ids)
        self._has_pairs = corpus.max_pair_length > 0 and options.objective == "mlm_nsp"
        if self._has_pairs:
            _check_pair_options(corpus, options)
        if options.masking == "entity" and not corpus.manifest.options.get(SPANS):
            raise InputError(
                f"masking=entity: {corpus.directory} has no entity spans. Prepare it with --spans, "
                "or use whole_word."
            )
        min_documents = 2 if options.objective == "mlm_nsp" and not self._has_pairs else 1
        for info in self._infos:
            if info.documents < min_documents:
                raise InputError(
                    f"{corpus.directory / info.name}: documents={info.documents}, and a random "
                    "second sentence must come from another document. Prepare more text or fewer "
                    "shards."
                )
        groups = sorted({stream // self._streams_per_group for stream in stream_ids})
        shards = list(itertools.chain.from_iterable(map(self._shards_of, groups)))
        with ThreadPoolExecutor(options.threads) as pool:
            self._sections = dict(zip(shards, pool.map(self._open, shards), strict=True))

        cache_size = 2 * len(stream_ids)  # the current and the next chunk of each stream
        self._chunk_tokens = sequences.chunk_tokens(options.max_seq_length)
        chunks = sequences_in_flight * options.max_seq_length // self._chunk_tokens
        self._shard_index = streams.ThreadSafeLRUCache(self._make_shard_index, cache_size)
        self._chunk_index = streams.ThreadSafeLRUCache(
            self._make_chunk_index, cache_size if self._training else len(self._infos)
        )
        self._chunk = streams.ThreadSafeLRUCache(self._make_chunk, cache_size + chunks)
        if self._training:
            kept, self._sampled_tokens = broadcast(self._measure_tokens_per_sequence, 2)
            self._sampled_sequences = int(kept * (1 + sequences.EXTRA_FRACTION))
            self._sequences_per_shard = [
                self._sequences_from_tokens(info.tokens) for info in self._infos
            ]
        else:
            self._sequences_per_shard = [
                self._chunk_index(0, shard).ends[-1] for shard in range(len(self._infos))
            ]
        self.sequences_per_epoch = sum(self._sequences_per_shard)

    def sequences_per_pass(self, group: int) -> int:
        """Return the number of sequences of one pass over the shards of a group of streams."""
        return self._shard_index(0, group).ends[-1]

    def packed_pairs(self, stream: int, start: int, count: int) -> Iterator[PackedPairs]:
        """Yield sequences start .. start + count - 1 of a stream."""
        num_draws = self._options.draws_per_sequence
        while count > 0:
            epoch, shard, chunk, sequence, remaining = self._locate(stream, start)
            size = min(count, remaining)
            pairs, sequence_of_pair = self._chunk(epoch, shard, chunk)
            drawn = slice(*sequence_of_pair.searchsorted((sequence, sequence + size)))
            key = self._rng_key(epoch, shard, chunk, "masks")
            rng = streams.generator(*key, skip=sequence * num_draws)
            yield PackedPairs(
                self._sections[shard].shard,
                pairs.take(drawn),
                sequence_of_pair[drawn] - sequence,
                rng.random((size, num_draws)),
            )
            start += size
            count -= size

    def prefetch(self, stream: int, start: int, stop: int) -> None:
        """Compute the chunks of sequences start .. stop - 1 of a stream."""
        while start < stop:
            location = self._locate(stream, start)
            self._chunk(location.epoch, location.shard, location.chunk)
            start += location.remaining

    def _locate(self, stream: int, start: int) -> _Location:
        """Locate sequence `start` of a stream.

        A pass of R sequences is divided among the S streams of the group: part p starts at sequence
        R p // S. In epoch e stream i of the group reads part (i + e) mod S, so no two streams read
        the same part in one epoch.
        """
        group, stream_in_group = divmod(stream, self._streams_per_group)
        pass_size = self.sequences_per_pass(group)
        # Position in the concatenation of all passes of the group.
        position = pass_size * stream_in_group // self._streams_per_group + start
        part = (self._streams_per_group * (position + 1) - 1) // pass_size
        epoch, sequence = part - stream_in_group, position % pass_size
        shard_index = self._shard_index(epoch, group)
        item, first, _ = shard_index.find(sequence)
        shard, sequence = shard_index.items[item], sequence - first
        chunk, first, end = self._chunk_index(epoch, shard).find(sequence)
        part_end = pass_size * (part + 1) // self._streams_per_group
        remaining = min(end - sequence, part_end - position)
        return _Location(epoch, shard, chunk, sequence - first, remaining)

    def _rng_key(self, epoch: int, *parts: int | str) -> tuple[int | str, ...]:
        """Return the key of a generator. That of the eval split does not depend on the seed."""
        if not self._training:
            return ("heldout", *parts)  # a key like any other; it determines the eval batches
        repeats = self._options.dupe_factor
        name = (self._corpus.name,) if self._corpus.name else ()
        return "train", self._options.seed, *name, epoch % repeats if repeats else epoch, *parts

    def _count_groups(self, num_streams: int) -> int:
        """Return the largest number of even groups that divides both streams and shards."""
        max_groups = math.gcd(num_streams, len(self._infos))
        tokens = np.array([info.tokens for info in self._infos])
        for groups in range(max_groups, 1, -1):
            if max_groups % groups == 0:
                sizes = tokens.reshape(-1, groups).sum(axis=0)
                if sizes.max() <= MAX_GROUP_SIZE_RATIO * sizes.min():
                    return groups
        return 1

    def _shards_of(self, group: int) -> range:
        return range(group, len(self._infos), self._groups)

    def _make_shard_index(self, epoch: int, group: int) -> streams.SequenceIndex:
        """Return the shards of a group in the order in which an epoch reads them."""
        shards = self._shards_of(group)
        order = streams.permutation(len(shards), *self._rng_key(epoch, group, "shards"))
        items = [shards[i] for i in order]
        sizes = (self._sequences_per_shard[shard] for shard in items)
        return streams.SequenceIndex(items, list(itertools.accumulate(sizes)))

    def _open(self, shard: int) -> Sections:
        opened = read_shard(self._corpus.directory, self._infos[shard])
        if self._has_pairs:
            return Sections.of_pairs(opened)
        max_tokens = sequences.max_section_tokens(self._options.max_seq_length)
        return Sections.from_shard(opened, max_tokens)

    def _split_into_chunks(self, shard: int, *key: int | str) -> list[np.ndarray]:
        """Return the shuffled sections of a shard, split into chunks."""
        sections = self._sections[shard]
        return sections.split_into_chunks(
            streams.permutation(len(sections), *key), self._chunk_tokens
        )

    def _make_chunk_index(self, epoch: int, shard: int) -> streams.SequenceIndex:
        """Return the chunks of a shard, each with its number of sequences."""
        chunks = self._split_into_chunks(shard, *self._rng_key(epoch, shard, "documents"))
        if self._training:
            sizes = [self._sections[shard].sizes(chunk).sum() for chunk in chunks]
            ends = self._sequences_from_tokens(np.cumsum(sizes)).tolist()
            return streams.SequenceIndex(chunks, ends)
        drawn = [
            self._draw_sequences(shard, chunk, self._rng_key(epoch, shard, i))
            for i, chunk in enumerate(chunks)
        ]
        counts = [int(sequence_of_pair.max()) + 1 for _, sequence_of_pair in drawn]
        return streams.SequenceIndex(chunks, list(itertools.accumulate(counts)))

    def _measure_tokens_per_sequence(self) -> tuple[int, int]:
        """Return kept sequences and their tokens in a sample that does not depend on the seed."""
        num_sequences = tokens = 0
        for shard in self._shards_of(0):
            if shard not in self._sections:
                self._sections[shard] = self._open(shard)
            for chunk in self._split_into_chunks(shard, "sample", shard):
                drawn = self._draw_sequences(shard, chunk, ("sample", shard, tokens))
                # Stored pairs are never drawn into others, so none waits for the next epoch.
                num_sequences += (
                    int(drawn[1].max()) + 1
                    if self._has_pairs
                    else count_sequences_to_keep(*drawn, self._options)
                )
                tokens += int(self._sections[shard].sizes(chunk).sum())
                if tokens >= SAMPLE_TOKENS:
                    return num_sequences, tokens
        return num_sequences, tokens

    def _sequences_from_tokens(self, tokens: Any) -> Any:
        """Return the number of sequences in the first `tokens` (integer or array) of a shard."""
        return -(-tokens * self._sampled_sequences // self._sampled_tokens)

    def _draw_sequences(
        self,
        shard: int,
        section_ids: np.ndarray,
        key: tuple[int | str, ...],
        min_sequences: int = 0,
    ) -> tuple[Pairs, np.ndarray]:
        rng = streams.generator(*key, "pairs")
        return draw_sequences(self._sections[shard], section_ids, self._options, rng, min_sequences)

    def _make_chunk(self, epoch: int, shard: int, chunk: int) -> tuple[Pairs, np.ndarray]:
        """Return the pairs of a chunk, ordered by their sequence, and the sequence of each."""
        index = self._chunk_index(epoch, shard)
        num_sequences = index.ends[chunk] - (index.ends[chunk - 1] if chunk else 0)
        key = self._rng_key(epoch, shard, chunk)
        min_sequences = num_sequences if self._training else 0  # the eval split has all of them
        pairs, packed = self._draw_sequences(shard, index.items[chunk], key, min_sequences)
        rng = streams.generator(*key, "kept")
        chosen = choose_sequences(pairs, packed, num_sequences, self._options, rng)
        kept = np.flatnonzero(np.isin(packed, chosen))
        packed = np.searchsorted(chosen, packed[kept])
        sequence_of_pair = streams.permutation(num_sequences, *key, "order")[packed]
        order = np.argsort(sequence_of_pair, kind="stable")
        return pairs.take(kept[order]), sequence_of_pair[order]
