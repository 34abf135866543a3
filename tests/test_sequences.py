"""What options are refused, and what documents become."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.corpus.shards import Shard
from data_pipelines.errors import InputError
from data_pipelines.pretraining.options import BATCH_ARRAYS, PretrainingOptions
from data_pipelines.pretraining.sections import Sections
from data_pipelines.pretraining.sequences import (
    SAMPLING_VERSIONS,
    PackedPairs,
    count_sequences_to_keep,
    draw_sequences,
    make_batch_arrays,
    render_sequence,
)
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

OLD, NEW = SAMPLING_VERSIONS[1], SAMPLING_VERSIONS[2]
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
TOKENIZER = WordPieceTokenizer(
    SPECIAL_TOKENS + [f"w{i}" for i in range(60)] + [f"##c{i}" for i in range(30)], cased=False
)
CONTINUATION_PREFIX = TOKENIZER.is_continuation


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def make_shard(seed: int = 0, documents: int = 60) -> Shard:
    """Documents of 1 to 12 sentences of 1 to 25 pieces, none of them special."""
    rng = generator(seed)
    counts = 1 + (rng.random(documents) * 12).astype(int)
    sizes = 1 + (rng.random(counts.sum()) * 25).astype(int)
    tokens = (6 + rng.random(sizes.sum()) * 90).astype(np.uint16)
    return Shard(tokens, np.cumsum([0, *sizes]), np.cumsum([0, *counts]))


SHARD = make_shard()
SECTIONS = Sections.from_shard(SHARD, None)
DOCUMENTS = np.arange(60)


def rows_of(
    options: PretrainingOptions, seed: int = 0
) -> tuple[dict[str, np.ndarray], PackedPairs]:
    """All rows of the documents, and what they were made from."""
    pairs, row_of = draw_sequences(SECTIONS, DOCUMENTS, options, NEW, generator(seed))
    order = np.argsort(row_of, kind="stable")
    draws = generator(seed + 1).random((row_of.max() + 1, options.draws))
    part = PackedPairs(SHARD.tokens, pairs.take(order), row_of[order], draws)
    return make_batch_arrays([part], len(draws), options, NEW, TOKENIZER), part


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"max_seq_length": 7}, "max_seq_length=7 is too small; give at least 8"),
        ({"batch_size": 0}, "batch_size=0 is too small"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq=0 is too small; give at least 1"),
        (
            {"max_predictions_per_seq": 65},
            "max_predictions_per_seq=65 is more than the max_seq_length=64",
        ),
        ({"max_examples_per_seq": 0}, "max_examples_per_seq=0 is too small"),
        ({"max_examples_per_seq": 2, "packing": False}, "max_examples_per_seq=2 needs packing"),
        ({"workers": 0}, "workers=0 is too small"),
        ({"dupe_factor": -1}, "dupe_factor=-1 is too small"),
        ({"objective": "nsp"}, "objective='nsp' is unknown; choose one of mlm_nsp, mlm"),
        ({"masking": "whole"}, "masking='whole' is unknown; choose one of piece, word, span"),
        ({"random_tokens": "any"}, "random_tokens='any' is unknown"),
        ({"short_seq_prob": 1.5}, "short_seq_prob=1.5 is no probability"),
        ({"mlm_probability": -0.1}, "mlm_probability=-0.1 is no probability"),
        ({"mlm_probability": float("nan")}, "mlm_probability=nan is no probability"),
        ({"mlm_probability": 0.0}, "mlm_probability=0 leaves nothing to predict"),
        ({"full_sentences": True}, "full_sentences=True is of objective=mlm with packing"),
        ({"mask_replace_prob": 0.7}, "sum to 0.9; make them sum to 1"),
        (
            {"mask_replace_prob": 1.1, "random_replace_prob": -0.2},
            "mask_replace_prob=1.1 is no probability",
        ),
    ],
)
def test_unusable_options_are_refused(field, message):
    with pytest.raises(InputError, match=message) as error:
        PretrainingOptions(**({"max_seq_length": 64, "batch_size": 8} | field))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("max_seq_length", "expected"), [(8, (8, 4, 1)), (64, (64, 12, 4)), (128, (128, 20, 8))]
)
def test_a_row_has_slots_and_pairs_by_its_length(max_seq_length, expected):
    assert dataclasses.astuple(PretrainingOptions(max_seq_length, 8).row) == expected


def test_a_row_of_512_has_the_80_slots_of_the_published_recipes():
    assert PretrainingOptions(512, 8).row.slots == 80


def test_slots_follow_the_masking_probability():
    assert PretrainingOptions(128, 8, mlm_probability=0.3).row.slots == 40
    assert PretrainingOptions(128, 8, mlm_probability=1.0).row.slots == 128


def test_without_packing_a_row_has_one_pair():
    assert PretrainingOptions(512, 8, packing=False).row.pairs == 1


# ---------------------------------------------------------------- drawing


@pytest.mark.parametrize("sampling_version", [OLD, NEW])
@pytest.mark.parametrize("packing", [True, False])
def test_as_many_rows_as_wanted_are_drawn(packing, sampling_version):
    options = PretrainingOptions(64, 8, packing=packing)
    _, row_of = draw_sequences(SECTIONS, DOCUMENTS, options, sampling_version, generator(0))
    natural = int(row_of.max()) + 1
    for wanted in (1, natural, natural + 1, 2 * natural, 5 * natural):
        pairs, row_of = draw_sequences(
            SECTIONS, DOCUMENTS, options, sampling_version, generator(0), wanted
        )
        assert len(set(row_of.tolist())) == row_of.max() + 1 >= wanted
        assert len(pairs) == len(row_of)
        if sampling_version is OLD:
            assert count_sequences_to_keep(pairs, row_of, options, sampling_version) >= wanted


@pytest.mark.parametrize("sampling_version", [OLD, NEW])
def test_a_few_more_rows_take_a_few_more_documents_only(sampling_version):
    options = PretrainingOptions(64, 8)
    pairs, row_of = draw_sequences(SECTIONS, DOCUMENTS, options, sampling_version, generator(0))
    enough = (
        count_sequences_to_keep(pairs, row_of, options, OLD)
        if sampling_version is OLD
        else row_of.max() + 1
    )
    more, row_of_more = draw_sequences(
        SECTIONS, DOCUMENTS, options, sampling_version, generator(0), int(enough) + 2
    )
    assert len(pairs) < len(more) < 1.2 * len(pairs)
    first = slice(len(pairs))
    np.testing.assert_array_equal(more.take(first).a_start, pairs.a_start)
    if sampling_version is NEW:  # what is drawn twice puts nothing off
        np.testing.assert_array_equal(row_of_more[first], row_of)


@pytest.mark.parametrize("sampling_version", [OLD, NEW])
def test_rows_worth_keeping_are_full_on_average(sampling_version):
    sections, options = Sections.from_shard(make_shard(3, 3000), None), PretrainingOptions(128, 8)
    pairs, row_of = draw_sequences(
        sections, np.arange(3000), options, sampling_version, generator(0)
    )
    filled = np.bincount(row_of, pairs.lengths) / 128
    kept = count_sequences_to_keep(pairs, row_of, options, sampling_version)
    assert filled[:kept].mean() >= sampling_version.full or kept == np.ceil(0.9 * len(filled))
    assert filled[: kept + 1].mean() < sampling_version.full or kept == len(filled)


@pytest.mark.parametrize("max_seq_length", [8, 32, 128, 512, 4096])
def test_sections_are_of_many_rows_and_chunks_of_many_sections(max_seq_length):
    section, chunk = NEW.section(max_seq_length), NEW.chunk(max_seq_length)
    assert section >= max(4096, 32 * max_seq_length) and section % max_seq_length == 0
    assert chunk >= max(8 * section, 1024 * max_seq_length)


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_rows_are_full_though_all_text_is_in_them(objective):
    sections = Sections.from_shard(make_shard(3, 3000), None)
    options = PretrainingOptions(128, 8, objective=objective)
    pairs, row_of = draw_sequences(sections, np.arange(3000), options, NEW, generator(0))
    assert np.mean(np.bincount(row_of, pairs.lengths) / 128) > 0.97


def test_without_packing_no_row_is_better_than_another():
    options = PretrainingOptions(64, 8, packing=False)
    pairs, row_of = draw_sequences(SECTIONS, DOCUMENTS, options, NEW, generator(0))
    assert row_of.tolist() == list(range(len(pairs)))
    assert count_sequences_to_keep(pairs, row_of, options, NEW) == len(pairs)


# ---------------------------------------------------------------- masked rows


def restored(batch: dict[str, np.ndarray]) -> np.ndarray:
    """`input_ids` before masking."""
    input_ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    input_ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return input_ids


CASES = st.fixed_dictionaries(
    {
        "max_seq_length": st.sampled_from([8, 33, 64, 128]),
        "packing": st.booleans(),
        "objective": st.sampled_from(["mlm_nsp", "mlm"]),
        "masking": st.sampled_from(["token", "word", "span"]),
        "mlm_probability": st.sampled_from([0.01, 0.15, 0.5, 1.0]),
        "max_predictions_per_seq": st.sampled_from([None, 1, 3, 8]),
        "short_seq_prob": st.sampled_from([0.0, 0.1, 1.0]),
    }
)


@given(CASES, st.integers(0, 2**32))
def test_every_row_is_well_formed(fields, seed):
    options = PretrainingOptions(batch_size=8, **fields)
    batch, part = rows_of(options, seed)
    for name, like in options.empty_batch(len(part.draws)).items():
        assert batch[name].dtype == like.dtype and batch[name].shape == like.shape
    assert list(batch) == list(BATCH_ARRAYS)

    input_ids, real = restored(batch), batch["example_ids"] > 0
    assert not input_ids[~real].any()
    assert np.isin(input_ids[real], [2, 3, *TOKENIZER.text_token_ids]).all()
    assert real.sum() == part.pairs.lengths.sum()
    assert (np.diff(real.astype(int), axis=1) <= 0).all()  # padding stands at the end

    # Exactly n positions in each pair, ascending, none of them special.
    weights, positions = batch["masked_lm_weights"], batch["masked_lm_positions"]
    row, slot = np.nonzero(weights)
    assert np.isin(weights, [0, 1]).all()
    assert (input_ids[row, positions[row, slot]] > 5).all()
    ascending = np.diff(positions, axis=1)[(weights[:, 1:] > 0)]
    assert (ascending > 0).all()
    pack_id = batch["example_ids"][row, positions[row, slot]]
    found = np.zeros((len(weights), options.row.pairs), int)
    np.add.at(found, (row, pack_id - 1), 1)
    found = found[np.arange(options.row.pairs) < np.bincount(part.row)[:, None]]
    special = 3 if options.objective == "mlm_nsp" else 2
    for n, length in zip(found.tolist(), part.pairs.lengths.tolist(), strict=True):
        limit = min(
            options.row.slots, max(1, round(options.mlm_probability * length)), length - special
        )
        assert n == limit


@given(CASES, st.integers(0, 2**32))
def test_a_pair_can_be_read_back_from_its_row(fields, seed):
    options = PretrainingOptions(batch_size=8, **fields)
    batch, part = rows_of(options, seed)
    input_ids = restored(batch)
    slots = np.arange(len(part.row)) - np.searchsorted(part.row, part.row)
    for i in range(0, len(part.pairs), 7):
        row, slot = part.row[i], slots[i]
        here = batch["example_ids"][row] == slot + 1
        a = SHARD.tokens[part.pairs.a_start[i] :][: part.pairs.a_length[i]]
        b = SHARD.tokens[part.pairs.b_start[i] :][: part.pairs.b_length[i]]
        expected = [2, *a, 3, *b, 3] if len(b) else [2, *a, 3]
        assert input_ids[row][here].tolist() == expected
        assert batch["position_ids"][row][here].tolist() == list(range(len(expected)))
        assert batch["token_type_ids"][row][here].sum() == (len(b) + 1 if len(b) else 0)
        assert input_ids[row, batch["cls_positions"][row, slot]] == 2
        assert batch["next_sentence_labels"][row, slot] == part.pairs.is_random[i]
        assert batch["next_sentence_weights"][row, slot] == (options.objective == "mlm_nsp")


def test_across_documents_a_row_is_one_text():
    options = PretrainingOptions(64, 8, objective="mlm")
    apart, part = rows_of(options)
    across = make_batch_arrays(
        [part], len(part.draws), dataclasses.replace(options, full_sentences=True), NEW, TOKENIZER
    )
    assert apart["example_ids"].max() > 1
    real = apart["example_ids"] > 0
    np.testing.assert_array_equal(across["example_ids"], real)
    np.testing.assert_array_equal(across["position_ids"], np.where(real, np.arange(64), 0))
    for name in BATCH_ARRAYS:
        assert across[name].dtype == apart[name].dtype
        if name not in ("example_ids", "position_ids"):
            np.testing.assert_array_equal(across[name], apart[name])


def test_rows_beyond_the_parts_are_padding_of_no_weight():
    options = PretrainingOptions(64, 8)
    batch, part = rows_of(options)
    longer = make_batch_arrays([part], len(part.draws) + 3, options, NEW, TOKENIZER)
    for name, array in batch.items():
        np.testing.assert_array_equal(longer[name][:-3], array)
        assert not longer[name][-3:].any()
    for array in make_batch_arrays([], 4, options, NEW, TOKENIZER).values():
        assert len(array) == 4 and not array.any()


def test_rows_do_not_depend_on_those_beside_them():
    """Any cut of a chunk into parts gives the same rows."""
    options = PretrainingOptions(64, 8)
    whole, part = rows_of(options)
    parts = []
    for first, last in ((0, 1), (1, 6), (6, len(part.draws))):
        at = slice(*np.searchsorted(part.row, (first, last)))
        parts.append(
            PackedPairs(
                part.tokens, part.pairs.take(at), part.row[at] - first, part.draws[first:last]
            )
        )
    cut = make_batch_arrays(parts, len(part.draws), options, NEW, TOKENIZER)
    for name, array in whole.items():
        np.testing.assert_array_equal(cut[name], array, err_msg=name)


def test_whole_words_are_masked_whole():
    batch, _ = rows_of(PretrainingOptions(128, 8, masking="word"))
    input_ids = restored(batch)
    chosen = np.zeros(input_ids.shape, bool)
    row, slot = np.nonzero(batch["masked_lm_weights"])
    chosen[row, batch["masked_lm_positions"][row, slot]] = True
    is_continuation = CONTINUATION_PREFIX[input_ids[:, 1:]]
    after_text = input_ids[:, :-1] > 5
    joined = is_continuation & after_text
    assert joined.any()
    assert (chosen[:, 1:] == chosen[:, :-1])[joined].mean() > 0.99  # none was left that fits


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"mask_replace_prob": 1.0, "keep_share": 0.0, "random_replace_prob": 0.0}, "mask"),
        ({"mask_replace_prob": 0.0, "keep_share": 1.0, "random_replace_prob": 0.0}, "same"),
        ({"mask_replace_prob": 0.0, "keep_share": 0.0, "random_replace_prob": 1.0}, "random"),
    ],
)
def test_a_share_of_one_leaves_nothing_else(fields, allowed):
    batch, _ = rows_of(PretrainingOptions(128, 8, **fields))
    row, slot = np.nonzero(batch["masked_lm_weights"])
    seen = batch["input_ids"][row, batch["masked_lm_positions"][row, slot]]
    targets = batch["masked_lm_ids"][row, slot]
    if allowed == "mask":
        assert (seen == TOKENIZER.mask_id).all()
    elif allowed == "same":
        assert (seen == targets).all()
    else:
        assert set(seen) == set(TOKENIZER.text_token_ids.tolist())
        assert 0 < (seen == targets).mean() < 0.1


def test_which_piece_replaces_another_does_not_depend_on_whether_it_does():
    batches = [rows_of(PretrainingOptions(128, 8), seed)[0] for seed in range(20)]
    seen, targets = (
        np.concatenate([pick(batch) for batch in batches])
        for pick in (
            lambda batch: np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)[
                batch["masked_lm_weights"] > 0
            ],
            lambda batch: batch["masked_lm_ids"][batch["masked_lm_weights"] > 0],
        )
    )
    random = seen[(seen != TOKENIZER.mask_id) & (seen != targets)]
    assert set(random) == set(TOKENIZER.text_token_ids.tolist())


def test_random_pieces_can_come_from_the_whole_vocabulary():
    fields = {
        "mask_replace_prob": 0.0,
        "keep_share": 0.0,
        "random_replace_prob": 1.0,
        "random_tokens": "all",
    }
    batch, _ = rows_of(PretrainingOptions(128, 8, **fields))
    row, slot = np.nonzero(batch["masked_lm_weights"])
    seen = batch["input_ids"][row, batch["masked_lm_positions"][row, slot]]
    assert set(seen) == set(range(len(TOKENIZER.tokens)))


# ---------------------------------------------------------------- reading


def test_a_row_can_be_read():
    options = PretrainingOptions(16, 1, max_examples_per_seq=2, max_predictions_per_seq=2)
    batch = options.empty_batch(1)
    batch["input_ids"][0, :14] = [2, 6, 4, 3, 7, 66, 3, 2, 8, 3, 9, 10, 11, 3]
    batch["example_ids"][0, :14] = [1] * 7 + [2] * 7
    batch["masked_lm_positions"][0] = [2, 11]
    batch["masked_lm_ids"][0] = [12, 10]
    batch["masked_lm_weights"][0] = 1
    batch["next_sentence_labels"][0] = [0, 1]
    batch["next_sentence_weights"][0] = 1
    assert render_sequence(batch, 0, TOKENIZER).split("\n") == [
        "next: [CLS] w0 ⟦w6→[MASK]⟧ [SEP] w1 ##c0 [SEP]",
        "random: [CLS] w2 [SEP] w3 ⟦w4→w4⟧ w5 [SEP]",
    ]
    batch["next_sentence_weights"][0] = 0
    assert render_sequence(batch, 0, TOKENIZER).startswith("[CLS] w0")
    assert render_sequence(options.empty_batch(1), 0, TOKENIZER) == ""
