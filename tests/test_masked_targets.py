"""Masked targets: which tokens are predicted, from what, and that losses are those of a loop."""

import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import toy_tasks
from conftest import TOKENIZER
from generation_batches import SHAPE
from hypothesis import given
from hypothesis import strategies as st

from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training.evaluator import make_evaluator
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.generation.masked_targets import (
    cut_targets,
    mask_last_tokens,
    mask_targets,
)
from data_pipelines.finetuning.packed_examples import build_batch, pack_eval_batches


def make_examples(sizes: list[tuple[int, int]]) -> Examples:
    """Return pairs of random words, with as many tokens of source and target as given."""
    random = np.random.default_rng(len(sizes))
    rows = [
        [
            TOKENIZER.cls_id,
            *random.choice(TOKENIZER.text_token_ids, source),
            TOKENIZER.sep_id,
            *random.choice(TOKENIZER.text_token_ids, target - 1),
            TOKENIZER.sep_id,
        ]
        for source, target in sizes
    ]
    return Examples.from_rows(rows, [source + 2 for source, _ in sizes], {})


def batch_of(examples: Examples, sequences: int = 0) -> dict[str, np.ndarray]:
    (layout,) = pack_eval_batches(examples, SHAPE, 1000)
    return build_batch(examples, layout, sequences or layout.num_sequences, SHAPE)


sizes = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 10)), min_size=1, max_size=12)


@pytest.mark.seconds
@given(sizes, st.floats(0.01, 1), st.integers(0, 1000), st.integers(0, 1000))
def test_a_share_of_each_target_is_predicted_in_its_place(sizes, probability, seed, step) -> None:
    plain = batch_of(make_examples(sizes))
    masked = mask_targets(plain, probability, TOKENIZER, seed, step)
    assert masked.keys() == plain.keys()
    assert all(masked[name].dtype == plain[name].dtype for name in plain)
    rows, slots = np.nonzero(masked["masked_lm_weights"])
    columns = masked["masked_lm_positions"][rows, slots]
    ids = masked["masked_lm_ids"][rows, slots]
    np.testing.assert_array_equal(ids, plain["input_ids"][rows, columns])
    assert len({*zip(rows, columns, strict=True)}) == len(rows)
    assert (plain["token_type_ids"][rows, columns] == 1).all()
    others = np.ones(plain["input_ids"].shape, bool)
    others[rows, columns] = False
    np.testing.assert_array_equal(masked["input_ids"][others], plain["input_ids"][others])
    for name in ("token_type_ids", "example_ids", "position_ids"):
        np.testing.assert_array_equal(masked[name], plain[name])
    keys, counts = np.unique(
        np.stack([rows, plain["example_ids"][rows, columns]]), axis=1, return_counts=True
    )
    for (row, example), count in zip(keys.T, counts, strict=True):
        is_target = (plain["example_ids"][row] == example) & (plain["token_type_ids"][row] == 1)
        assert count == max(1, np.rint(probability * is_target.sum()))
    assert keys.shape[1] == len(sizes)  # no target without a prediction


def test_masking_depends_on_seed_and_step_alone() -> None:
    examples = make_examples([(5, 9)] * 6)
    mask = functools.partial(mask_targets, batch_of(examples), 0.5, TOKENIZER)
    first = mask(1, 2)
    np.testing.assert_equal(mask(1, 2), first)
    padded = mask_targets(batch_of(examples, 16), 0.5, TOKENIZER, 1, 2)
    for name, array in first.items():
        np.testing.assert_array_equal(padded[name][: len(array)], array)
    for seed, step in ((1, 3), (2, 2), (2, 1)):
        assert (mask(seed, step)["input_ids"] != first["input_ids"]).any()


def test_masked_tokens_are_replaced_as_in_bert() -> None:
    batch = batch_of(make_examples([(3, 10)] * 500))
    masked = mask_targets(batch, 1.0, TOKENIZER, 0, 0)
    is_target = batch["token_type_ids"] == 1
    ids, inputs = batch["input_ids"][is_target], masked["input_ids"][is_target]
    np.testing.assert_array_equal(masked["masked_lm_weights"].sum(), len(ids))
    assert (inputs == TOKENIZER.mask_id).mean() == pytest.approx(0.8, abs=0.02)
    assert (inputs == ids).mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.seconds
