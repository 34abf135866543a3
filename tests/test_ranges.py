"""Runs of consecutive integers."""

import numpy as np

from data_pipelines.ranges import concatenate_ranges


def test_concatenate_ranges_returns_every_range_in_order() -> None:
    ranges = concatenate_ranges(np.array([5, 0, 9]), np.array([2, 0, 3]))
    assert ranges.tolist() == [5, 6, 9, 10, 11]


def test_concatenate_ranges_of_no_ranges_is_empty() -> None:
    assert concatenate_ranges(np.array([], int), np.array([], int)).tolist() == []
