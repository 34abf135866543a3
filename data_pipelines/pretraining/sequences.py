"""Documents to sequences: drawing, packing and masking of pairs, as pure functions.

`streams` and `corpus_sequences` decide which documents come when.

Best fit finds no partner for every pair of medium length, so some sequences are not full. An epoch
therefore has a fixed number of sequences: as many of the fullest as have `TARGET_NONPAD_FRACTION`
on average, and `EXTRA_FRACTION` more. The text of the others, at most about a hundredth, is drawn
anew in the next epoch, into other pairs. Texts that cannot be cut otherwise, such as short
documents, would be left out again: which sequences are kept is therefore drawn, too.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data_pipelines.corpus.shards import Shard
from data_pipelines.pretraining import masking
from data_pipelines.pretraining.options import CLM_OBJECTIVES, PretrainingOptions
from data_pipelines.pretraining.packing import pack, write_pairs
from data_pipelines.pretraining.pairs import Pairs, draw_pairs, stored_pairs
from data_pipelines.pretraining.sections import Sections
from data_pipelines.vocabulary.tokenization import Tokenizer

# The values of these constants and functions determine the batches of every corpus.
TARGET_NONPAD_FRACTION = 0.965  # average of the sequences that are kept
MIN_KEPT_FRACTION = 0.9  # of the packed sequences; if fewer are so full, all are kept
EXTRA_FRACTION = 0.01  # more sequences per epoch than its text is expected to fill


def max_section_tokens(max_seq_length: int) -> int:
    """Return the section length, about: many sequences, since a true B ends with its section."""
    return max(1 << 12, 32 * max_seq_length)


def chunk_tokens(max_seq_length: int) -> int:
    """Return the tokens that are drawn and packed together, about.

    Larger chunks pack better and mix documents more, but take longer.
    """
    return max(1 << 15, 1024 * max_seq_length)


def draw_sequences(
    sections: Sections,
    section_ids: np.ndarray,
    options: PretrainingOptions,
    rng: np.random.Generator,
    min_sequences: int = 0,
) -> tuple[Pairs, np.ndarray]:
    """Draw the pairs of sections and assign them to sequences.

    With packing, sequences are numbered from the fullest to the emptiest, else in the order drawn.
    If they are fewer than `min_sequences`, the first sections are drawn again, as many as needed;
    their sequences follow.

    Args:
      sections: the sections of a shard.
      section_ids: int [W].
      options: the options of the batches.
      rng: source of randomness.
      min_sequences: lower bound of the number of sequences.

    Returns:
      P pairs, and the sequence of each pair, int64 [P].
    """

    def draw(section_ids: np.ndarray) -> tuple[Pairs, np.ndarray]:
        next_sentence = options.objective == "mlm_nsp"
        length, short = options.max_seq_length, options.short_seq_prob
        if sections.are_pairs:
            pairs = stored_pairs(sections, section_ids)
        else:
            pairs = draw_pairs(sections, section_ids, length, short, rng, next_sentence)
        if not options.packing:
            return pairs, np.arange(len(pairs))
        # The largest masking rate of the run: sequences do not depend on the step.
        counts = _prediction_counts(pairs, options, max(options.mlm_probabilities))
        return pairs, pack(pairs.lengths, counts, options.sequence_limits)

    tokens = np.cumsum(sections.sizes(section_ids))
    pairs, sequence_of_pair = draw(section_ids)
    while (missing := min_sequences - (count := int(sequence_of_pair.max()) + 1)) > 0:
        end = 1 + int(np.searchsorted(tokens, missing * options.max_seq_length))
        more_pairs, sequence_of_more = draw(section_ids[:end])
        pairs = Pairs.concatenate([pairs, more_pairs])
        sequence_of_pair = np.concatenate([sequence_of_pair, count + sequence_of_more])
    return pairs, sequence_of_pair


def count_sequences_to_keep(
    pairs: Pairs, sequence_of_pair: np.ndarray, options: PretrainingOptions
) -> int:
    """Return the number of sequences of `draw_sequences` that an epoch keeps.

    With packing the fullest ones have `TARGET_NONPAD_FRACTION` on average. If they are fewer than
    `MIN_KEPT_FRACTION`, leaving the others out would waste text and gain little: every sequence is
    kept, as it is without packing.
    """
    padding = _padding(pairs, sequence_of_pair, options)
    if not options.packing:
        return len(padding)
    max_padding = (
        (1 - TARGET_NONPAD_FRACTION) * options.max_seq_length * np.arange(1, len(padding) + 1)
    )
    kept = int(np.count_nonzero(np.cumsum(padding) <= max_padding))
    return kept if kept >= MIN_KEPT_FRACTION * len(padding) else len(padding)


def choose_sequences(
    pairs: Pairs,
    sequence_of_pair: np.ndarray,
    num_sequences: int,
    options: PretrainingOptions,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return which sequences an epoch keeps, int64 [num_sequences], ascending.

    With packing, the emptier a sequence, the likelier it is left out, but none for certain.

    Args:
      pairs: P pairs.
      sequence_of_pair: their sequences, as of `draw_sequences`, at least `num_sequences`.
      num_sequences: number of the sequences to keep.
      options: the options of the batches.
      rng: source of randomness.
    """
    if not options.packing:
        return np.arange(num_sequences)
    padding = _padding(pairs, sequence_of_pair, options)
    draws = np.sqrt(1 + padding) * rng.random(len(padding))
    return np.sort(np.argsort(draws, kind="stable")[:num_sequences])


