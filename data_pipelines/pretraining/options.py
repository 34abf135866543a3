"""What the rows of a pre-training batch are: the options that decide them, and their arrays."""

import dataclasses
import functools
import math
import os

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.pretraining import masking
from data_pipelines.pretraining.packing import RowShape

OBJECTIVES = ("mlm_nsp", "mlm", "left_to_right")
SHARES = ("mask_share", "keep_share", "random_share")
MASKED = ("masking", "mask_prob", *SHARES, "random_pieces")  # options that say how text is masked

# The arrays of a batch: type, and the axis beside that of the rows: T pieces, M masked slots or
# K pairs (1 without packing). Of objective "left_to_right" the masked slots are all pieces but the
# last of each segment, none of them is hidden, and the targets are the pieces that follow.
BATCH = {
    "token_ids": (np.int32, "T"),  # 0 where padded
    "type_ids": (np.int32, "T"),  # 0 for sentence A, 1 for B
    "pack_ids": (np.int32, "T"),  # 1 .. K, the pair that a piece belongs to; 0 where padded
    "positions": (np.int32, "T"),  # within the pair
    "mlm_positions": (np.int32, "M"),  # within the row, ascending
    "mlm_targets": (np.int32, "M"),  # the pieces that stood there
    "mlm_weights": (np.float32, "M"),  # 0 for an empty slot
    "cls_positions": (np.int32, "K"),  # within the row
    "nsp_labels": (np.int32, "K"),  # 1 where B is random
    "nsp_weights": (np.float32, "K"),  # 0 for an empty slot, and for objective "mlm"
}


@dataclasses.dataclass(frozen=True)
class PretrainingOptions:
    """What decides the batches, besides the corpus.

    A global batch has `batch_size` rows of `seq_len` pieces, T, and several pairs a row where there
    is `packing`; the order of the pairs, and their masks, come of the `seed`.

    Raises:
      InputError: a value that cannot be used.
    """

    seq_len: int
    batch_size: int
    seed: int = 0
    packing: bool = True
    objective: str = field(
        "mlm_nsp",
        '"mlm_nsp" is sentence pairs, "mlm" single segments without NSP, "left_to_right" such '
        "segments of which each piece tells the next, as an ordinary language model",
    )
    across_documents: bool = field(
        False,
        'of objective "mlm": the segments of a row attend to one another, and their positions go '
        "on from one to the next (RoBERTa's full sentences), instead of each standing for itself",
    )
    short_seq_prob: float = field(0.1, "share of documents that are cut into shorter pairs")
    max_predictions: int | None = field(
        None,
        "at most so many masked pieces in a pair and in a row; None for `mask_prob` of `seq_len`, "
        "rounded up to a multiple of 4",
    )
    mask_prob: float = field(0.15, "share of the pieces of a pair that is chosen for prediction")
    masking: str = field("piece", 'what is chosen: "piece", "word" or "span"')
    mask_share: float = field(0.8, "of the chosen pieces, how many become `[MASK]`")
    keep_share: float = field(0.1, "of the chosen pieces, how many stay")
    random_share: float = field(0.1, "of the chosen pieces, how many become a random piece")
    random_pieces: str = field(
        "real",
        '"real" draws random pieces among those that stand for text, "all" from the whole '
        "vocabulary, as the original did",
    )
    dupe_factor: int = field(
        0,
        "0 draws anew in every epoch (dynamic masking); d > 0 repeats the first d epochs for ever, "
        "as the original's d copies of the corpus do",
    )
    smoothing: float = field(
        1.0,
        "of several corpora, the exponent of each one's size in its share of the rows: 1 is "
        "natural, 0.7 is that of BERT's multilingual models",
    )
    weights: str = field(
        "",
        'of several corpora, in their order, in place of their sizes: numbers with "+" between '
        "them",
    )
    pairs_per_row: int | None = field(
        None, "at most so many pairs in a row; None for `seq_len` / 16"
    )
    workers: int | None = field(
        None, "threads that make batches; None for one a core; changes nothing but speed"
    )

    def __post_init__(self) -> None:
        self._least("seq_len", 8)
        self._least("batch_size", 1)
        self._least("max_predictions", 1)
        self._least("pairs_per_row", 1)
        self._least("workers", 1)
        self._least("dupe_factor", 0)
        self._one_of("objective", OBJECTIVES)
        self._one_of("masking", masking.MASKINGS)
        self._one_of("random_pieces", ("real", "all"))
        if self.objective == "left_to_right":
            for name in ("max_predictions", *MASKED):
                if (value := getattr(self, name)) != getattr(PretrainingOptions, name):
                    raise InputError(
                        f"{name}={value} is of masks, which objective=left_to_right has not; leave "
                        "it out."
                    )
        for name in ("short_seq_prob", "mask_prob", *SHARES):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise InputError(f"{name}={value} is no probability; give one from 0 to 1.")
        if not self.mask_prob:
            raise InputError("mask_prob=0 leaves nothing to predict; give more than 0.")
        if not math.isclose(total := sum(self.shares), 1, abs_tol=1e-6):
            given = ", ".join(map("{}={}".format, SHARES, self.shares))
            raise InputError(f"{given} sum to {total:g}; make them sum to 1.")
        if (self.max_predictions or 0) > self.seq_len:
            raise InputError(
                f"max_predictions={self.max_predictions} is more than the seq_len={self.seq_len} "
                "pieces of a row; give at most that."
            )
        if self.across_documents and (self.objective != "mlm" or not self.packing):
            raise InputError(
                "across_documents=True is of objective=mlm with packing; set these or leave it out."
            )
        if not self.packing and self.pairs_per_row not in (None, 1):
            raise InputError(
                f"pairs_per_row={self.pairs_per_row} needs packing; turn it on or leave this out."
            )

    def _least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and value < least:
            raise InputError(f"{name}={value} is too small; give at least {least}.")

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        if (value := getattr(self, name)) not in known:
            raise InputError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}.")

    @property
    def shares(self) -> tuple[float, float, float]:
        """The probabilities of `[MASK]`, of the piece itself and of a random one."""
        return self.mask_share, self.keep_share, self.random_share

    @property
    def threads(self) -> int:
        """`workers`, or one for each core."""
        return self.workers or os.cpu_count() or 1

    @functools.cached_property
    def row(self) -> RowShape:
        """T, M and K."""
        slots = self.max_predictions or min(
            self.seq_len, 4 * math.ceil(math.ceil(self.mask_prob * self.seq_len) / 4)
        )
        if self.objective == "left_to_right":
            slots = self.seq_len
        pairs = self.pairs_per_row or (max(1, self.seq_len // 16) if self.packing else 1)
        return RowShape(self.seq_len, slots, pairs)

    @functools.cached_property
    def draws(self) -> int:
        """Random numbers for the masks of a row: one a piece, two a slot; a multiple of 4."""
        return -(-(self.row.pieces + 2 * self.row.slots) // 4) * 4

    def empty_rows(self, rows: int) -> dict[str, np.ndarray]:
        """The arrays of a batch of `rows` rows of padding, which have weight 0."""
        axes = dict(zip("TMK", dataclasses.astuple(self.row), strict=True))
        return {name: np.zeros((rows, axes[axis]), dtype) for name, (dtype, axis) in BATCH.items()}
