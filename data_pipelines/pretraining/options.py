"""What the rows of a pre-training batch are: the options that decide them, and their arrays."""

import dataclasses
import functools
import math
import os

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.pretraining import masking
from data_pipelines.pretraining.packing import SequenceLimits

OBJECTIVES = ("mlm_nsp", "mlm", "clm")
REPLACE_PROBS = ("mask_replace_prob", "keep_share", "random_replace_prob")
MASKING_OPTIONS = (
    "masking",
    "mlm_probability",
    *REPLACE_PROBS,
    "random_tokens",
)  # options that say how text is masked

# The arrays of a batch: type, and the axis beside that of the rows: T pieces, M masked slots or
# K pairs (1 without packing). Of objective "clm" the masked slots are all pieces but the
# last of each segment, none of them is hidden, and the targets are the pieces that follow.
BATCH_ARRAYS = {
    "input_ids": (np.int32, "T"),  # 0 where padded
    "token_type_ids": (np.int32, "T"),  # 0 for sentence A, 1 for B
    "example_ids": (np.int32, "T"),  # 1 .. K, the pair that a piece belongs to; 0 where padded
    "position_ids": (np.int32, "T"),  # within the pair
    "masked_lm_positions": (np.int32, "M"),  # within the row, ascending
    "masked_lm_ids": (np.int32, "M"),  # the pieces that stood there
    "masked_lm_weights": (np.float32, "M"),  # 0 for an empty slot
    "cls_positions": (np.int32, "K"),  # within the row
    "next_sentence_labels": (np.int32, "K"),  # 1 where B is random
    "next_sentence_weights": (np.float32, "K"),  # 0 for an empty slot, and for objective "mlm"
}


