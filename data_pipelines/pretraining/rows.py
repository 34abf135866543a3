"""Documents to rows: the options of pre-training batches, and what they make of documents.

All functions here are pure. Which documents come when is for `streams` and `pretraining` to say.

Some rows are not filled to the end: best fit finds no partner for every pair of middle length. An
epoch therefore has a fixed number of rows, as many of the fullest as hold `Drawing.full` real
pieces on average and a few to spare; what stands in others, about a hundredth of the text or less,
is drawn anew in the next epoch, into other pairs with other neighbours.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Sequence

import numpy as np

from data_pipelines.errors import InputError
from data_pipelines.pretraining import masking
from data_pipelines.pretraining.packing import RowShape, lay_out, pack
from data_pipelines.pretraining.pairs import Pairs, draw_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.truncation import draw_truncated_pairs
from data_pipelines.vocabulary.tokenization import Tokenizer

OBJECTIVES = ("mlm_nsp", "mlm", "left_to_right")
LEAST_KEPT = 0.9  # of the rows that best fit gives; the others' text waits for the next epoch
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

    Attributes:
      seq_len: T, pieces in a row.
      batch_size: rows of the global batch.
      packing: several pairs to a row; False is the classical one.
      objective: "mlm_nsp" is sentence pairs, "mlm" single segments without NSP, "left_to_right"
        such segments of which each piece tells the next, as an ordinary language model.
      across_documents: of objective "mlm": the segments of a row attend to one another, and their
        positions go on from one to the next (RoBERTa's full sentences), instead of each standing
        for itself.
      short_seq_prob: share of documents cut into shorter pairs (see `pairs`).
      max_predictions: M, at most so many masked pieces in a pair and in a row; None for
        `mask_prob` * seq_len rounded up to a multiple of 4.
      mask_prob: share of the pieces of a pair that is chosen for prediction.
      masking: what is chosen: "piece", "word" or "span" (see `masking`).
      mask_share, keep_share, random_share: of the chosen pieces, how many become `[MASK]`, stay,
        or become a random piece.
      random_pieces: "real" draws random pieces among those that stand for text, "all" from the
        whole vocabulary, as the original did.
      dupe_factor: 0 draws anew in every epoch (dynamic masking); d > 0 repeats the first d epochs
        for ever, as the original's d copies of the corpus do.
      smoothing: of several corpora, the exponent of each one's size in its share of the rows: 1 is
        natural, 0.7 is that of BERT's multilingual models (see `mixture`).
      weights: of several corpora, in their order, in place of their sizes: numbers with "+"
        between them.
      pairs_per_row: K, at most so many pairs in a row; None for seq_len / 16.
      workers: threads that make batches; None for one a core. Changes nothing but speed.

    Raises:
      InputError: a value that cannot be used.
    """

    seq_len: int
    batch_size: int
    seed: int = 0
    packing: bool = True
    objective: str = "mlm_nsp"
    across_documents: bool = False
    short_seq_prob: float = 0.1
    max_predictions: int | None = None
    mask_prob: float = 0.15
    masking: str = "piece"
    mask_share: float = 0.8
    keep_share: float = 0.1
    random_share: float = 0.1
    random_pieces: str = "real"
    dupe_factor: int = 0
    smoothing: float = 1.0
    weights: str = ""
    pairs_per_row: int | None = None
    workers: int | None = None

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


@dataclasses.dataclass(frozen=True)
class Drawing:
    """What of a batch depends on the version of the corpus: a corpus gives the same rows for ever.

    Attributes:
      version: of the corpus.
      draw_pairs: that of `pairs`, or the one of `truncation`.
      exact_masks: whether masking by words always meets its count (see `masking.choose`).
      section: tokens of a document that are drawn together at most, about, for rows of so many
        pieces; None for all. A true B ends with its section: many rows make that rare.
      chunk: tokens that are drawn and packed together, about, for such rows: more packs better and
        mixes documents more, but takes longer.
      full: share of real pieces that packed rows aim at.
      spare: how many more rows an epoch has than its text is expected to fill: what is drawn anew
        to fill them is drawn twice, and what finds no row waits for the next epoch.
      packs_anew: whether rows that are wanted beyond those worth keeping are found by packing all
        anew with what is drawn twice, which may put off what was drawn once.
      even_groups: whether groups of shards must be even (see `corpus_rows`).
    """

    version: int
    draw_pairs: Callable[..., Pairs]
    exact_masks: bool
    section: Callable[[int], int | None]
    chunk: Callable[[int], int]
    full: float
    spare: float
    packs_anew: bool
    even_groups: bool


