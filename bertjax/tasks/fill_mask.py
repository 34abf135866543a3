"""Pipeline that fills the masks of a text with a masked language model."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from bertjax.steps.objective import Objective
from bertjax.tasks.pipeline import (
    Content,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    bar_block,
    parse_text_lines,
    require_text,
    text_block,
)
from bertjax.tasks.task import bucket_size
from data_pipelines.errors import InputError
from data_pipelines.pretraining.packing import SequenceLimits, pack
from data_pipelines.vocabulary.tokenization import Tokenizer

MASK = "[MASK]"  # in texts of users, whatever the tokenizer calls its mask
_TOP_K = 5  # tokens returned for each mask
_MIN_SEQ_LENGTH = 16  # tokens
_TOKENS_PER_SLOT = 8  # of a sequence for each prediction slot; fewer slots waste the others' time
_MAX_BATCH_TOKENS = 8192  # so that the scores of all slots fit in memory


# Texts, the token ids and the positions of the masks of each, and the same in batches.
Context = tuple[list[str], list[np.ndarray], list[np.ndarray], "PackedTexts"]


class FillMaskPipeline(Pipeline[Context]):
    """Most probable tokens for each mask of a text."""

    method = "fill_mask"
    description = "fills [MASK]s"
    max_batch_inputs = 64  # each mask has as many scores as the vocabulary tokens

    def __init__(self, objective: Objective, *args: Any, **kwargs: Any) -> None:
        super().__init__(objective, *args, **kwargs)
        if (direction := self.config.model.direction) != "bidirectional":
            raise InputError(
                f"model.direction={direction}: this model fills no masks and continues no text. "
                "Fine-tune it, alone or in a pair."
            )

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence of the encoder."""
        return self.config.model.max_position_embeddings

    @staticmethod
    def parse_arguments(texts: str | Iterable[str]) -> Any:
        """Return the five most probable tokens for each "[MASK]" of a text.

        The answer is {"text", "sequence", "masks"}. `sequence` is the text with its masks filled.
        `masks` has a list of {"token_str", "score"} for each mask, highest score first.

        Args:
          texts: a text, or several.

        Raises:
          InputError: the model has another head, or a text has no mask or is too long.
        """
        return texts

    parse_lines = staticmethod(parse_text_lines)

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the key of the text."""
        return {"text"}

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches with a prediction slot for each mask."""
        texts = [require_text(item) for item in inputs]
        ids = [self._encode(item.location, text) for item, text in zip(inputs, texts, strict=True)]
        masks = [np.flatnonzero(text_ids == self.tokenizer.mask_id) for text_ids in ids]
        packed = PackedTexts(ids, masks, self.max_input_tokens)
        return packed.batches(), (texts, ids, masks, packed)

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield each text with its masks filled, and the best tokens."""
        texts, all_ids, all_masks, packed = context
        tokens = self.tokenizer.tokens
        results = packed.reduce_scores(outputs, len(tokens), _top_tokens)
        for text, ids, masks, guesses in zip(texts, all_ids, all_masks, results, strict=True):
            filled = ids.copy()
            filled[masks] = [ranked[0][0] for ranked in guesses]
            yield {
                "text": text,
                "sequence": self.tokenizer.decode(filled[1:-1].tolist()),
                "masks": [
                    [{"token_str": tokens[i], "score": score} for i, score in ranked]
                    for ranked in guesses
                ],
            }

    def sample_input(self, text: str = "The capital of France is", word: str = "") -> Content:
        """Return a text with one mask at its end."""
        return f"{text} {MASK}."

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the filled text, and a chart for each mask."""
        charts = (
            bar_block((guess["token_str"], guess["score"]) for guess in guesses)
            for guesses in answer["masks"]
        )
        return [text_block(answer["sequence"]), *charts]

    def _encode(self, location: str, text: str) -> np.ndarray:
        """Return the token ids of a text with its special tokens, int32."""
        tokenizer = self.tokenizer
        if MASK not in text:
            raise InputError(f"{location}: there is no {MASK}. Write one where a token is missing.")
        ids = [tokenizer.cls_id, *encode_with_masks(tokenizer, text), tokenizer.sep_id]
        check_num_tokens(location, len(ids), self.max_input_tokens)
        return np.array(ids, np.int32)


