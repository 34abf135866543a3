"""Token shards to pre-training batches, with a data position that is one integer.

`PretrainingData.batch(step)` is a pure function of the corpora, the options and the step: neither
the number of hosts or workers nor where a run was resumed changes a byte of a global batch.
`corpus_rows` finds and draws a corpus's rows, `mixture` says which corpus is next, `rows` lays them
out, and `dataset` does it all ahead of time, in threads under tf.data.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.pretraining.corpus_sequences import Broadcast, Corpus, CorpusSequences
from data_pipelines.pretraining.mixture import Mixture, mixture_proportions
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.sequences import PackedPairs, make_batch_arrays
from data_pipelines.rampup import BatchSizeRampup

if TYPE_CHECKING:
    import tensorflow as tf

CORPUS_SEPARATOR = "+"  # between the directories of several corpora
_DEFAULT_MAX_STREAMS, _MIN_SEQUENCES_PER_STREAM = 16, 16


class PretrainingData:
    """The batches of one split of a corpus, or of several corpora, as one host sees them.

    Training data is endless. Its rows come from S streams, each of which fills an equal block of
    every global batch. S divides the batch: it is the largest divisor up to 16, or that leaves each
    stream at least 16 rows. A stream reads shards of its own from each corpus, or, of a corpus that
    has fewer, a part of its own of what its neighbours read too. So a host opens only the shards
    whose rows it has.
    Held-out data is a finite set of rows of one corpus, the same whatever the seed, the batch size
    and the hosts: each pair once, and a last batch that is filled up with rows of weight 0.

    Args:
      directory: a corpus that `bertjax prepare` wrote, or several, "+" between them, which have one
        tokenizer.
      split: "train" or "heldout".
      hosts, host: how many hosts share the global batch, and which of them this is. Host h has
        rows h * batch_size / hosts and on.
      share: gives all hosts the `size` integers that a function gives on the first one. Without
        it each host calls the function, which opens shards of the first stream.
      growth: of batches that grow to `options.batch_size`; those of hosts do likewise.

    Attributes:
      growth: as given; the steps of the run may be told later.
      corpora: by name, which is the last part of the directory's.
      tokenizer: the one that the corpora were prepared with.
      shares: of the rows, that each corpus has, by name.
      sequences_per_epoch: rows of one pass over all text, all hosts together.
      steps: batches in all; None for training data.

    Raises:
      InputError: a corpus is unfinished, damaged or too small, they do not go together, or the
        hosts cannot share the batch.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        options: PretrainingOptions,
        split: str = "train",
        num_processes: int = 1,
        host: int = 0,
        share: Broadcast | None = None,
        rampup: BatchSizeRampup | None = None,
    ) -> None:
        if split not in ("train", "eval"):
            raise ValueError(f"split={split!r} is unknown; choose train or heldout.")
        if not 0 <= host < num_processes:
            raise InputError(f"host={host} is none of {num_processes} hosts; count them from 0.")
        self.rampup = rampup or BatchSizeRampup(options.batch_size)
        if (smallest := self.rampup.batch_sizes[0]) % num_processes:
            raise InputError(
                f"batch_size={smallest} cannot be shared by {num_processes} hosts; make it a multiple of "
                f"{num_processes}."
            )
        self.options, self.split = options, split
        self.num_processes, self.host = num_processes, host
        self.corpora = open_corpora(directory, split)
        self._training = split == "train"
        corpora = list(self.corpora.values())
        if len(corpora) > 1 and not self._training:
            raise ValueError("held-out data is of one corpus; open each by itself")
        self.tokenizer = corpora[0].tokenizer
        self._sampling_version = max(
            (corpus.sampling_version for corpus in corpora), key=lambda d: d.version
        )
        self.streams = self._count_streams(corpora)
        rows = options.batch_size // num_processes
        share = share or (lambda make, size: make())
        in_flight = options.threads * rows
        own = self._local_streams()
        self._sources = [
            CorpusSequences(corpus, options, self.streams, own, in_flight, share)
            for corpus in corpora
        ]
        sizes = [source.sequences_per_epoch for source in self._sources]
        self.sequences_per_epoch = sum(sizes)
        self._mixture = Mixture(
            mixture_proportions(sizes, options.sampling_alpha, options.mixture_weights),
            options.seed,
            self.streams,
        )
        parts = (self._mixture.rows / self._mixture.rows.sum()).tolist()
        self.mixture_proportions = dict(zip(self.corpora, parts, strict=True))
        self.steps = None if self._training else -(-self.sequences_per_epoch // options.batch_size)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """This host's rows of global batch `step`: the arrays of `options.BATCH`.

        Raises:
          IndexError: there is no such step.
        """
        if step < 0 or (self.steps is not None and step >= self.steps):
            raise IndexError(f"step {step} is none of the {self.steps} steps of {self.split} data")
        rows = self.rampup.batch_size_at(step) // self.num_processes
        if self._training:
            spans: Iterable[tuple[int, int, int, int]] = self._spans(step)
        else:
            start = step * self.options.batch_size + self.host * rows
            spans = [(0, 0, start, min(rows, max(0, self.sequences_per_epoch - start)))]
        parts: list[PackedPairs] = []
        for corpus, stream, start, count in spans:
            parts += self._sources[corpus].parts(stream, start, count)
        if self._training:
            self._prefetch_chunks(step)
        return make_batch_arrays(parts, rows, self.options, self._sampling_version, self.tokenizer)

    def dataset(self, start: int = 0, stop: int | None = None) -> "tf.data.Dataset":
        """Batches of steps start .. stop - 1 in order, made ahead in `workers` threads.

        Args:
          stop: None for no end, or for that of held-out data.
        """
        import tensorflow as tf  # takes seconds, and not all who read batches need it

        with contextlib.suppress(RuntimeError):  # TensorFlow is in use: it has what it has
            tf.config.set_visible_devices([], "GPU")
        like = self.options.empty_batch(self.options.batch_size // self.num_processes)
        dtypes = [array.dtype for array in like.values()]
        # Batches that grow have no one number of rows.
        rows = (
            None
            if len(self.rampup.batch_sizes) > 1
            else self.options.batch_size // self.num_processes
        )

        def make(step: Any) -> dict[str, Any]:
            arrays = tf.numpy_function(lambda s: list(self.batch(int(s)).values()), [step], dtypes)
            return {
                name: tf.ensure_shape(array, (rows, *like[name].shape[1:]))
                for name, array in zip(like, arrays, strict=True)
            }

        if stop is None:
            stop = np.iinfo(np.int64).max if self.steps is None else self.steps
        dataset = tf.data.Dataset.range(start, stop)
        dataset = dataset.map(make, num_parallel_calls=self.options.threads, deterministic=True)
        threads = tf.data.Options()
        threads.threading.private_threadpool_size = self.options.threads
        return dataset.with_options(threads).prefetch(tf.data.AUTOTUNE)

    def _count_streams(self, corpora: Sequence[Corpus]) -> int:
        """S: hosts share the streams of a batch, but each stream takes time in every batch."""
        batch = self.rampup.batch_sizes[0]
        if not self._training:
            return 1
        if self._sampling_version.version == 1 and len(corpora) == 1:
            return math.gcd(batch, len(corpora[0].shard_infos))
        most = max(_DEFAULT_MAX_STREAMS, batch // _MIN_SEQUENCES_PER_STREAM)
        return max(n for n in range(1, min(batch, most) + 1) if batch % n == 0)

    def _local_streams(self) -> range:
        if not self._training:
            return range(1)
        first, last = self.host * self.streams, (self.host + 1) * self.streams
        return range(first // self.num_processes, -(-last // self.num_processes))

    def _spans(self, step: int) -> Iterator[tuple[int, int, int, int]]:
        """This host's rows of a step: corpus, stream, first row of it there, and how many."""
        size, position = (
            rows // self.streams
            for rows in (self.rampup.batch_size_at(step), self.rampup.sequences_before(step))
        )
        first, last = (
            host * self.rampup.batch_size_at(step) // self.num_processes
            for host in (self.host, self.host + 1)
        )
        for stream in self._local_streams():
            counts = zip(*self._mixture.count(stream, position, size), strict=True)
            row = stream * size  # of the global batch; corpora follow one another within a stream
            for corpus, (before, count) in enumerate(counts):
                skipped = max(0, first - row)
                left = int(min(count, last - row)) - skipped
                row += int(count)
                if left > 0:
                    yield corpus, stream, int(before) + skipped, left

    def _prefetch_chunks(self, step: int) -> None:
        """Makes chunks that later steps need, of some streams in each step.

        Streams begin their passes, and most of their chunks, in the same step, which would take as
        long as many others.
        """
        own, max_seq_length = self._local_streams(), self.options.max_seq_length
        size, position = (
            rows // self.streams
            for rows in (
                self.rampup.batch_size_at(step + 1),
                self.rampup.sequences_before(step + 1),
            )
        )
        lasts = self._sampling_version.chunk(max_seq_length) // (
            2 * size * max_seq_length
        )  # the smallest, about
        turns = max(1, min(len(own), lasts))
        for stream in own[step % turns :: turns]:
            counts = zip(*self._mixture.count(stream, position, turns * size), strict=True)
            for source, (before, count) in zip(self._sources, counts, strict=True):
                source.prefetch(stream, int(before), int(before + count))


def open_corpora(directory: epath.PathLike, split: str) -> Mapping[str, Corpus]:
    """The corpora of one directory, or of several with "+" between them, by name.

    Raises:
      InputError: one is unfinished or damaged, or they do not go together.
    """
    paths = [epath.Path(path) for path in str(directory).split(CORPUS_SEPARATOR)]
    if len(paths) == 1:
        return {paths[0].name: Corpus(paths[0], split)}
    corpora: dict[str, Corpus] = {}
    for path in paths:
        if path.name in corpora:
            raise InputError(
                f"two corpora are called {path.name}; rename a directory, since names tell them "
                "apart."
            )
        corpora[path.name] = corpus = Corpus(path, split, path.name)
        if corpus.tokenizer.fingerprint() != corpora[paths[0].name].tokenizer.fingerprint():
            raise InputError(
                f"{path} was prepared with another tokenizer than {paths[0]}; prepare one again "
                "with the vocabulary of the other."
            )
    return corpora