DRAWINGS = {
    1: Drawing(
        1,
        draw_truncated_pairs,
        exact_masks=False,
        section=lambda seq_len: None,
        chunk=lambda seq_len: 1 << 18,
        full=0.985,
        spare=0.0,
        packs_anew=True,
        even_groups=False,
    ),
    2: Drawing(
        2,
        draw_pairs,
        exact_masks=True,
        section=lambda seq_len: max(1 << 12, 32 * seq_len),
        chunk=lambda seq_len: max(1 << 15, 1024 * seq_len),
        full=0.965,
        spare=0.01,
        packs_anew=False,
        even_groups=True,
    ),
}


def draw_rows(
    sections: Sections,
    which: np.ndarray,
    options: PretrainingOptions,
    drawing: Drawing,
    rng: np.random.Generator,
    wanted: int = 0,
) -> tuple[Pairs, np.ndarray]:
    """The pairs of sections, `which` (int [W]), and the row of each, int64 [P].

    With packing, rows are numbered from the fullest to the emptiest; without, in the order drawn.
    Where they are fewer than `wanted`, as many sections as it takes are walked through once more,
    and what that gives follows.
    """

    def draw(which: np.ndarray) -> Pairs:
        next_sentence = options.objective == "mlm_nsp"
        length, short = options.seq_len, options.short_seq_prob
        return drawing.draw_pairs(sections, which, length, short, rng, next_sentence)

    def rows_of(pairs: Pairs) -> np.ndarray:
        if not options.packing:
            return np.arange(len(pairs))
        return pack(pairs.lengths, _predictions(pairs, options), options.row)

    tokens = np.cumsum(sections.sizes(which))
    pairs = draw(which)
    row_of = rows_of(pairs)
    while True:
        rows = int(row_of.max()) + 1
        found = rows_to_keep(pairs, row_of, options, drawing) if drawing.packs_anew else rows
        if (missing := wanted - found) <= 0:
            return pairs, row_of
        more = draw(which[: 1 + int(np.searchsorted(tokens, missing * options.seq_len))])
        pairs = Pairs.concatenate([pairs, more])
        row_of = (
            rows_of(pairs) if drawing.packs_anew else np.concatenate([row_of, rows + rows_of(more)])
        )


def rows_to_keep(
    pairs: Pairs, row_of: np.ndarray, options: PretrainingOptions, drawing: Drawing
) -> int:
    """How many of the rows that `draw_rows` gives are worth keeping.

    Without packing all are; else as many of the fullest as hold `drawing.full` real pieces on
    average, but no fewer than `LEAST_KEPT` of them all.
    """
    padding = options.seq_len - np.bincount(row_of, pairs.lengths)
    if not options.packing:
        return len(padding)
    allowed = (1 - drawing.full) * options.seq_len * np.arange(1, len(padding) + 1)
    kept = int(np.count_nonzero(np.cumsum(padding) <= allowed))
    return max(kept, math.ceil(LEAST_KEPT * len(padding)))


def _predictions(pairs: Pairs, options: PretrainingOptions) -> np.ndarray:
    if options.objective == "left_to_right":
        return pairs.lengths - 1
    text = pairs.a_length + pairs.b_length
    return masking.prediction_counts(pairs.lengths, text, options.mask_prob, options.row.slots)


@dataclasses.dataclass(frozen=True)
class Part:
    """Pairs of one shard that fill R consecutive rows."""

    tokens: np.ndarray  # the shard's
    pairs: Pairs
    row: np.ndarray  # int64 [P], 0 .. R - 1, never falling
    draws: np.ndarray  # float64 [R, options.draws], uniform in [0, 1): decide the masks


