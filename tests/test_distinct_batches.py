"""Batches of tuples of texts: no text twice, the same for any process, each example once."""

import itertools

import numpy as np
import pytest
from conftest import TOKENIZER
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.distinct_batches import (
    SLOTS,
    TupleBatches,
    find_text_ids,
    plan_distinct_batches,
)
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.training_batches import process_batch

SHAPE = PackedShape(tokens=32, examples=4)


def encode(rows: list[tuple[str, ...]]) -> Examples:
    ids = [
        [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
        for row in rows
        for text in row
    ]
    targets = {SLOTS: Target("example", np.zeros(len(ids), np.int32))}
    sizes = np.full(len(rows), len(rows[0]), np.int64)
    return Examples.from_rows(ids, [len(row) for row in ids], targets, sizes)


def draw_rows(count: int, num_texts: int = 2, seed: int = 0) -> list[tuple[str, ...]]:
    """Return examples of which many share a text."""
    random = np.random.default_rng(seed)
    words = ["ba", "do", "ki", "lu", "me"]
    return [
        tuple(" ".join(random.choice(words, random.integers(1, 4))) for _ in range(num_texts))
        for _ in range(count)
    ]


def texts_in(batch: dict[str, np.ndarray]) -> dict[int, tuple[int, ...]]:
    """Return the token ids of each text of a batch by its slot."""
    return {
        int(batch[SLOTS][row, slot]): tuple(
            batch["input_ids"][row][batch["example_ids"][row] == slot + 1].tolist()
        )
        for row, slot in np.argwhere(batch[f"{SLOTS}_weights"] > 0)
    }


@given(st.integers(0, 100), st.integers(2, 6), st.integers(1, 3))
@settings(max_examples=50)
def test_plan_has_no_text_twice_in_a_batch_and_no_example_twice(
    seed, batch_size, num_texts
) -> None:
    random = np.random.default_rng(seed)
    text_ids = random.integers(1, 30, (60, num_texts))
    order = random.permutation(60)
    plan = plan_distinct_batches(text_ids, order, batch_size)
    assert plan.shape[1] == batch_size and len(np.unique(plan)) == plan.size
    for rows in plan:
        for first, second in itertools.combinations(rows, 2):
            assert not {*text_ids[first]} & {*text_ids[second]}


def test_plan_keeps_the_order_of_examples_without_common_texts() -> None:
    text_ids, order = np.arange(1, 41).reshape(20, 2), np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(plan_distinct_batches(text_ids, order, 5).reshape(-1), order)


def test_plan_puts_a_frequent_text_into_each_batch() -> None:
    # One text is in every fourth example: batches of four have it once each.
    text_ids = np.arange(1, 81).reshape(40, 2)
    text_ids[::4, 0] = 1000
    plan = plan_distinct_batches(text_ids, np.random.default_rng(0).permutation(40), 4)
    assert sum(int(row % 4 == 0) for row in plan.reshape(-1)) >= len(plan) - 1 >= 8


@pytest.mark.parametrize(
    ("rows", "batch_size", "message"),
    [
        ([("ba", "ba")] * 20, 4, "batch_size=4: only 1 of the 20 training .* Use at most 1."),
        (
            [("ba", f"ba{' do' * i}") for i in range(20)], 2,
            "batch_size=2: only 1 of the 20 training",
        ),
        (draw_rows(9), 10, "batch_size=10: more than the 9 training examples. Use at most"),
    ],
)  # fmt: skip
def test_batches_reject_what_has_no_full_batch(rows, batch_size: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        TupleBatches(True, encode(rows), 0, batch_size, SHAPE, 3, 1)


@pytest.mark.parametrize("num_texts", [2, 3])
def test_batch_has_each_text_of_its_examples_in_its_slot(num_texts: int) -> None:
    rows = draw_rows(80, num_texts)
    examples = encode(rows)
    batches = TupleBatches(True, examples, 0, 6, SHAPE, 20, 4)
    assert batches.num_sequences % 4 == 0
    ids = np.split(examples.ids, examples.starts[1:])
    for step in range(20):
        chosen = batches.rows(step)
        texts = texts_in(batches.batch(step))
        assert texts.keys() == set(range(6 * num_texts))
        for slot, text in texts.items():
            example, column = divmod(slot, num_texts)
            assert text == tuple(ids[chosen[example] * num_texts + column].tolist())
        by_example = [{texts[num_texts * i + j] for j in range(num_texts)} for i in range(6)]
        assert sum(map(len, by_example)) == len(set.union(*by_example))


def test_batches_depend_on_seed_epoch_and_step_alone() -> None:
    examples = encode(draw_rows(50))
    whole = TupleBatches(True, examples, 3, 4, SHAPE, 40, 1)
    steps = [whole.rows(step).tolist() for step in range(40)]
    resumed = TupleBatches(True, examples, 3, 4, SHAPE, 1, 1)
    for step in (39, 17, 0, 40):
        assert resumed.rows(step).tolist() == whole.rows(step).tolist()
    assert len({tuple(rows) for rows in steps}) == 40
    other = TupleBatches(True, examples, 4, 4, SHAPE, 1, 1)
    assert other.rows(0).tolist() != steps[0]


def test_processes_share_the_batch_of_one() -> None:
    batches = TupleBatches(True, encode(draw_rows(50)), 0, 6, SHAPE, 5, 4)
    for step in range(5):
        batch = batches.batch(step)
        parts = [process_batch(batch, 4, process) for process in range(4)]
        for name, array in batch.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_scored_batches_may_repeat_texts_and_use_each_example_once_an_epoch() -> None:
    batches = TupleBatches(False, encode([("ba", "do")] * 21), 0, 5, SHAPE, 8, 1)
    for first in (0, 4):
        rows = [row for step in range(first, first + 4) for row in batches.rows(step)]
        assert len({*rows}) == 20


@pytest.mark.parametrize(("repeated", "is_said"), [(12, True), (2, False)])
def test_examples_that_repeated_texts_leave_out_are_said(
    repeated: int, is_said: bool, caplog
) -> None:
    rows = [("ba", f"do {'ki ' * i}") for i in range(repeated)]
    rows += [(f"lu {'me ' * i}", f"me {'lu ' * i}") for i in range(14)]
    TupleBatches(True, encode(rows), 0, 4, SHAPE, 8, 1)
    assert ("batch_size=4: an epoch leaves out" in caplog.text) == is_said


def test_text_ids_are_those_of_the_tokens() -> None:
    ids = find_text_ids(encode([("ba do", "BA  Do"), ("ba", "do")]))
    assert ids.tolist() == [1, 1, 2, 3]