def encode_with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text, each "[MASK]" as the mask token."""
    first, *others = (tokenizer.encode(part) for part in text.split(MASK))
    return [*first, *(i for part in others for i in (tokenizer.mask_id, *part))]


def check_num_tokens(location: str, num_tokens: int, max_tokens: int) -> None:
    """Raise InputError if a text has too many tokens."""
    if num_tokens > max_tokens:
        raise InputError(
            f"{location}: the text has {num_tokens} tokens and the model takes {max_tokens}. "
            "Shorten it."
        )


def _top_tokens(logits: np.ndarray) -> list[list[tuple[int, float]]]:
    """Return, for each mask, ids and probabilities of its best tokens, from logits [M, V]."""
    probabilities = softmax(logits, axis=-1)
    # A full sort takes 20 times as long.
    top = np.sort(np.argpartition(-probabilities, _TOP_K - 1, axis=-1)[:, :_TOP_K], axis=-1)
    order = np.argsort(-np.take_along_axis(probabilities, top, axis=-1), axis=-1, kind="stable")
    ranked = np.take_along_axis(top, order, axis=-1)
    return [
        [(i, round(float(row[i]), 6)) for i in ids.tolist()]
        for row, ids in zip(probabilities, ranked, strict=True)
    ]


class PackedTexts:
    """Encoded texts packed into sequences, each with prediction slots at some of its positions.

    The length is a power of two. The number of slots follows from it unless many positions are
    needed. So few shapes are compiled.

    Args:
      ids: int32 token ids of each text.
      positions: ascending positions of each text whose scores are needed.
      max_length: longest sequence.
      prefix_lengths: tokens of type 0 of each text, which come first; None for all of them.

    Attributes:
      arrays: arrays of all sequences.
      places: sequence, first column and slots of each text.
    """

    def __init__(
        self,
        ids: Sequence[np.ndarray],
        positions: Sequence[np.ndarray],
        max_length: int,
        prefix_lengths: Sequence[int] | None = None,
    ) -> None:
        lengths, counts = (np.array(list(map(len, arrays))) for arrays in (ids, positions))
        length = bucket_size(lengths.max(), _MIN_SEQ_LENGTH, max_length)
        num_slots = max(bucket_size(counts.max()), length // _TOKENS_PER_SLOT)
        sequence_of_text = pack(lengths, counts, SequenceLimits(length, num_slots, length))
        num_sequences = int(sequence_of_text.max()) + 1
        names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
        arrays = {name: np.zeros((num_sequences, length), np.int32) for name in names}
        arrays["masked_lm_positions"] = np.zeros((num_sequences, num_slots), np.int32)
        arrays["cls_positions"] = np.zeros((num_sequences, 1), np.int32)
        num_texts, used_tokens, used_slots = (np.zeros(num_sequences, np.int64) for _ in range(3))
        self.places: list[tuple[int, int, slice]] = []
        for sequence, text_ids, needed, prefix_length in zip(
            sequence_of_text.tolist(), ids, positions, prefix_lengths or lengths, strict=True
        ):
            columns = slice(used_tokens[sequence], used_tokens[sequence] + len(text_ids))
            num_texts[sequence] += 1
            arrays["input_ids"][sequence, columns] = text_ids
            arrays["example_ids"][sequence, columns] = num_texts[sequence]
            positions_within = np.arange(len(text_ids))
            arrays["token_type_ids"][sequence, columns] = positions_within >= prefix_length
            arrays["position_ids"][sequence, columns] = positions_within
            slots = slice(used_slots[sequence], used_slots[sequence] + len(needed))
            arrays["masked_lm_positions"][sequence, slots] = columns.start + needed
            self.places.append((sequence, columns.start, slots))
            used_tokens[sequence], used_slots[sequence] = columns.stop, slots.stop
        self.arrays, self._num_sequences = arrays, num_sequences
        self._batch_size = max(1, _MAX_BATCH_TOKENS // length)

    def batches(self) -> Iterator[HostBatch]:
        """Yield the batches."""
        for first in range(0, self._num_sequences, self._batch_size):
            yield {
                name: array[first : first + self._batch_size] for name, array in self.arrays.items()
            }

    def reduce_scores(
        self, outputs: Iterable[Outputs], num_tokens: int, reduce: Callable[[np.ndarray], Any]
    ) -> list[Any]:
        """Return the result of a function for each text.

        Args:
          outputs: of each batch, with `mlm_logits` [B, M, V].
          num_tokens: tokens of the vocabulary; logits of padding tokens after them are dropped.
          reduce: function of a text's logits at its positions, float32 [len(positions), tokens].
        """
        texts_of_batch: dict[int, list[int]] = {}
        for text, (sequence, _, _) in enumerate(self.places):
            texts_of_batch.setdefault(sequence // self._batch_size, []).append(text)
        results: list[Any] = [None] * len(self.places)
        for batch, arrays in enumerate(outputs):
            for text in texts_of_batch[batch]:
                sequence, _, slots = self.places[text]
                logits = arrays["mlm_logits"][sequence % self._batch_size, slots, :num_tokens]
                results[text] = reduce(logits)
        return results
