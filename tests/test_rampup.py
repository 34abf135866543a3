"""Batch size ramp-up."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.rampup import BatchSizeRampup


def test_rampup_of_1_has_one_batch_size() -> None:
    rampup = BatchSizeRampup(32)
    assert rampup.batch_sizes == (32,)
    assert [rampup.batch_size_at(step) for step in (0, 1, 10**9)] == [32] * 3
    assert rampup.sequences_before(10**9) == 32 * 10**9


def test_batch_sizes_double_after_equally_many_steps() -> None:
    rampup = BatchSizeRampup(32, 8, steps=40)
    assert rampup.batch_sizes == (4, 8, 16, 32)
    assert [rampup.batch_size_at(step) for step in (0, 9, 10, 19, 20, 29, 30, 39)] == [
        *(4, 4, 8, 8, 16, 16, 32, 32)
    ]


@given(st.integers(0, 6), st.integers(1, 500))
def test_sequences_before_is_the_sum_of_batch_sizes(power: int, steps: int) -> None:
    rampup = BatchSizeRampup(64, 1 << power, steps)
    sizes = [rampup.batch_size_at(step) for step in range(steps + 3)]
    sums = itertools.accumulate(sizes, initial=0)
    assert [rampup.sequences_before(step) for step in range(steps + 4)] == list(sums)
    assert sizes == sorted(sizes) and rampup.batch_size_at(10**6) == 64
    counts = [sizes[:steps].count(size) for size in rampup.batch_sizes]
    assert max(counts) - min(counts) <= 1
