"""The rows of one split of one corpus: of any stream, from any row on.

A stream is an endless sequence of rows from some of the corpus's shards; see `streams`. Held-out
data is one stream with an end.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from etils import epath

from data_pipelines.corpus.records import read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining import streams
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.rows import (
    DRAWINGS,
    Part,
    PretrainingOptions,
    draw_rows,
    rows_to_keep,
)
from data_pipelines.pretraining.sections import Sections
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

SAMPLE_TOKENS = 1 << 19  # drawn at the start to learn how many rows a token gives

Share = Callable[[Callable[[], tuple[int, ...]], int], tuple[int, ...]]


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
        self.drawing = DRAWINGS[self.manifest.version]
        self.tokenizer: Tokenizer = load_tokenizer(directory)
        self.infos = self.manifest.train if split == "train" else self.manifest.heldout
        if self.tokenizer.fingerprint() != self.manifest.tokenizer_fingerprint:
            raise InputError(
                f"{self.directory} was prepared with another tokenizer than the one that is in it "
                "now; prepare it again."
            )
        if not self.infos:
            raise InputError(
                f"{self.directory} has no {split} documents; prepare it with some, or do "
                "without evaluation."
            )


class CorpusRows:
    """Gives `Part`s of rows; opens only the shards of the streams that are asked of it.

    Args:
      corpus: whose rows they are.
      streams: how many there are, a divisor of the training shards; 1 for held-out data.
      own: the streams that are to be read.
      readers: places in each stream that are read by turns.
      rows_in_flight: about how many rows are made at the same time.
      share: gives all hosts the `size` integers that a function gives on the first one.

    Attributes:
      rows_per_epoch: rows of one pass, all streams together.
    """

    def __init__(
        self,
        corpus: Corpus,
        options: PretrainingOptions,
        streams_: int,
        own: Iterable[int],
        readers: int,
        rows_in_flight: int,
        share: Share,
    ) -> None:
        self._corpus, self._options, self._streams = corpus, options, streams_
        self._training = corpus.split == "train"
        self._drawing, self._infos = corpus.drawing, corpus.infos
        own = sorted(own)
        least = 2 if options.objective == "mlm_nsp" else 1
        for info in self._infos:
            if info.documents < least:
                raise InputError(
                    f"{corpus.directory / info.name} holds {info.documents} document, and a random "
                    "second sentence must come from another one; prepare more text or fewer shards."
                )
        needed = list(itertools.chain.from_iterable(map(self._shards_of, own)))
        with ThreadPoolExecutor(options.threads) as pool:
            self._sections = dict(zip(needed, pool.map(self._open, needed), strict=True))

        places = 2 * len(own) * readers
        chunks = rows_in_flight * options.seq_len // self._drawing.chunk
        self._order = streams.Memo(self._make_order, places)
        self._plan = streams.Memo(self._make_plan, places if self._training else len(self._infos))
        self._chunk = streams.Memo(self._make_chunk, places + chunks)
        if self._training:
            kept, self._sampled = share(self._measure, 2)
            self._kept = int(kept * (1 + self._drawing.spare))
            self._shard_rows = [self._rows_of_tokens(info.tokens) for info in self._infos]
        else:
            self._shard_rows = [self._plan(0, shard).ends[-1] for shard in range(len(self._infos))]
        self.rows_per_epoch = sum(self._shard_rows)

    def rows_of(self, stream: int) -> int:
        """Rows of one pass over a stream's shards."""
        return self._order(0, stream).ends[-1]

    def parts(self, stream: int, start: int, count: int) -> Iterator[Part]:
        """Rows start .. start + count - 1 of a stream."""
        rows_per_epoch = self.rows_of(stream)
        width = self._options.draws
        while count:
            epoch, row = divmod(start, rows_per_epoch)
            order = self._order(epoch, stream)
            at, first, _ = order.find(row)
            shard, row = order.items[at], row - first
            chunk, first, end = self._plan(epoch, shard).find(row)
            found, row = min(count, end - row), row - first
            pairs, row_of = self._chunk(epoch, shard, chunk)
            drawn = slice(*row_of.searchsorted((row, row + found)))
            rng = streams.generator(*self._key(epoch, shard, chunk, "masks"), skip=row * width)
            yield Part(
                self._sections[shard].shard.tokens,
                pairs.take(drawn),
                row_of[drawn] - row,
                rng.random((found, width)),
            )
            start += found
            count -= found

    def _key(self, epoch: int, *rest: int | str) -> tuple[int | str, ...]:
        """What randomness depends on. Held-out data does not depend on the seed."""
        if not self._training:
            return ("heldout", *rest)
        repeats = self._options.dupe_factor
        name = (self._corpus.name,) if self._corpus.name else ()
        return "train", self._options.seed, *name, epoch % repeats if repeats else epoch, *rest

    def _shards_of(self, stream: int) -> range:
        return range(stream, len(self._infos), self._streams)

    def _make_order(self, epoch: int, stream: int) -> streams.Plan:
        """The shards of a stream in the order in which an epoch reads them."""
        shards = self._shards_of(stream)
        order = streams.permutation(len(shards), *self._key(epoch, stream, "shards"))
        items = [shards[i] for i in order]
        return streams.Plan(items, list(itertools.accumulate(self._shard_rows[i] for i in items)))

    def _open(self, shard: int) -> Sections:
        opened = read_shard(self._corpus.directory, self._infos[shard])
        return Sections.of(opened, self._drawing.section)

    def _cut(self, shard: int, *key: int | str) -> list[np.ndarray]:
        """The shuffled sections of a shard in chunks."""
        sections = self._sections[shard]
        return sections.cut(streams.permutation(len(sections), *key), self._drawing.chunk)

    def _make_plan(self, epoch: int, shard: int) -> streams.Plan:
        """The chunks of a shard, and how many rows each is to have."""
        chunks = self._cut(shard, *self._key(epoch, shard, "documents"))
        if self._training:
            sizes = [self._sections[shard].sizes(chunk).sum() for chunk in chunks]
            return streams.Plan(chunks, self._rows_of_tokens(np.cumsum(sizes)).tolist())
        drawn = [
            self._draw(shard, chunk, self._key(epoch, shard, i)) for i, chunk in enumerate(chunks)
        ]
        rows = [int(row_of.max()) + 1 for _, row_of in drawn]
        return streams.Plan(chunks, list(itertools.accumulate(rows)))

    def _measure(self) -> tuple[int, int]:
        """Rows worth keeping, and the tokens that gave them: equal on all hosts, for any seed."""
        rows = tokens = 0
        for shard in self._shards_of(0):
            if shard not in self._sections:
                self._sections[shard] = self._open(shard)
            for chunk in self._cut(shard, "sample", shard):
                pairs, row_of = self._draw(shard, chunk, ("sample", shard, tokens))
                rows += rows_to_keep(pairs, row_of, self._options, self._drawing)
                tokens += int(self._sections[shard].sizes(chunk).sum())
                if tokens >= SAMPLE_TOKENS:
                    return rows, tokens
        return rows, tokens

    def _rows_of_tokens(self, tokens: Any) -> Any:
        """Rows of an epoch in the first `tokens` of a shard (an integer, or an array of them)."""
        return -(-tokens * self._kept // self._sampled)

    def _draw(
        self, shard: int, which: np.ndarray, key: tuple[int | str, ...], wanted: int = 0
    ) -> tuple[Pairs, np.ndarray]:
        rng = streams.generator(*key, "pairs")
        return draw_rows(self._sections[shard], which, self._options, self._drawing, rng, wanted)

    def _make_chunk(self, epoch: int, shard: int, chunk: int) -> tuple[Pairs, np.ndarray]:
        """The pairs of a chunk in the order of its rows, and the row of each."""
        plan = self._plan(epoch, shard)
        rows = plan.ends[chunk] - (plan.ends[chunk - 1] if chunk else 0)
        key = self._key(epoch, shard, chunk)
        wanted = rows if self._training else 0  # of held-out data all that there are
        pairs, row_of = self._draw(shard, plan.items[chunk], key, wanted)
        kept = np.flatnonzero(row_of < rows)
        row = streams.permutation(rows, *key, "order")[row_of[kept]]
        order = np.argsort(row, kind="stable")
        return pairs.take(kept[order]), row[order]