def make_rows(
    parts: Sequence[Part],
    rows: int,
    options: PretrainingOptions,
    drawing: Drawing,
    tokenizer: Tokenizer,
) -> dict[str, np.ndarray]:
    """Lays out and masks the rows of all parts, one after the other: the arrays of `BATCH`.

    Args:
      rows: rows of the arrays; those that the parts leave over are padding.
    """
    batch = options.empty_rows(rows)
    if not parts:
        return batch
    pairs = Pairs.concatenate(part.pairs for part in parts)
    sizes = [len(part.draws) for part in parts]
    row = np.concatenate([part.row for part in parts])
    row += np.repeat(np.cumsum(sizes) - sizes, [len(part.pairs) for part in parts])
    draws = np.concatenate([part.draws for part in parts])
    piece_ends = np.cumsum(pairs.a_length + pairs.b_length)
    part_ends = piece_ends[np.cumsum([len(part.pairs) for part in parts]) - 1]
    sources = np.split(pairs.sources, part_ends[:-1])
    text = np.concatenate([part.tokens[at] for part, at in zip(parts, sources, strict=True)])
    cells, runs = lay_out(text, pairs, row, batch, tokenizer.cls_id, tokenizer.sep_id)

    if options.objective == "left_to_right":
        _tell_next(batch)
        return batch
    length, slots, _ = dataclasses.astuple(options.row)
    if options.across_documents:
        batch["pack_ids"] = np.minimum(batch["pack_ids"], 1)
        batch["positions"] = batch["pack_ids"] * np.arange(length, dtype=np.int32)
    starts = masking.word_starts(text, runs, tokenizer.continues)
    counts = _predictions(pairs, options)
    of_pieces = draws[:, :length].reshape(-1)[cells]
    exact = drawing.exact_masks
    chosen = masking.choose(options.masking, counts, runs, starts, of_pieces, exact)
    targets = text[chosen].astype(np.int32)
    row, column = np.divmod(cells[chosen], length)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    of_slots = np.stack([draws[row, length + slot], draws[row, length + slots + slot]])
    random_ids = tokenizer.real_ids
    if options.random_pieces == "all":
        random_ids = np.arange(len(tokenizer.pieces))
    batch["token_ids"][row, column] = masking.replace(
        targets, options.shares, tokenizer.mask_id, random_ids, of_slots
    )
    batch["mlm_positions"][row, slot] = column
    batch["mlm_targets"][row, slot] = targets
    batch["mlm_weights"][row, slot] = 1
    return batch


def _tell_next(batch: dict[str, np.ndarray]) -> None:
    """Makes each piece but the last of a segment tell the one that follows."""
    pack_ids = batch["pack_ids"]
    row, column = np.nonzero((pack_ids[:, :-1] > 0) & (pack_ids[:, :-1] == pack_ids[:, 1:]))
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    batch["mlm_positions"][row, slot] = column
    batch["mlm_targets"][row, slot] = batch["token_ids"][row, column + 1]
    batch["mlm_weights"][row, slot] = 1


def render_row(batch: dict[str, np.ndarray], row: int, tokenizer: Tokenizer) -> str:
    """One row as text, a line a pair: its NSP label, then its pieces.

    A piece to predict is shown as `⟦piece→what the encoder sees⟧`.
    """
    seen = [tokenizer.pieces[i] for i in batch["token_ids"][row]]
    filled = batch["mlm_weights"][row] > 0
    for position, target in zip(
        batch["mlm_positions"][row][filled], batch["mlm_targets"][row][filled], strict=True
    ):
        seen[position] = f"⟦{tokenizer.pieces[target]}→{seen[position]}⟧"
    pack_ids = batch["pack_ids"][row]
    lines = []
    for slot in range(pack_ids.max()):
        label = ("next", "random")[batch["nsp_labels"][row, slot]]
        pieces = " ".join(seen[i] for i in np.flatnonzero(pack_ids == slot + 1))
        lines.append(f"{label}: {pieces}" if batch["nsp_weights"][row, slot] else pieces)
    return "\n".join(lines)
