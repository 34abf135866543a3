"""Options of pre-training batches, and the arrays of a batch."""

import dataclasses
import functools
import math

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.parallel import MAX_WORKERS, usable_cores
from data_pipelines.pretraining import masking
from data_pipelines.pretraining.packing import SequenceLimits
from data_pipelines.schedules import ScheduledFloat, parse_schedule

OBJECTIVES = ("mlm_nsp", "mlm", "clm", "clm_reverse")
CLM_OBJECTIVES = ("clm", "clm_reverse")
REPLACE_PROBS = ("mask_replace_prob", "random_replace_prob")
MASKING_OPTIONS = ("masking", "mlm_probability", *REPLACE_PROBS, "random_tokens")

# The arrays of a batch of B sequences: dtype, and the second axis: T tokens, M predictions or K
# examples (1 without packing). With objective "clm", every token but the last of an example is a
# prediction: none is masked, and `masked_lm_ids` are the tokens that follow. With "clm_reverse",
# every token but the first is one, and `masked_lm_ids` are the tokens before.
BATCH_ARRAYS = {
    "input_ids": (np.int32, "T"),  # 0 for padding
    "token_type_ids": (np.int32, "T"),  # 0 for sentence A, 1 for B
    "example_ids": (np.int32, "T"),  # 1 .. K, the example of a token; 0 for padding
    "position_ids": (np.int32, "T"),  # within the example
    "masked_lm_positions": (np.int32, "M"),  # within the sequence, ascending
    "masked_lm_ids": (np.int32, "M"),  # the original tokens
    "masked_lm_weights": (np.float32, "M"),  # 0 for an empty slot
    "cls_positions": (np.int32, "K"),  # within the sequence
    "next_sentence_labels": (np.int32, "K"),  # 1 where B is random
    "next_sentence_weights": (np.float32, "K"),  # 0 for an empty slot, and for objective "mlm"
}


