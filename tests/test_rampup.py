"""Batches that grow."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.rampup import BatchSizeRampup


def test_without_growth_all_steps_are_alike() -> None:
    rampup = BatchSizeRampup(32)
    assert rampup.sizes == (32,)
    assert [rampup.size(step) for step in (0, 1, 10**9)] == [32] * 3
    assert rampup.rows(10**9) == 32 * 10**9


def test_sizes_double_after_as_many_steps_each() -> None:
    rampup = BatchSizeRampup(32, 8, steps=40)
    assert rampup.sizes == (4, 8, 16, 32)
    assert [rampup.size(step) for step in (0, 9, 10, 19, 20, 29, 30, 39)] == [
        *(4, 4, 8, 8, 16, 16, 32, 32)
    ]


@given(st.integers(0, 6), st.integers(1, 500))
def test_rows_are_the_sum_of_sizes(power: int, steps: int) -> None:
    rampup = BatchSizeRampup(64, 1 << power, steps)
    sizes = [rampup.size(step) for step in range(steps + 3)]
    sums = itertools.accumulate(sizes, initial=0)
    assert [rampup.rows(step) for step in range(steps + 4)] == list(sums)
    assert sizes == sorted(sizes) and rampup.size(10**6) == 64
    counts = [sizes[:steps].count(size) for size in rampup.sizes]
    assert max(counts) - min(counts) <= 1
