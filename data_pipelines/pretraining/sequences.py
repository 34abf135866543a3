"""Documents to rows: what the options of pre-training batches make of documents.

All functions here are pure. Which documents come when is for `streams` and `pretraining` to say.

Some rows are not filled to the end: best fit finds no partner for every pair of middle length. An
epoch therefore has a fixed number of rows, as many of the fullest as hold `Drawing.full` real
pieces on average and a few to spare; what stands in others, about a hundredth of the text or less,
is drawn anew in the next epoch, into other pairs with other neighbours.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from data_pipelines.pretraining import masking
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.pretraining.packing import lay_out, pack
from data_pipelines.pretraining.pairs import Pairs, draw_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.truncation import draw_truncated_pairs
from data_pipelines.vocabulary.tokenization import Tokenizer

LEAST_KEPT = 0.9  # of the rows that best fit gives; the others' text waits for the next epoch


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
