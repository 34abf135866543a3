"""Training batches: every example once an epoch, whatever the steps and processes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_example_cases import SHAPE, draw_examples, examples_in, list_examples, packed_shapes

from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.training_batches import TrainingBatches, process_batch


@pytest.mark.seconds
@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    batch_size=st.integers(1, 12),
    shape=packed_shapes,
    pad_to_multiple_of=st.integers(1, 4),
)
def test_training_batches_have_every_example_once_an_epoch(
    count: int, seed: int, batch_size: int, shape: PackedShape, pad_to_multiple_of: int
) -> None:
    """A step may end one epoch and begin the next: `batch_size` epochs are `count` steps."""
    examples = draw_examples(count, seed)
    batches = TrainingBatches(examples, seed, batch_size, shape, count, pad_to_multiple_of)
    assert batches.num_sequences % pad_to_multiple_of == 0
    listed = examples_in(examples, *(batches.batch(step) for step in range(count)))
    assert listed == sorted(batch_size * list_examples(examples, range(count)))


def test_training_batches_differ_between_epochs() -> None:
    examples = draw_examples(40)
    batches = TrainingBatches(examples, 0, 8, SHAPE, steps=10, pad_to_multiple_of=1)
    first, second = (examples_in(examples, batches.batch(step)) for step in (0, 5))
    assert first != second


def test_training_batches_have_similar_numbers_of_tokens() -> None:
    examples = draw_examples(1000)
    batches = TrainingBatches(examples, 0, 16, SHAPE, steps=120, pad_to_multiple_of=1)
    mean = examples.lengths.mean() * 16 / SHAPE.tokens
    tokens = [np.count_nonzero(batches.batch(step)["example_ids"]) for step in range(120)]
    assert np.ptp(tokens) < 0.2 * mean * SHAPE.tokens
    assert batches.num_sequences < 1.2 * mean + 1


def test_training_batch_depends_on_seed_and_step_alone() -> None:
    """More devices only append sequences of padding."""
    examples = draw_examples(50)
    first, again, other = (
        TrainingBatches(examples, seed, 8, SHAPE, steps=20, pad_to_multiple_of=pad_to_multiple_of)
        for seed, pad_to_multiple_of in ((0, 1), (0, 16), (1, 1))
    )
    late = first.batch(19)
    first.batch(0)
    for name, array in again.batch(19).items():
        np.testing.assert_array_equal(array[: first.num_sequences], late[name])
        assert not array[first.num_sequences :].any()
    assert examples_in(examples, other.batch(19)) != examples_in(examples, late)


@pytest.mark.seconds
@settings(deadline=None)
@given(count=st.integers(1, 40), shape=packed_shapes, num_processes=st.integers(1, 8))
def test_process_batches_are_the_parts_of_a_batch(
    count: int, shape: PackedShape, num_processes: int
) -> None:
    whole = TrainingBatches(
        draw_examples(count), 0, 16, shape, steps=3, pad_to_multiple_of=num_processes
    ).batch(1)
    parts = [process_batch(whole, num_processes, process) for process in range(num_processes)]
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
