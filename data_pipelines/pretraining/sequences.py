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
from data_pipelines.pretraining.packing import pack, write_pairs
from data_pipelines.pretraining.pairs import Pairs, draw_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.truncation import draw_truncated_pairs
from data_pipelines.vocabulary.tokenization import Tokenizer

MIN_KEPT_FRACTION = (
    0.9  # of the rows that best fit gives; the others' text waits for the next epoch
)


@dataclasses.dataclass(frozen=True)
class SamplingVersion:
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
      repack_all: whether rows that are wanted beyond those worth keeping are found by packing all
        anew with what is drawn twice, which may put off what was drawn once.
      even_groups: whether groups of shards must be even (see `corpus_rows`).
    """

    version: int
    draw_pairs: Callable[..., Pairs]
    exact_masks: bool
    section: Callable[[int], int | None]
    chunk: Callable[[int], int]
    target_nonpad_fraction: float
    extra_fraction: float
    repack_all: bool
    even_groups: bool


SAMPLING_VERSIONS = {
    1: SamplingVersion(
        1,
        draw_truncated_pairs,
        exact_masks=False,
        section=lambda max_seq_length: None,
        chunk=lambda max_seq_length: 1 << 18,
        target_nonpad_fraction=0.985,
        extra_fraction=0.0,
        repack_all=True,
        even_groups=False,
    ),
    2: SamplingVersion(
        2,
        draw_pairs,
        exact_masks=True,
        section=lambda max_seq_length: max(1 << 12, 32 * max_seq_length),
        chunk=lambda max_seq_length: max(1 << 15, 1024 * max_seq_length),
        target_nonpad_fraction=0.965,
        extra_fraction=0.01,
        repack_all=False,
        even_groups=True,
    ),
}


def draw_sequences(
    sections: Sections,
    section_ids: np.ndarray,
    options: PretrainingOptions,
    sampling_version: SamplingVersion,
    rng: np.random.Generator,
    wanted: int = 0,
) -> tuple[Pairs, np.ndarray]:
    """The pairs of sections, `section_ids` (int [W]), and the row of each, int64 [P].

    With packing, rows are numbered from the fullest to the emptiest; without, in the order drawn.
    Where they are fewer than `wanted`, as many sections as it takes are walked through once more,
    and what that gives follows.
    """

    def draw(section_ids: np.ndarray) -> Pairs:
        next_sentence = options.objective == "mlm_nsp"
        length, short = options.max_seq_length, options.short_seq_prob
        return sampling_version.draw_pairs(sections, section_ids, length, short, rng, next_sentence)

    def rows_of(pairs: Pairs) -> np.ndarray:
        if not options.packing:
            return np.arange(len(pairs))
        return pack(pairs.lengths, _predictions(pairs, options), options.row)

    tokens = np.cumsum(sections.sizes(section_ids))
    pairs = draw(section_ids)
    row_of = rows_of(pairs)
    while True:
        rows = int(row_of.max()) + 1
        found = (
            count_sequences_to_keep(pairs, row_of, options, sampling_version)
            if sampling_version.repack_all
            else rows
        )
        if (missing := wanted - found) <= 0:
            return pairs, row_of
        more = draw(
            section_ids[: 1 + int(np.searchsorted(tokens, missing * options.max_seq_length))]
        )
        pairs = Pairs.concatenate([pairs, more])
        row_of = (
            rows_of(pairs)
            if sampling_version.repack_all
            else np.concatenate([row_of, rows + rows_of(more)])
        )


def count_sequences_to_keep(
    pairs: Pairs, row_of: np.ndarray, options: PretrainingOptions, sampling_version: SamplingVersion
) -> int:
    """How many of the rows that `draw_sequences` gives are worth keeping.

    Without packing all are; else as many of the fullest as hold `drawing.full` real pieces on
    average, but no fewer than `MIN_KEPT_FRACTION` of them all.
    """
    padding = options.max_seq_length - np.bincount(row_of, pairs.lengths)
    if not options.packing:
        return len(padding)
    allowed = (
        (1 - sampling_version.target_nonpad_fraction)
        * options.max_seq_length
        * np.arange(1, len(padding) + 1)
    )
    kept = int(np.count_nonzero(np.cumsum(padding) <= allowed))
    return max(kept, math.ceil(MIN_KEPT_FRACTION * len(padding)))


def _predictions(pairs: Pairs, options: PretrainingOptions) -> np.ndarray:
    if options.objective == "clm":
        return pairs.lengths - 1
    text = pairs.a_length + pairs.b_length
    return masking.prediction_counts(
        pairs.lengths, text, options.mlm_probability, options.row.slots
    )


@dataclasses.dataclass(frozen=True)
class PackedPairs:
    """Pairs of one shard that fill R consecutive rows."""

    tokens: np.ndarray  # the shard's
    pairs: Pairs
    row: np.ndarray  # int64 [P], 0 .. R - 1, never falling
    draws: np.ndarray  # float64 [R, options.draws], uniform in [0, 1): decide the masks


def make_batch_arrays(
    parts: Sequence[PackedPairs],
    rows: int,
    options: PretrainingOptions,
    sampling_version: SamplingVersion,
    tokenizer: Tokenizer,
) -> dict[str, np.ndarray]:
    """Lays out and masks the rows of all parts, one after the other: the arrays of `BATCH`.

    Args:
      rows: rows of the arrays; those that the parts leave over are padding.
    """
    batch = options.empty_batch(rows)
    if not parts:
        return batch
    pairs = Pairs.concatenate(part.pairs for part in parts)
    sizes = [len(part.draws) for part in parts]
    row = np.concatenate([part.row for part in parts])
    row += np.repeat(np.cumsum(sizes) - sizes, [len(part.pairs) for part in parts])
    draws = np.concatenate([part.draws for part in parts])
    piece_ends = np.cumsum(pairs.a_length + pairs.b_length)
    part_ends = piece_ends[np.cumsum([len(part.pairs) for part in parts]) - 1]
    sources = np.split(pairs.token_indices, part_ends[:-1])
    text = np.concatenate([part.tokens[at] for part, at in zip(parts, sources, strict=True)])
    cells, segments = write_pairs(text, pairs, row, batch, tokenizer.cls_id, tokenizer.sep_id)

    if options.objective == "clm":
        _fill_next_token_targets(batch)
        return batch
    length, slots, _ = dataclasses.astuple(options.row)
    if options.full_sentences:
        batch["example_ids"] = np.minimum(batch["example_ids"], 1)
        batch["position_ids"] = batch["example_ids"] * np.arange(length, dtype=np.int32)
    starts = masking.word_starts(text, segments, tokenizer.is_continuation)
    counts = _predictions(pairs, options)
    of_pieces = draws[:, :length].reshape(-1)[cells]
    exact = sampling_version.exact_masks
    chosen = masking.choose(options.masking, counts, segments, starts, of_pieces, exact)
    targets = text[chosen].astype(np.int32)
    row, column = np.divmod(cells[chosen], length)
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    of_slots = np.stack([draws[row, length + slot], draws[row, length + slots + slot]])
    random_ids = tokenizer.text_token_ids
    if options.random_tokens == "all":
        random_ids = np.arange(len(tokenizer.tokens))
    batch["input_ids"][row, column] = masking.replace_masked_tokens(
        targets, options.replace_probs, tokenizer.mask_id, random_ids, of_slots
    )
    batch["masked_lm_positions"][row, slot] = column
    batch["masked_lm_ids"][row, slot] = targets
    batch["masked_lm_weights"][row, slot] = 1
    return batch


def _fill_next_token_targets(batch: dict[str, np.ndarray]) -> None:
    """Makes each piece but the last of a segment tell the one that follows."""
    example_ids = batch["example_ids"]
    row, column = np.nonzero(
        (example_ids[:, :-1] > 0) & (example_ids[:, :-1] == example_ids[:, 1:])
    )
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    batch["masked_lm_positions"][row, slot] = column
    batch["masked_lm_ids"][row, slot] = batch["input_ids"][row, column + 1]
    batch["masked_lm_weights"][row, slot] = 1


def render_sequence(batch: dict[str, np.ndarray], row: int, tokenizer: Tokenizer) -> str:
    """One row as text, a line a pair: its NSP label, then its pieces.

    A piece to predict is shown as `⟦piece→what the encoder sees⟧`.
    """
    seen = [tokenizer.tokens[i] for i in batch["input_ids"][row]]
    filled = batch["masked_lm_weights"][row] > 0
    for position, target in zip(
        batch["masked_lm_positions"][row][filled], batch["masked_lm_ids"][row][filled], strict=True
    ):
        seen[position] = f"⟦{tokenizer.tokens[target]}→{seen[position]}⟧"
    example_ids = batch["example_ids"][row]
    lines = []
    for slot in range(example_ids.max()):
        label = ("next", "random")[batch["next_sentence_labels"][row, slot]]
        tokens = " ".join(seen[i] for i in np.flatnonzero(example_ids == slot + 1))
        lines.append(f"{label}: {tokens}" if batch["next_sentence_weights"][row, slot] else tokens)
    return "\n".join(lines)
