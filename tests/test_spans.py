"""Windows share rows, and no row, step or host loses or changes one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.model import losses
from bertjax.model.encoder import BertConfig
from bertjax.model.heads import SpanModel
from data_pipelines.finetuning.rows import (
    WINDOWS,
    TrainingBatches,
    evaluation_rows,
    fill,
    own_rows,
    place,
    split_logits,
)
from data_pipelines.finetuning.windows import Windows

SEQ_LEN = 32


def draw_windows(count: int, seed: int = 0) -> Windows:
    """Windows of random pieces; half of them hold an answer."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, SEQ_LEN + 1, count)
    prefix = random.integers(3, 5, count)
    targets = np.zeros((count, 2), np.int32)
    for number in range(0, count, 2):
        first = random.integers(prefix[number], lengths[number])
        targets[number] = first, random.integers(first, lengths[number])
    ids = random.integers(5, 100, lengths.sum()).astype(np.int32)
    return Windows(ids, lengths, prefix, np.arange(count), np.zeros(count, int), targets, 0)


def windows_in(*batches: dict[str, np.ndarray]) -> list[tuple]:
    """What is in batches: of each window its pieces, types, and answer."""
    found = []
    places = [(batch, *at) for batch in batches for at in np.argwhere(batch["span_weights"] > 0)]
    for batch, row, slot in places:
        cells = np.flatnonzero(batch["pack_ids"][row] == slot + 1)
        assert (np.diff(cells) == 1).all()
        assert batch["positions"][row, cells].tolist() == list(range(len(cells)))
        targets = batch["span_targets"][row, slot] - cells[0]
        ids, types = (batch[name][row, cells].tolist() for name in ("token_ids", "type_ids"))
        found.append((tuple(ids), tuple(types), *targets.tolist()))
    return sorted(found)


def listed(windows: Windows, numbers) -> list[tuple]:
    ends = np.cumsum(windows.lengths)
    found = []
    for number in numbers:
        length, prefix = int(windows.lengths[number]), int(windows.prefix[number])
        ids = windows.ids[ends[number] - length : ends[number]].tolist()
        types = [0] * prefix + [1] * (length - prefix)
        found.append((tuple(ids), tuple(types), *windows.targets[number].tolist()))
    return sorted(found)


@settings(deadline=None)
@given(count=st.integers(1, 80), seed=st.integers(0, 99))
def test_rows_hold_every_window_once(count: int, seed: int) -> None:
    windows = draw_windows(count, seed)
    rows = place(windows, np.arange(count), SEQ_LEN)
    batch = fill(windows, rows, rows.count + 2, SEQ_LEN)
    assert windows_in(batch) == listed(windows, range(count))
    assert (batch["span_weights"].sum(1) <= WINDOWS).all()
    assert not batch["pack_ids"][rows.count :].any()
    assert rows.count >= windows.lengths.sum() / SEQ_LEN


def test_each_epoch_has_every_window_once_in_another_order() -> None:
    windows = draw_windows(40)
    batches = TrainingBatches(windows, 0, 8, SEQ_LEN, steps=10, multiple=4)
    assert batches.rows % 4 == 0
    epochs = [[batches.batch(5 * epoch + i) for i in range(5)] for epoch in (0, 1)]
    for epoch in epochs:
        assert windows_in(*epoch) == listed(windows, range(40))
    assert windows_in(epochs[0][0]) != windows_in(epochs[1][0])


def test_steps_are_about_as_full_as_each_other() -> None:
    windows = draw_windows(1000)
    batches = TrainingBatches(windows, 0, 16, SEQ_LEN, steps=120, multiple=1)
    mean = windows.lengths.mean() * 16 / SEQ_LEN
    pieces = [np.count_nonzero(batches.batch(step)["pack_ids"]) for step in range(120)]
    assert np.ptp(pieces) < 0.2 * mean * SEQ_LEN
    assert batches.rows < 1.2 * mean + 1


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    windows = draw_windows(50)
    first, again, other = (
        TrainingBatches(windows, seed, 8, SEQ_LEN, steps=20, multiple=1) for seed in (0, 0, 1)
    )
    late = first.batch(19)
    first.batch(0)
    for name, array in again.batch(19).items():
        np.testing.assert_array_equal(array, late[name])
    assert windows_in(other.batch(19)) != windows_in(late)


def test_a_step_may_end_one_epoch_and_begin_the_next() -> None:
    windows = draw_windows(5)
    batches = TrainingBatches(windows, 0, 8, SEQ_LEN, steps=5, multiple=1)
    seen = windows_in(*(batches.batch(step) for step in range(5)))
    assert seen == sorted(8 * listed(windows, range(5)))


def test_hosts_share_the_rows_of_a_batch() -> None:
    windows = draw_windows(50)
    batches = TrainingBatches(windows, 0, 16, SEQ_LEN, steps=3, multiple=4)
    whole = batches.batch(1)
    parts = [own_rows(whole, 4, host) for host in range(4)]
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_evaluation_reads_every_window_once_and_finds_its_logits(rows: int) -> None:
    windows = draw_windows(40)
    placed = evaluation_rows(windows, SEQ_LEN, rows)
    batches = [fill(windows, each, rows, SEQ_LEN) for each in placed]
    assert windows_in(*batches) == listed(windows, range(40))
    logits = [np.stack([batch["token_ids"], batch["positions"]], -1) for batch in batches]
    ends = np.cumsum(windows.lengths)
    for number, found in enumerate(split_logits(windows, placed, logits)):
        length = windows.lengths[number]
        assert found[:, 0].tolist() == windows.ids[ends[number] - length : ends[number]].tolist()
        assert found[:, 1].tolist() == list(range(length))


def test_sharing_a_row_changes_neither_logits_nor_loss() -> None:
    config = BertConfig(100, 2, 64, 2, max_positions=SEQ_LEN)
    windows, model = draw_windows(12), SpanModel(config)
    init, apply = (
        jax.jit(functools.partial(function, deterministic=True))
        for function in (model.init, model.apply)
    )
    packed = [evaluation_rows(windows, SEQ_LEN, 6)]
    lone = [[place(windows, np.array([number]), SEQ_LEN)] for number in range(12)]
    params = None
    results = []
    for way in (packed, lone):
        sums, logits = [], []
        for rows in way:
            for each in rows:
                batch = jax.tree.map(jnp.asarray, fill(windows, each, 6, SEQ_LEN))
                if params is None:
                    params = init(jax.random.key(0), batch)
                out = apply(params, batch)
                sums.append(losses.spans(out, batch))
                logits.append(np.asarray(out))
        total = jax.tree.map(lambda *leaves: float(sum(leaves)), *sums)
        flat = [each for rows in way for each in rows]
        results.append((total, split_logits(windows, flat, logits)))
    (first, ours), (second, theirs) = results
    assert first["span_loss"] == pytest.approx(second["span_loss"], rel=1e-5)
    assert first["start_accuracy"] == second["start_accuracy"]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