@dataclasses.dataclass(frozen=True)
class PretrainingOptions:
    """What decides the batches, besides the corpus.

    A global batch has `batch_size` rows of `max_seq_length` pieces, T, and several pairs a row where there
    is `packing`; the order of the pairs, and their masks, come of the `seed`.

    Raises:
      InputError: a value that cannot be used.
    """

    max_seq_length: int
    batch_size: int
    seed: int = 0
    packing: bool = True
    objective: str = field(
        "mlm_nsp",
        '"mlm_nsp" is sentence pairs, "mlm" single segments without NSP, "clm" such '
        "segments of which each piece tells the next, as an ordinary language model",
    )
    full_sentences: bool = field(
        False,
        'of objective "mlm": the segments of a row attend to one another, and their positions go '
        "on from one to the next (RoBERTa's full sentences), instead of each standing for itself",
    )
    short_seq_prob: float = field(0.1, "share of documents that are cut into shorter pairs")
    max_predictions_per_seq: int | None = field(
        None,
        "at most so many masked pieces in a pair and in a row; None for `mlm_probability` of `max_seq_length`, "
        "rounded up to a multiple of 4",
    )
    mlm_probability: float = field(
        0.15, "share of the pieces of a pair that is chosen for prediction"
    )
    masking: str = field("token", 'what is chosen: "piece", "word" or "span"')
    mask_replace_prob: float = field(0.8, "of the chosen pieces, how many become `[MASK]`")
    keep_share: float = field(0.1, "of the chosen pieces, how many stay")
    random_replace_prob: float = field(0.1, "of the chosen pieces, how many become a random piece")
    random_tokens: str = field(
        "real",
        '"real" draws random pieces among those that stand for text, "all" from the whole '
        "vocabulary, as the original did",
    )
    dupe_factor: int = field(
        0,
        "0 draws anew in every epoch (dynamic masking); d > 0 repeats the first d epochs for ever, "
        "as the original's d copies of the corpus do",
    )
    sampling_alpha: float = field(
        1.0,
        "of several corpora, the exponent of each one's size in its share of the rows: 1 is "
        "natural, 0.7 is that of BERT's multilingual models",
    )
    mixture_weights: str = field(
        "",
        'of several corpora, in their order, in place of their sizes: numbers with "+" between '
        "them",
    )
    max_examples_per_seq: int | None = field(
        None, "at most so many pairs in a row; None for `max_seq_length` / 16"
    )
    workers: int | None = field(
        None, "threads that make batches; None for one a core; changes nothing but speed"
    )

    def __post_init__(self) -> None:
        self._check_minimum("max_seq_length", 8)
        self._check_minimum("batch_size", 1)
        self._check_minimum("max_predictions_per_seq", 1)
        self._check_minimum("max_examples_per_seq", 1)
        self._check_minimum("workers", 1)
        self._check_minimum("dupe_factor", 0)
        self._check_choice("objective", OBJECTIVES)
        self._check_choice("masking", masking.MASKING_UNITS)
        self._check_choice("random_tokens", ("real", "all"))
        if self.objective == "clm":
            for name in ("max_predictions_per_seq", *MASKING_OPTIONS):
                if (value := getattr(self, name)) != getattr(PretrainingOptions, name):
                    raise InputError(
                        f"{name}={value} is of masks, which objective=clm has not; leave it out."
                    )
        for name in ("short_seq_prob", "mlm_probability", *REPLACE_PROBS):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise InputError(f"{name}={value} is no probability; give one from 0 to 1.")
        if not self.mlm_probability:
            raise InputError("mlm_probability=0 leaves nothing to predict; give more than 0.")
        if not math.isclose(total := sum(self.replace_probs), 1, abs_tol=1e-6):
            given = ", ".join(map("{}={}".format, REPLACE_PROBS, self.replace_probs))
            raise InputError(f"{given} sum to {total:g}; make them sum to 1.")
        if (self.max_predictions_per_seq or 0) > self.max_seq_length:
            raise InputError(
                f"max_predictions_per_seq={self.max_predictions_per_seq} is more than the max_seq_length={self.max_seq_length} "
                "pieces of a row; give at most that."
            )
        if self.full_sentences and (self.objective != "mlm" or not self.packing):
            raise InputError(
                "full_sentences=True is of objective=mlm with packing; set these or leave it out."
            )
        if not self.packing and self.max_examples_per_seq not in (None, 1):
            raise InputError(
                f"max_examples_per_seq={self.max_examples_per_seq} needs packing; turn it on or leave this out."
            )

    def _check_minimum(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value} is too small; give at least {least}.")

    def _check_choice(self, name: str, known: tuple[str, ...]) -> None:
        if (value := getattr(self, name)) not in known:
            raise InputError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}.")

    @property
    def replace_probs(self) -> tuple[float, float, float]:
        """The probabilities of `[MASK]`, of the piece itself and of a random one."""
        return self.mask_replace_prob, self.keep_share, self.random_replace_prob

    @property
    def threads(self) -> int:
        """`workers`, or one for each core."""
        return self.workers or os.cpu_count() or 1

    @functools.cached_property
    def row(self) -> SequenceLimits:
        """T, M and K."""
        slots = self.max_predictions_per_seq or min(
            self.max_seq_length,
            4 * math.ceil(math.ceil(self.mlm_probability * self.max_seq_length) / 4),
        )
        if self.objective == "clm":
            slots = self.max_seq_length
        pairs = self.max_examples_per_seq or (
            max(1, self.max_seq_length // 16) if self.packing else 1
        )
        return SequenceLimits(self.max_seq_length, slots, pairs)

    @functools.cached_property
    def draws_per_sequence(self) -> int:
        """Random numbers for the masks of a row: one a piece, two a slot; a multiple of 4."""
        return -(-(self.row.tokens + 2 * self.row.slots) // 4) * 4

    def empty_batch(self, rows: int) -> dict[str, np.ndarray]:
        """The arrays of a batch of `rows` rows of padding, which have weight 0."""
        axes = dict(zip("TMK", dataclasses.astuple(self.row), strict=True))
        return {
            name: np.zeros((rows, axes[axis]), dtype)
            for name, (dtype, axis) in BATCH_ARRAYS.items()
        }