def _padding(pairs: Pairs, sequence_of_pair: np.ndarray, options: PretrainingOptions) -> np.ndarray:
    """Return the padding of each sequence, float64 [S]."""
    return options.max_seq_length - np.bincount(sequence_of_pair, pairs.lengths)


def _prediction_counts(
    pairs: Pairs, options: PretrainingOptions, mlm_probability: float
) -> np.ndarray:
    """Return the number of predictions of each pair, int64 [P]."""
    if options.objective in CLM_OBJECTIVES:
        return pairs.lengths - 1
    return masking.prediction_counts(
        pairs.lengths,
        pairs.a_length + pairs.b_length,
        mlm_probability,
        options.sequence_limits.predictions,
    )


@dataclasses.dataclass(frozen=True)
class PackedPairs:
    """P pairs of one shard that fill S consecutive sequences."""

    shard: Shard
    pairs: Pairs
    sequence: np.ndarray  # int64 [P], 0 .. S - 1, never decreasing
    draws: np.ndarray  # float64 [S, options.draws_per_sequence], uniform in [0, 1), for the masks


def make_batch_arrays(
    parts: Sequence[PackedPairs],
    num_sequences: int,
    options: PretrainingOptions,
    tokenizer: Tokenizer,
    progress: float = 0.0,
) -> dict[str, np.ndarray]:
    """Write and mask the sequences of all parts, in order.

    Args:
      parts: packed pairs, at most `num_sequences` sequences.
      num_sequences: sequences of the batch; padding fills the last ones.
      options: the options of the batches.
      tokenizer: the tokenizer of the corpus.
      progress: part of the run that is over, on which the masking rate depends.

    Returns:
      The arrays of `options.BATCH_ARRAYS`.
    """
    batch = options.empty_batch(num_sequences)
    if not parts:
        return batch
    pairs = Pairs.concatenate(part.pairs for part in parts)
    sizes = [len(part.draws) for part in parts]
    sequence_of_pair = np.concatenate([part.sequence for part in parts])
    sequence_of_pair += np.repeat(np.cumsum(sizes) - sizes, [len(part.pairs) for part in parts])
    draws = np.concatenate([part.draws for part in parts])
    token_ends = np.cumsum(pairs.a_length + pairs.b_length)
    part_ends = token_ends[np.cumsum([len(part.pairs) for part in parts]) - 1]
    indices = np.split(pairs.token_indices, part_ends[:-1])
    text = np.concatenate(
        [part.shard.tokens[index] for part, index in zip(parts, indices, strict=True)]
    )
    cells, segments = write_pairs(
        text, pairs, sequence_of_pair, batch, tokenizer.cls_id, tokenizer.sep_id
    )

    if options.objective in CLM_OBJECTIVES:
        _fill_neighbor_targets(batch, is_reverse=options.objective == "clm_reverse")
        return batch
    limits = options.sequence_limits
    length, predictions = limits.tokens, limits.predictions
    if options.full_sentences:
        batch["example_ids"] = np.minimum(batch["example_ids"], 1)
        batch["position_ids"] = batch["example_ids"] * np.arange(length, dtype=np.int32)
    starts = masking.word_starts(text, segments, tokenizer.is_continuation)
    first, last = options.mlm_probabilities
    counts = _prediction_counts(pairs, options, first + (last - first) * progress)
    token_draws = draws[:, :length].reshape(-1)[cells]
    entities = None
    if options.masking == "entity":
        spans = (part.shard.spans for part in parts)
        entities = np.concatenate([*map(masking.entity_numbers, indices, spans)])
    chosen = masking.choose_masked_tokens(
        options.masking, counts, segments, starts, token_draws, entities
    )
    token_ids = text[chosen].astype(np.int32)
    sequence, column = np.divmod(cells[chosen], length)
    slot = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    slot_draws = np.stack(
        [draws[sequence, length + slot], draws[sequence, length + predictions + slot]]
    )
    random_ids = tokenizer.text_token_ids
    if options.random_tokens == "all":
        random_ids = np.arange(len(tokenizer.tokens))
    batch["input_ids"][sequence, column] = masking.replace_masked_tokens(
        token_ids,
        options.mask_replace_prob,
        options.random_replace_prob,
        tokenizer.mask_id,
        random_ids,
        slot_draws,
    )
    batch["masked_lm_positions"][sequence, slot] = column
    batch["masked_lm_ids"][sequence, slot] = token_ids
    batch["masked_lm_weights"][sequence, slot] = 1
    return batch


