"""Token shards to pre-training batches, with a step number as the data position.

`PretrainingData.batch(step)` is a pure function of the corpora, the options and the step. A global
batch does not depend on the number of processes or workers, nor on where a run was resumed.
`mixture` selects the corpus of each sequence. `corpus_sequences` locates and draws the sequences of
a corpus, and `sequences` writes the arrays. `batches` makes batches ahead of time, in threads of
tf.data or of Python.
"""

import contextlib
import functools
import importlib.util
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath

from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.parallel import thread_map
from data_pipelines.pretraining import sequences
from data_pipelines.pretraining.corpus_sequences import Broadcast, Corpus, CorpusSequences
from data_pipelines.pretraining.mixture import Mixture, mixture_proportions
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.sequences import PackedPairs, make_batch_arrays
from data_pipelines.rampup import BatchSizeRampup
from data_pipelines.vocabulary.tokenization import describe_difference

if TYPE_CHECKING:
    import tensorflow as tf

CORPUS_SEPARATOR = "+"  # between the directories of several corpora
_log = logging.getLogger("data_pipelines")
_DEFAULT_MAX_STREAMS, _MIN_SEQUENCES_PER_STREAM = 16, 16


class PretrainingData:
    """The batches of one split of a corpus, or of several corpora, for one process.

    The train split is endless. Its sequences come from S streams; each fills an equal block of
    every global batch. S is the largest divisor of the batch size that is at most 16 or leaves each
    stream at least 16 sequences. A stream reads its own shards of each corpus. If a corpus has
    fewer shards than streams, several streams read different parts of the same shards. A process
    therefore opens only the shards of its own sequences.

    The eval split is a finite set of sequences of one corpus. It does not depend on the seed, the
    batch size or the processes. It has each pair once; padding of weight 0 fills the last batch.

    Args:
      directory: a corpus written by `bertjax prepare`, or several joined by "+", with one
        tokenizer.
      options: the options of the batches.
      split: "train" or "eval".
      num_processes: number of processes that share the global batch.
      process_id: index of this process; it has sequences process_id * batch_size / num_processes
        and following.
      broadcast: takes a function of `size` integers and `size`; returns, on every process, its
        result on process 0. By default each process calls the function, which opens shards of the
        first stream.
      rampup: ramp-up of the global batch size to `options.batch_size`.

    Attributes:
      rampup: may be replaced once the number of steps is known.
      total_steps: steps of the run, in which the masking rate changes; may be replaced, too.
      corpora: corpora by name, the last part of their directory.
      tokenizer: the tokenizer of the corpora.
      num_streams: S.
      mixture_proportions: proportion of the sequences of each corpus, by name.
      sequences_per_epoch: sequences of one pass over all text, of all processes together.
      steps: number of batches; None for the train split.

    Raises:
      InputError: a corpus is unfinished, damaged or too small, the corpora have different
        tokenizers, or the processes cannot share the batch.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        options: PretrainingOptions,
        split: str = "train",
        num_processes: int = 1,
        process_id: int = 0,
        broadcast: Broadcast | None = None,
        rampup: BatchSizeRampup | None = None,
    ) -> None:
        if not 0 <= process_id < num_processes:
            raise InputError(
                f"process_id={process_id}: not in 0..{num_processes - 1} with "
                f"num_processes={num_processes}. Count processes from 0."
            )
        self.rampup = rampup or BatchSizeRampup(options.batch_size)
        if (batch_size := self.rampup.batch_sizes[0]) % num_processes:
            raise InputError(
                f"batch_size={batch_size}: not divisible by num_processes={num_processes}. Use a "
                f"multiple of {num_processes}."
            )
        self.total_steps = 1
        self.options, self.split = options, split
        self.num_processes, self.process_id = num_processes, process_id
        self.corpora = open_corpora(directory, split)
        self._training = split == "train"
        corpora = list(self.corpora.values())
        self.tokenizer = corpora[0].tokenizer
        self.num_streams = self._count_streams()
        broadcast = broadcast or (lambda make, size: make())
        in_flight = options.threads * options.batch_size // num_processes
        stream_ids = self._local_streams()
        self._sources = [
            CorpusSequences(corpus, options, self.num_streams, stream_ids, in_flight, broadcast)
            for corpus in corpora
        ]
        sizes = [source.sequences_per_epoch for source in self._sources]
        self.sequences_per_epoch = sum(sizes)
        self._mixture = Mixture(
            mixture_proportions(sizes, options.sampling_alpha, options.mixture_weights),
            options.seed,
            self.num_streams,
        )
        per_block = self._mixture.sequences_per_block
        self.mixture_proportions = dict(
            zip(self.corpora, (per_block / per_block.sum()).tolist(), strict=True)
        )
        self.steps = None if self._training else -(-self.sequences_per_epoch // options.batch_size)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Return this process's sequences of global batch `step`.

        Returns:
          The arrays of `options.BATCH_ARRAYS`.

        Raises:
          IndexError: the split has no such step.
        """
        if step < 0 or (self.steps is not None and step >= self.steps):
            raise IndexError(f"step={step}: the {self.split} split has {self.steps} steps.")
        batch_size = self.rampup.batch_size_at(step) // self.num_processes
        parts: list[PackedPairs] = []
        for corpus, stream, start, count in self._spans(step):
            if not self._training:  # padding fills the last batch
                count = min(count, self.sequences_per_epoch - start)
            parts += self._sources[corpus].packed_pairs(stream, start, count)
        if self._training:
            self._prefetch_chunks(step)
        progress = min(step / self.total_steps, 1.0)
        return make_batch_arrays(parts, batch_size, self.options, self.tokenizer, progress)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Return an iterator over the batches of steps start .. stop - 1.

        `workers` threads make them ahead of time: those of tf.data where tensorflow is installed,
        and of a thread pool elsewhere. They end when the iterator is deleted.

        Args:
          start: first step.
          stop: None for no end, or for the end of the eval split.
        """
        if _uses_tf_data():
            batches: Iterator[dict[str, np.ndarray]] = self.dataset(start, stop).as_numpy_iterator()
            return batches
        stop = self.steps if stop is None else stop
        steps = itertools.count(start) if stop is None else range(start, stop)
        return thread_map(self.batch, steps, self.options.threads)

    def dataset(self, start: int = 0, stop: int | None = None) -> "tf.data.Dataset":
        """Return `batches` as a data set of tf.data."""
        import tensorflow as tf  # takes seconds to import

        with contextlib.suppress(RuntimeError):  # raised if TensorFlow is already initialized
            tf.config.set_visible_devices([], "GPU")
        batch_size = self.options.batch_size // self.num_processes
        empty = self.options.empty_batch(batch_size)
        dtypes = [array.dtype for array in empty.values()]
        # The first dimension is unknown if the batch size ramps up.
        static_size = None if len(self.rampup.batch_sizes) > 1 else batch_size

        def make(step: Any) -> dict[str, Any]:
            arrays = tf.numpy_function(lambda s: list(self.batch(int(s)).values()), [step], dtypes)
            return {
                name: tf.ensure_shape(array, (static_size, *empty[name].shape[1:]))
                for name, array in zip(empty, arrays, strict=True)
            }

        if stop is None:
            stop = np.iinfo(np.int64).max if self.steps is None else self.steps
        dataset = tf.data.Dataset.range(start, stop)
        dataset = dataset.map(make, num_parallel_calls=self.options.threads, deterministic=True)
        threads = tf.data.Options()
        threads.threading.private_threadpool_size = self.options.threads
        return dataset.with_options(threads).prefetch(tf.data.AUTOTUNE)

    def _count_streams(self) -> int:
        """Return S: more streams mean fewer shards per process, but each costs time per batch."""
        if not self._training:
            return 1
        batch_size = self.rampup.batch_sizes[0]
        max_streams = max(_DEFAULT_MAX_STREAMS, batch_size // _MIN_SEQUENCES_PER_STREAM)
        return max(n for n in range(1, min(batch_size, max_streams) + 1) if batch_size % n == 0)

    def _local_streams(self) -> range:
        """Return the streams of this process's sequences."""
        first, last = self.process_id * self.num_streams, (self.process_id + 1) * self.num_streams
        return range(first // self.num_processes, -(-last // self.num_processes))

    def _stream_position(self, step: int) -> tuple[int, int]:
        """Return a stream's sequences in batch `step`, and in all batches before it."""
        batch_size, before = self.rampup.batch_size_at(step), self.rampup.sequences_before(step)
        return batch_size // self.num_streams, before // self.num_streams

    def _spans(self, step: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield corpus, stream, start and number of this process's sequences of a step."""
        size, position = self._stream_position(step)
        batch_size = self.rampup.batch_size_at(step)
        first, last = (
            process * batch_size // self.num_processes
            for process in (self.process_id, self.process_id + 1)
        )
        for stream in self._local_streams():
            counts = zip(*self._mixture.count_by_corpus(stream, position, size), strict=True)
            sequence = stream * size  # of the global batch; a stream has one run per corpus
            for corpus, (before, count) in enumerate(counts):
                skipped = max(0, first - sequence)
                remaining = int(min(count, last - sequence)) - skipped
                sequence += int(count)
                if remaining > 0:
                    yield corpus, stream, int(before) + skipped, remaining

    def _prefetch_chunks(self, step: int) -> None:
        """Compute chunks of later steps, for some of the streams in each step.

        All streams start a pass, and most start a chunk, in the same step. Without prefetching,
        that step would take as long as many others.
        """
        stream_ids, max_seq_length = self._local_streams(), self.options.max_seq_length
        size, position = self._stream_position(step + 1)
        # Steps that the smallest chunk lasts, about.
        chunk_steps = sequences.chunk_tokens(max_seq_length) // (2 * size * max_seq_length)
        turns = max(1, min(len(stream_ids), chunk_steps))
        for stream in stream_ids[step % turns :: turns]:
            counts = self._mixture.count_by_corpus(stream, position, turns * size)
            for source, before, count in zip(self._sources, *counts, strict=True):
                source.prefetch(stream, int(before), int(before + count))


@functools.cache
def _uses_tf_data() -> bool:
    """Return whether tf.data makes the batches, and log it once."""
    installed = importlib.util.find_spec("tensorflow") is not None
    reason = "tf.data" if installed else "a thread pool, as tensorflow is not installed"
    _log.info("batches are made by %s.", reason)
    return installed


def open_corpora(directory: epath.PathLike, split: str) -> Mapping[str, Corpus]:
    """Open the corpora of one directory, or of several joined by "+".

    Returns:
      Corpora by name, the last part of their directory.

    Raises:
      InputError: a corpus is unfinished or damaged, or two have the same name or different
        tokenizers.
    """
    paths = [epath.Path(path) for path in str(directory).split(CORPUS_SEPARATOR)]
    if len(paths) > 1 and (epath.Path(directory) / MANIFEST).exists():
        paths = [epath.Path(directory)]  # its name has the separator
    if len(paths) == 1:
        return {paths[0].name: Corpus(paths[0], split)}
    corpora: dict[str, Corpus] = {}
    for path in paths:
        if path.name in corpora:
            raise InputError(
                f"{path}: another corpus has the name {path.name}. Rename one of the directories."
            )
        corpora[path.name] = corpus = Corpus(path, split, path.name)
        if difference := describe_difference(corpus.tokenizer, corpora[paths[0].name].tokenizer):
            raise InputError(
                f"{path}: prepared with another tokenizer than {paths[0]}: {difference}. Prepare "
                "both with one vocabulary."
            )
    return corpora