@dataclasses.dataclass(frozen=True)
class PretrainingOptions:
    """The options that determine the batches of a corpus.

    A global batch has `batch_size` sequences of `max_seq_length` tokens. With `packing` a sequence
    holds several pairs. The `seed` determines the order of the pairs and their masks.

    Raises:
      InputError: a value is out of range, or two options exclude each other.
    """

    max_seq_length: int
    batch_size: int
    seed: int = 0
    packing: bool = True
    objective: str = field(
        "mlm_nsp",
        'objective: "mlm_nsp" (masked LM and next sentence prediction on pairs), "mlm" (masked LM '
        'on single segments), "clm" (left to right, each token predicts the next) or "clm_reverse" '
        "(right to left, each token predicts the one before)",
    )
    full_sentences: bool = field(
        False,
        "RoBERTa's FULL-SENTENCES: the segments of a sequence attend to one another and share one "
        'range of positions; needs objective "mlm" and packing',
    )
    short_seq_prob: float = field(
        0.1, "probability that a document is split into shorter pairs (google-research/bert)"
    )
    max_predictions_per_seq: int | None = field(
        None,
        "maximum number of masked tokens in a sequence; None: `mlm_probability`, at its largest, "
        "of `max_seq_length`, rounded up to a multiple of 4",
    )
    mlm_probability: float | str = field(
        ScheduledFloat(0.15),
        "masking rate: fraction of the tokens that are predicted, above 0; with two numbers as in "
        '"0.3..0.15" it changes linearly over the run',
    )
    masking: str = field(
        "token",
        'masking unit: "token", "whole_word", "span" (SpanBERT), or "entity": entity spans of the '
        "corpus (`bertjax prepare --spans`), and whole words outside of them",
    )
    mask_replace_prob: float = field(
        0.8, "fraction of the predicted tokens that `[MASK]` replaces; the remainder is kept"
    )
    random_replace_prob: float = field(
        0.1, "fraction of the predicted tokens that a random token replaces"
    )
    random_tokens: str = field(
        "real",
        'random tokens: "real" draws tokens that stand for text, "all" draws from the whole '
        "vocabulary (google-research/bert)",
    )
    dupe_factor: int = field(
        0,
        "static masking: the first `dupe_factor` epochs repeat (google-research/bert); 0: dynamic "
        "masking, every epoch is drawn anew",
    )
    sampling_alpha: float = field(
        1.0,
        "exponent of the mixture of several corpora: each gets p^`sampling_alpha` of the "
        "sequences; 1 is natural, 0.7 as in multilingual BERT",
    )
    mixture_weights: str = field(
        "", 'weights of several corpora, in their order, joined by "+"; replace `sampling_alpha`'
    )
    max_examples_per_seq: int | None = field(
        None,
        "maximum number of examples in a packed sequence; None: `max_seq_length` / 16 with next "
        "sentence prediction, else / 4",
    )
    workers: int | None = field(
        None, "threads that make batches; None: one per core; does not change the batches"
    )

    def __post_init__(self) -> None:
        for name, minimum in {
            "max_seq_length": 8,
            "batch_size": 1,
            "max_predictions_per_seq": 1,
            "max_examples_per_seq": 1,
            "workers": 1,
            "dupe_factor": 0,
        }.items():
            if (value := getattr(self, name)) is not None and value < minimum:
                raise InputError(f"{name}={value}: below the minimum. Use at least {minimum}.")
        for name, maximum in {
            "workers": MAX_WORKERS,
            "max_examples_per_seq": self.max_seq_length,
        }.items():
            if (value := getattr(self, name)) is not None and value > maximum:
                raise InputError(f"{name}={value}: is too large. Use at most {maximum}.")
        for name, choices in {
            "objective": OBJECTIVES,
            "masking": masking.MASKING_UNITS,
            "random_tokens": ("real", "all"),
        }.items():
            if (value := getattr(self, name)) not in choices:
                known = ", ".join(choices)
                raise InputError(f"{name}={value!r}: unknown value. Choose one of {known}.")
        if self.objective in CLM_OBJECTIVES:
            for name in ("max_predictions_per_seq", *MASKING_OPTIONS):
                if (value := getattr(self, name)) != getattr(PretrainingOptions, name):
                    raise InputError(
                        f"{name}={value}: objective={self.objective} masks no tokens. Remove this "
                        "option."
                    )
        for name in ("short_seq_prob", "mlm_probability", *REPLACE_PROBS):
            value = getattr(self, name)
            rates = self.mlm_probabilities if name == "mlm_probability" else (value, value)
            if not all(0 <= rate <= 1 for rate in rates):
                raise InputError(f"{name}={value}: not a probability. Use a value from 0 to 1.")
        if not min(self.mlm_probabilities):
            raise InputError(
                f"mlm_probability={self.mlm_probability}: no token to predict. Use a rate above 0."
            )
        if self.dupe_factor and self.mlm_probabilities[0] != self.mlm_probabilities[1]:
            raise InputError(
                f"mlm_probability={self.mlm_probability}: changes, and dupe_factor="
                f"{self.dupe_factor} repeats masks. Remove one of them."
            )
        if (total := self.mask_replace_prob + self.random_replace_prob) > 1 + 1e-6:
            values = ", ".join(f"{name}={getattr(self, name)}" for name in REPLACE_PROBS)
            raise InputError(f"{values}: sum {total:g} above 1. Make the sum at most 1.")
        if (self.max_predictions_per_seq or 0) > self.max_seq_length:
            raise InputError(
                f"max_predictions_per_seq={self.max_predictions_per_seq}: above "
                f"max_seq_length={self.max_seq_length}. Use at most {self.max_seq_length}."
            )
        if self.full_sentences and (self.objective != "mlm" or not self.packing):
            raise InputError(
                "full_sentences=True: needs objective=mlm and packing=True. Set both, or remove "
                "this option."
            )
        if not self.packing and self.max_examples_per_seq not in (None, 1):
            raise InputError(
                f"max_examples_per_seq={self.max_examples_per_seq}: needs packing=True. Set it, or "
                "remove this option."
            )

    @property
    def threads(self) -> int:
        """Number of threads: `workers`, or one per core that the process may use."""
        return self.workers or usable_cores()

    @functools.cached_property
    def mlm_probabilities(self) -> tuple[float, float]:
        """The masking rate at the beginning and at the end of the run."""
        if isinstance(self.mlm_probability, str):
            return parse_schedule("mlm_probability", self.mlm_probability)
        return self.mlm_probability, self.mlm_probability

    @functools.cached_property
    def sequence_limits(self) -> SequenceLimits:
        """Limits of one sequence: T, M and K."""
        predictions = self.max_predictions_per_seq or min(
            self.max_seq_length,
            4 * math.ceil(math.ceil(max(self.mlm_probabilities) * self.max_seq_length) / 4),
        )
        if self.objective in CLM_OBJECTIVES:
            predictions = self.max_seq_length
        # A pair has 16 tokens or more, nearly always; a single segment may have two beside [CLS].
        smallest = 16 if self.objective == "mlm_nsp" else 4
        examples = self.max_examples_per_seq or (
            max(1, self.max_seq_length // smallest) if self.packing else 1
        )
        return SequenceLimits(self.max_seq_length, predictions, examples)

    @functools.cached_property
    def draws_per_sequence(self) -> int:
        """Random numbers per sequence: one per token, two per prediction; a multiple of 4."""
        limits = self.sequence_limits
        return -(-(limits.tokens + 2 * limits.predictions) // 4) * 4

    def empty_batch(self, num_sequences: int) -> dict[str, np.ndarray]:
        """Return the arrays of a batch of padding, all zeros, so every weight is 0."""
        axes = dict(zip("TMK", dataclasses.astuple(self.sequence_limits), strict=True))
        return {
            name: np.zeros((num_sequences, axes[axis]), dtype)
            for name, (dtype, axis) in BATCH_ARRAYS.items()
        }