def _fill_neighbor_targets(batch: dict[str, np.ndarray], is_reverse: bool) -> None:
    """Let each token of an example, except the last, predict the next token.

    In reverse each token except the first predicts the token before.
    """
    example_ids = batch["example_ids"]
    sequence, column = np.nonzero(
        (example_ids[:, :-1] > 0) & (example_ids[:, :-1] == example_ids[:, 1:])
    )
    slot = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    batch["masked_lm_positions"][sequence, slot] = column + is_reverse
    batch["masked_lm_ids"][sequence, slot] = batch["input_ids"][sequence, column + 1 - is_reverse]
    batch["masked_lm_weights"][sequence, slot] = 1


def render_sequence(batch: dict[str, np.ndarray], index: int, tokenizer: Tokenizer) -> str:
    """Return sequence `index` of a batch as text: one line per pair, its NSP label and its tokens.

    A token to predict appears as `⟦token→input of the encoder⟧`.
    """
    tokens = [tokenizer.tokens[i] for i in batch["input_ids"][index]]
    filled = batch["masked_lm_weights"][index] > 0
    positions = batch["masked_lm_positions"][index][filled]
    token_ids = batch["masked_lm_ids"][index][filled]
    for position, token_id in zip(positions, token_ids, strict=True):
        tokens[position] = f"⟦{tokenizer.tokens[token_id]}→{tokens[position]}⟧"
    example_ids = batch["example_ids"][index]
    lines = []
    for slot in range(example_ids.max()):
        label = ("next", "random")[batch["next_sentence_labels"][index, slot]]
        line = " ".join(tokens[i] for i in np.flatnonzero(example_ids == slot + 1))
        lines.append(f"{label}: {line}" if batch["next_sentence_weights"][index, slot] else line)
    return "\n".join(lines)