@given(sizes)
def test_cut_targets_end_with_the_token_to_predict(sizes) -> None:
    examples = make_examples(sizes)
    cut, weights = cut_targets(examples)
    assert weights.tolist() == [target for _, target in sizes]
    for start, cut_start, length in zip(examples.starts, cut.starts, cut.lengths, strict=True):
        whole = examples.ids[start : start + length]
        np.testing.assert_array_equal(cut.ids[cut_start : cut_start + length], whole)
    assert (cut.lengths > cut.prefix_lengths).all() and (cut.lengths <= examples.lengths).all()
    (layout,) = pack_eval_batches(cut, SHAPE, 1000)
    plain = build_batch(cut, layout, layout.num_sequences, SHAPE)
    batch = mask_last_tokens(plain, layout, cut, weights, TOKENIZER.mask_id)
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, slots]
    assert len(rows) == len(sizes) == (batch["input_ids"] == TOKENIZER.mask_id).sum()
    assert (batch["input_ids"][rows, columns] == TOKENIZER.mask_id).all()
    np.testing.assert_array_equal(
        batch["masked_lm_ids"][rows, slots], plain["input_ids"][rows, columns]
    )
    assert batch["masked_lm_weights"].sum() == sum(target for _, target in sizes)


@pytest.mark.parametrize("length", [1, 2, 7, 48])
def test_cut_targets_cover_all_places_evenly(length: int) -> None:
    examples = make_examples([(1, length)] * (50 * length))
    cut, _ = cut_targets(examples)
    counts = np.bincount(cut.lengths - cut.prefix_lengths - 1, minlength=length)
    assert len(counts) == length and abs(counts - 50).max() <= 2


@pytest.mark.seconds
def test_evaluation_estimates_the_loss_of_all_tokens(tmp_path: pathlib.Path) -> None:
    """The loss of many copies of a pair is the mean of the losses of a loop over its target."""
    toy_tasks.TOKENIZER.save(tmp_path)
    pairs = [{"source": "ba me ra", "target": "do lu ki ba si"}] * 300
    for name in ("pairs.jsonl", "pairs-dev.jsonl"):
        (tmp_path / name).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    fields: dict[str, Any] = {"model__decoder": "masked_prefix", "model__initializer_range": 0.5}
    config = toy_tasks.configuration("generation", tmp_path, **fields)
    task = registry.find_task(config.task)(config)
    functions = StepFunctions(config, task.objective)
    params = jax.jit(task.objective.init_params)(jax.random.key(0))
    params["mlm"]["bias"] = params["mlm"]["bias"].at[toy_tasks.TOKENIZER.sep_id].set(3.0)
    apply = jax.jit(lambda params, batch: task.objective.apply(params, batch, None, {}))
    tokenizer, losses = toy_tasks.TOKENIZER, []
    source = [tokenizer.cls_id, *tokenizer.encode("ba me ra"), tokenizer.sep_id]
    target = [*tokenizer.encode("do lu ki ba si"), tokenizer.sep_id]
    for place, token in enumerate(target):
        ids = [*source, *target[:place], tokenizer.mask_id]
        length = task.config.max_seq_length
        batch = {name: np.zeros((1, length), np.int32) for name in ("input_ids", "position_ids")}
        batch["input_ids"][0, : len(ids)] = ids
        batch["position_ids"][0, : len(ids)] = range(len(ids))
        batch["example_ids"] = (np.arange(length) < len(ids))[None].astype(np.int32)
        is_target = batch["example_ids"] * (np.arange(length) >= len(source))
        batch["token_type_ids"] = is_target.astype(np.int32)
        batch["masked_lm_positions"] = np.full((1, 12), len(ids) - 1, np.int32)
        logits = apply(params, batch)["mlm_logits"][0, 0]
        losses.append(-float(jax.nn.log_softmax(logits)[token]))
    placed = jax.device_put(params, jax.tree.map(lambda x: x.sharding, functions.param_shapes))
    evaluation = make_evaluator(task, functions)([placed])
    assert evaluation is not None
    assert np.ptp(losses) > 0.5
    assert evaluation.scores["mlm_loss"] == pytest.approx(np.mean(losses), rel=0.02)
