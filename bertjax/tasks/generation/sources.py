"""Batches of sources for `bertjax.model.decoder.generation.generate`."""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.model.decoder.options import Decoding, DecodingOptions
from bertjax.tasks.fill_mask import PackedTexts
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import bucket_size

# Tokens of a batch, those of all hypotheses included, so that the cache fits in memory: 0.6 GB for
# BERT-Base in float32.
_MAX_BATCH_TOKENS = 8192
_MIN_SEQ_LENGTH = 16


class SourceBatches:
    """Sources in batches of similar lengths.

    Args:
      ids: int32 token ids of each source.
      limits: maximal tokens of each target.
      max_length: longest sequence.
      options: options of decoding; `max_new_tokens` is set.

    Attributes:
      order: number of each source, batch by batch.
    """

    def __init__(
        self,
        ids: Sequence[np.ndarray],
        limits: Sequence[int],
        max_length: int,
        options: DecodingOptions,
    ) -> None:
        self._ids, self._limits, self._max_length = ids, limits, max_length
        self._options = options
        hypotheses = max(options.num_beams, options.num_return_sequences) * options.max_new_tokens
        self._parts: list[list[int]] = []
        largest = 0  # length of the last part's sequences
        for number in sorted(range(len(ids)), key=lambda i: -len(ids[i])):
            length = bucket_size(len(ids[number]), _MIN_SEQ_LENGTH, max_length)
            size = len(self._parts[-1]) + 1 if self._parts else 0
            if length != largest or size * (length + hypotheses) > _MAX_BATCH_TOKENS:
                self._parts.append([])
            self._parts[-1].append(number)
            largest = length
        self.order = [number for part in self._parts for number in part]

    def decoding(self, num_tokens: int, sep_id: int, mask_id: int = 0) -> Decoding:
        """Return the constants of the program for these batches, the same for all seeds.

        Args:
          num_tokens: tokens of the vocabulary.
          sep_id: token that ends a target.
          mask_id: token that `decoder=masked_prefix` predicts the next one at.
        """
        options = dataclasses.replace(self._options, seed=0)
        return Decoding(options, num_tokens, sep_id, mask_id)

    def __iter__(self) -> Iterator[HostBatch]:
        """Yield the batches."""
        return map(self._batch, self._parts)

    def _batch(self, part: Sequence[int]) -> HostBatch:
        ids = [self._ids[number] for number in part]
        lengths = [len(source) for source in ids]
        packed = PackedTexts(
            ids, [np.array([length - 1]) for length in lengths], self._max_length, lengths
        )
        num_columns, num_slots = (
            packed.arrays[name].shape[1] for name in ("input_ids", "masked_lm_positions")
        )
        tokens = np.zeros((len(part), num_columns), np.int32)
        for row, length, (sequence, column, _) in zip(tokens, lengths, packed.places, strict=True):
            row[:length] = sequence * num_columns + column + np.arange(length)
        slots = [sequence * num_slots + slots.start for sequence, _, slots in packed.places]
        return packed.arrays | {
            "source_tokens": tokens,
            "source_lengths": np.array(lengths, np.int32),
            "source_slots": np.array(slots, np.int32),
            "source_limits": np.array([self._limits[number] for number in part], np.int32),
            "source_digests": np.array(
                [zlib.crc32(source.tobytes(), self._options.seed) for source in ids], np.uint32
            ),
        }
