"""Of several corpora each has its share of the rows, exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.pretraining.mixture import BLOCK, Mixture, mixture_proportions

SIZES = [12_500_000, 900_000, 570_000, 90_000]  # tokens, of English, Korean, Chinese, Vietnamese


def test_shares_are_those_of_the_formula() -> None:
    powers = np.array(SIZES) ** 0.7
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.7), powers / powers.sum())
    np.testing.assert_allclose(mixture_proportions(SIZES, 1.0), np.array(SIZES) / sum(SIZES))
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.0), 0.25)
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.7, "4+3+2+1"), [0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("sampling_alpha", "weights", "complaint"),
    [
        (1.5, "", r"smoothing=1\.5 is no exponent; give one from 0"),
        (float("nan"), "", "smoothing=nan is no exponent"),
        (1.0, "1+2", r"weights=1\+2 are 2 for 4 corpora; give one for each"),
        (1.0, "1+2+3+x", r"weights=1\+2\+3\+x are no numbers; write them as 3\+1"),
        (1.0, "1+2+3+0", "are not all above 0"),
        (1.0, "1+2+3+nan", "are not all above 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(sampling_alpha, weights, complaint) -> None:
    with pytest.raises(InputError, match=complaint):
        mixture_proportions(SIZES, sampling_alpha, weights)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0, 1))
def test_a_block_has_whole_rows_of_every_corpus(sizes: list[int], sampling_alpha: float) -> None:
    given_ = mixture_proportions(sizes, sampling_alpha)
    rows = Mixture(given_, seed=0, max_streams=1).rows
    assert rows.sum() == BLOCK and rows.min() >= 1
    if given_.min() * BLOCK >= 1:
        assert np.abs(rows - given_ * BLOCK).max() <= 1


@given(st.integers(0, 10**9), st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK))
def test_counts_go_on_from_one_another(start: int, first: int, second: int) -> None:
    mixture = Mixture(mixture_proportions(SIZES, 0.7), seed=3, max_streams=4)
    before, within = mixture.count(2, start, first)
    assert before.sum() == start and within.sum() == first
    after, more = mixture.count(2, start + first, second)
    np.testing.assert_array_equal(after, before + within)
    np.testing.assert_array_equal(mixture.count(2, start, first + second)[1], within + more)


def test_rows_of_a_million_are_within_a_fifth_of_a_point() -> None:
    expected = mixture_proportions(SIZES, 0.7)
    mixture = Mixture(expected, seed=0, max_streams=16)
    counted = sum(mixture.count(stream, 0, 1_000_000 // 16)[1] for stream in range(16))
    assert np.abs(counted / 1_000_000 - expected).max() < 0.0005


def test_streams_and_seeds_have_orders_of_their_own() -> None:
    def first_rows(seed: int, stream: int) -> list[int]:
        mixture = Mixture(mixture_proportions(SIZES, 0.7), seed, max_streams=1)
        return [int(mixture.count(stream, row, 1)[1].argmax()) for row in range(100)]

    assert first_rows(0, 0) == first_rows(0, 0)
    assert first_rows(0, 0) != first_rows(0, 1) != first_rows(1, 1)
