"""Batches of sources for `bertjax.model.decoder.generation.generate`."""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.mesh.device_mesh import max_predict_sequences
from bertjax.model.decoder.options import SOURCE_DTYPES, Decoding, DecodingOptions
from bertjax.tasks.pipeline import HostBatch
from bertjax.tasks.task import bucket_size

# Tokens of a batch of a CPU device, those of all hypotheses included, so that the cache fits in
# memory: 0.6 GB for BERT-Base in float32.
_MAX_BATCH_TOKENS = 8192
_MIN_SEQ_LENGTH = 16
_TOKENS_PER_SLOT = 8  # of prediction, as in `bertjax.steps.objective.Objective.generation_shapes`
_MIN_TARGET_LENGTH = 16  # of a program: space for as many tokens


def program_options(options: DecodingOptions) -> DecodingOptions:
    """Return the options of the program that decodes with these; see `Decoding`.

    They have few values, so that requests with different numbers share programs and batches.

    Args:
      options: `max_new_tokens` is set.
    """
    return dataclasses.replace(
        options,
        max_new_tokens=bucket_size(options.max_new_tokens, _MIN_TARGET_LENGTH),
        min_new_tokens=min(options.min_new_tokens, 1),
        length_penalty=1.0 if options.length_penalty > 0 else 0.0,
        temperature=1.0,
        top_k=options.top_k and bucket_size(options.top_k),
        top_p=1.0 if options.top_p == 1 else 0.5,
        seed=0,
    )


class SourceBatches:
    """Sources in batches of similar lengths, each in a sequence of its own.

    Shapes thus depend on the number of sources and the bucket of their length alone. Sequences that
    short sources share would add shapes, which a server would compile at requests.

    Args:
      ids: int32 token ids of each source.
      limits: maximal tokens of each target.
      max_length: longest sequence.
      options: options of each source, which share `program_options`.
      num_devices: devices that share a batch.

    Attributes:
      order: number of each source, batch by batch.
    """

    def __init__(
        self,
        ids: Sequence[np.ndarray],
        limits: Sequence[int],
        max_length: int,
        options: Sequence[DecodingOptions],
        num_devices: int = 1,
    ) -> None:
        self._ids, self._limits, self._max_length = ids, limits, max_length
        self._options, self._program = options, program_options(options[0])
        num_targets = max(self._program.num_beams, self._program.num_return_sequences)
        hypotheses = num_targets * self._program.max_new_tokens
        self._parts: list[list[int]] = []
        largest = 0  # length of the last part's sequences
        for number in sorted(range(len(ids)), key=lambda i: -len(ids[i])):
            length = bucket_size(len(ids[number]), _MIN_SEQ_LENGTH, max_length)
            num_tokens = length + hypotheses
            # Accelerators get half of the tokens of other predictions, for the cache and its copy
            # in a beam search: 32,768 of BERT-Large in bfloat16 would take 10.4 GiB of a v5e.
            largest_size = max_predict_sequences(
                2 * num_tokens, num_devices, max(1, _MAX_BATCH_TOKENS // num_tokens)
            )
            if length != largest or len(self._parts[-1]) == largest_size:
                self._parts.append([])
            self._parts[-1].append(number)
            largest = length
        self.order = [number for part in self._parts for number in part]

    def decoding(self, num_tokens: int, sep_id: int, mask_id: int = 0) -> Decoding:
        """Return the constants of the program for these batches.

        Args:
          num_tokens: tokens of the vocabulary.
          sep_id: token that ends a target.
          mask_id: token that `decoder=masked_prefix` predicts the next one at.
        """
        return Decoding(self._program, num_tokens, sep_id, mask_id)

    def __iter__(self) -> Iterator[HostBatch]:
        """Yield the batches."""
        return map(self._batch, self._parts)

    def _batch(self, part: Sequence[int]) -> HostBatch:
        ids = [self._ids[number] for number in part]
        lengths = np.array([len(source) for source in ids], np.int32)
        num_columns = bucket_size(lengths.max(), _MIN_SEQ_LENGTH, self._max_length)
        columns, rows = np.arange(num_columns, dtype=np.int32), np.arange(len(part))
        is_token = columns < lengths[:, None]
        input_ids = np.zeros(is_token.shape, np.int32)
        input_ids[is_token] = np.concatenate(ids)
        num_slots = max(1, num_columns // _TOKENS_PER_SLOT)
        predicted = np.zeros((len(part), num_slots), np.int32)
        predicted[:, 0] = lengths - 1  # the first token of a target follows the last of its source
        options = [self._options[number] for number in part]
        fields: dict[str, list[float]] = {
            name: [getattr(item, name) for item in options]
            for name in SOURCE_DTYPES
            if name != "limits"
        }
        fields["limits"] = [self._limits[number] for number in part]
        return {
            "input_ids": input_ids,
            "token_type_ids": np.zeros_like(input_ids),
            "example_ids": is_token.astype(np.int32),
            "position_ids": np.where(is_token, columns, 0),
            "masked_lm_positions": predicted,
            "cls_positions": np.zeros((len(part), 1), np.int32),
            "source_tokens": np.where(is_token, rows[:, None] * num_columns + columns, 0).astype(
                np.int32
            ),
            "source_lengths": lengths,
            "source_slots": (rows * num_slots).astype(np.int32),
            "source_digests": np.array(
                [
                    zlib.crc32(source.tobytes(), item.seed)
                    for source, item in zip(ids, options, strict=True)
                ],
                np.uint32,
            ),
            **{
                f"source_{name}": np.array(values, SOURCE_DTYPES[name])
                for name, values in fields.items()
            },
        }
