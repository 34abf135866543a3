"""Token shards to pre-training batches, with a data position that is one integer.

`PretrainingData.batch(step)` is a pure function of the corpus, the options and the step: neither
the number of hosts or workers nor where a run was resumed changes a byte of a global batch.
`streams` has what it takes to find a row, `rows` makes it, and `dataset` does both ahead of time,
in threads under tf.data.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from data_pipelines.corpus.records import read_manifest, read_shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining import streams
from data_pipelines.pretraining.pairs import Pairs
from data_pipelines.pretraining.rows import (
    DRAWINGS,
    FEW_STREAMS,
    Part,
    PretrainingOptions,
    draw_rows,
    make_rows,
    rows_to_keep,
)
from data_pipelines.pretraining.sections import Sections
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    import tensorflow as tf

SAMPLE_TOKENS = 1 << 19  # drawn at the start to learn how many rows a token gives


class PretrainingData:
    """The batches of one split of a corpus, as one host sees them.

    Training data is endless. Its rows come from S streams, S a common divisor of batch_size and
    shards: the largest up to 16, or that leaves each at least 4 rows of a batch. A stream fills an
    equal block of every global batch from its own shards, so that a host opens only the shards
    whose rows it has. Held-out data is a finite set of rows, the same whatever the seed, the batch
    size and the hosts: each pair once, and a last batch that is filled up with rows of weight 0.

    Args:
      directory: a corpus that `bertjax prepare` wrote.
      split: "train" or "heldout".
      hosts, host: how many hosts share the global batch, and which of them this is. Host h has
        rows h * batch_size / hosts and on.
      share: gives all hosts the `size` integers that a function gives on the first one. Without
        it each host calls the function, which opens shards of the first stream.

    Attributes:
      tokenizer: the one that the corpus was prepared with.
      manifest: what the corpus holds.
      streams: S for training data, 1 for held-out data.
      rows_per_epoch: rows of one pass, all hosts together.
      steps: batches in all; None for training data.

    Raises:
      InputError: the corpus is unfinished, damaged or too small, or the hosts cannot share it.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        options: PretrainingOptions,
        split: str = "train",
        hosts: int = 1,
        host: int = 0,
        share: Callable[[Callable[[], tuple[int, ...]], int], tuple[int, ...]] | None = None,
    ) -> None:
        if split not in ("train", "heldout"):
            raise ValueError(f"split={split!r} is unknown; choose train or heldout.")
        if not 0 <= host < hosts:
            raise InputError(f"host={host} is none of {hosts} hosts; count them from 0.")
        self.directory, self.options, self.split = epath.Path(directory), options, split
        self.hosts, self.host = hosts, host
        self.manifest = read_manifest(directory)
        self._drawing = DRAWINGS[self.manifest.version]
        self.tokenizer: Tokenizer = load_tokenizer(directory)
        self._training = split == "train"
        self._infos = self.manifest.train if self._training else self.manifest.heldout
        self.streams = self._count_streams()
        self._check()

        own = range(self.streams)
        if self._training:
            own = own[host * self.streams // hosts : (host + 1) * self.streams // hosts]
        needed = list(itertools.chain.from_iterable(map(self._shards_of, own)))
        with ThreadPoolExecutor(options.threads) as pool:
            self._sections = dict(zip(needed, pool.map(self._open, needed), strict=True))

        in_flight = options.threads * options.batch_size * options.seq_len // hosts
        self._own = own
        self._order = streams.Memo(self._make_order, 2 * len(own))
        self._plan = streams.Memo(
            self._make_plan, 2 * len(own) if self._training else len(self._infos)
        )
        self._chunk = streams.Memo(
            self._make_chunk, 2 * len(own) + in_flight // self._drawing.chunk
        )
        if self._training:
            share = share or (lambda make, size: make())
            self._kept, self._sampled = share(self._measure, 2)
            self._kept = int(self._kept * (1 + self._drawing.spare))
            self._shard_rows = [self._rows_of_tokens(info.tokens) for info in self._infos]
        else:
            self._shard_rows = [self._plan(0, shard).ends[-1] for shard in range(len(self._infos))]
        self.rows_per_epoch = sum(self._shard_rows)
        self.steps = None if self._training else -(-self.rows_per_epoch // options.batch_size)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """This host's rows of global batch `step`: the arrays of `rows.BATCH`.

        Raises:
          IndexError: there is no such step.
        """
        if step < 0 or (self.steps is not None and step >= self.steps):
            raise IndexError(f"step {step} is none of the {self.steps} steps of {self.split} data")
        rows = self.options.batch_size // self.hosts
        if self._training:
            count = rows // len(self._own)
            start = step * count
        else:
            start = step * self.options.batch_size + self.host * rows
            count = min(rows, max(0, self.rows_per_epoch - start))
        parts = [part for stream in self._own for part in self._parts(stream, start, count)]
        return make_rows(parts, rows, self.options, self._drawing, self.tokenizer)

    def dataset(self, start: int = 0, stop: int | None = None) -> "tf.data.Dataset":
        """Batches of steps start .. stop - 1 in order, made ahead in `workers` threads.

        Args:
          stop: None for no end, or for that of held-out data.
        """
        import tensorflow as tf  # takes seconds, and not all who read batches need it

        with contextlib.suppress(RuntimeError):  # TensorFlow is in use: it has what it has
            tf.config.set_visible_devices([], "GPU")
        like = self.options.empty_rows(self.options.batch_size // self.hosts)
        dtypes = [array.dtype for array in like.values()]

        def make(step: Any) -> dict[str, Any]:
            arrays = tf.numpy_function(lambda s: list(self.batch(int(s)).values()), [step], dtypes)
            return {
                name: tf.ensure_shape(array, like[name].shape)
                for name, array in zip(like, arrays, strict=True)
            }

        if stop is None:
            stop = np.iinfo(np.int64).max if self.steps is None else self.steps
        dataset = tf.data.Dataset.range(start, stop)
        dataset = dataset.map(make, num_parallel_calls=self.options.threads, deterministic=True)
        threads = tf.data.Options()
        threads.threading.private_threadpool_size = self.options.threads
        return dataset.with_options(threads).prefetch(tf.data.AUTOTUNE)

    def _count_streams(self) -> int:
        """S: hosts share the streams of a batch, but each stream takes time in every batch."""
        if not self._training:
            return 1
        common = math.gcd(self.options.batch_size, len(self._infos))
        most = max(FEW_STREAMS, self.options.batch_size // self._drawing.rows_of_stream)
        return max(n for n in range(1, min(common, most) + 1) if common % n == 0)

    def _check(self) -> None:
        """That this split of this corpus can give batches to so many hosts."""
        options, hosts, shards = self.options, self.hosts, len(self._infos)
        if self.tokenizer.fingerprint() != self.manifest.tokenizer_fingerprint:
            raise InputError(
                f"{self.directory} was prepared with another tokenizer than the one that is in it "
                "now; prepare it again."
            )
        if not shards:
            raise InputError(
                f"{self.directory} has no {self.split} documents; prepare it with some, or do "
                "without evaluation."
            )
        least = 2 if options.objective == "mlm_nsp" else 1
        for info in self._infos:
            if info.documents < least:
                raise InputError(
                    f"{self.directory / info.name} holds {info.documents} document, and a random "
                    "second sentence must come from another one; prepare more text or fewer shards."
                )
        if options.batch_size % hosts:
            raise InputError(
                f"batch_size={options.batch_size} cannot be shared by {hosts} hosts; make it a "
                f"multiple of {hosts}."
            )
        if self._training and self.streams % hosts:
            raise InputError(
                f"{hosts} hosts cannot share the {self.streams} streams that a batch of "
                f"{options.batch_size} from {shards} shards has, a divisor of both: make both "
                f"multiples of {hosts}, and the batch at least {4 * hosts}."
            )

    def _key(self, epoch: int, *rest: int | str) -> tuple[int | str, ...]:
        """What randomness depends on. Held-out data does not depend on the seed."""
        if not self._training:
            return ("heldout", *rest)
        repeats = self.options.dupe_factor
        return "train", self.options.seed, epoch % repeats if repeats else epoch, *rest

    def _shards_of(self, stream: int) -> range:
        return range(stream, len(self._infos), self.streams)

    def _make_order(self, epoch: int, stream: int) -> streams.Plan:
        """The shards of a stream in the order in which an epoch reads them."""
        shards = self._shards_of(stream)
        order = streams.permutation(len(shards), *self._key(epoch, stream, "shards"))
        items = [shards[i] for i in order]
        return streams.Plan(items, list(itertools.accumulate(self._shard_rows[i] for i in items)))

    def _open(self, shard: int) -> Sections:
        return Sections.of(read_shard(self.directory, self._infos[shard]), self._drawing.section)

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
                rows += rows_to_keep(pairs, row_of, self.options, self._drawing)
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
        return draw_rows(self._sections[shard], which, self.options, self._drawing, rng, wanted)

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

    def _parts(self, stream: int, start: int, count: int) -> Iterator[Part]:
        """Rows start .. start + count - 1 of a stream."""
        rows_per_epoch = self._order(0, stream).ends[-1]
        width = self.options.draws
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
