"""Tests of the mixture of corpora."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.errors import InputError
from data_pipelines.pretraining.mixture import BLOCK, Mixture, mixture_proportions

SIZES = [12_500_000, 900_000, 570_000, 90_000]  # tokens, of English, Korean, Chinese, Vietnamese


def test_mixture_proportions_follow_the_formula() -> None:
    powers = np.array(SIZES) ** 0.7
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.7), powers / powers.sum())
    np.testing.assert_allclose(mixture_proportions(SIZES, 1.0), np.array(SIZES) / sum(SIZES))
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.0), 0.25)
    np.testing.assert_allclose(mixture_proportions(SIZES, 0.7, "4+3+2+1"), [0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("sampling_alpha", "weights", "message"),
    [
        (1.5, "", r"sampling_alpha=1\.5: not in \[0, 1\]\. Use 1"),
        (float("nan"), "", r"sampling_alpha=nan: not in \[0, 1\]"),
        (1.0, "1+2", r"^mixture_weights=1\+2: 2 weights for 4 corpora\. Give one per corpus"),
        (1.0, "1+2+3+x", r"^mixture_weights=1\+2\+3\+x: not numbers\. Write them as 3\+1"),
        (1.0, "1+2+3+0", "not all positive and finite"),
        (1.0, "1+2+3+nan", "not all positive and finite"),
    ],
)
def test_mixture_proportions_reject_invalid_values(sampling_alpha, weights, message) -> None:
    with pytest.raises(InputError, match=message):
        mixture_proportions(SIZES, sampling_alpha, weights)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200), st.floats(0, 1))
def test_mixture_block_has_whole_sequences_of_every_corpus(
    sizes: list[int], sampling_alpha: float
) -> None:
    proportions = mixture_proportions(sizes, sampling_alpha)
    counts = Mixture(proportions, seed=0, max_streams=1).sequences_per_block
    assert counts.sum() == BLOCK and counts.min() >= 1
    if proportions.min() * BLOCK >= 1:
        assert np.abs(counts - proportions * BLOCK).max() <= 1


@given(st.integers(0, 10**9), st.integers(0, 3 * BLOCK), st.integers(0, 3 * BLOCK))
def test_mixture_counts_add_up(start: int, first: int, second: int) -> None:
    mixture = Mixture(mixture_proportions(SIZES, 0.7), seed=3, max_streams=4)
    before, within = mixture.count_by_corpus(2, start, first)
    assert before.sum() == start and within.sum() == first
    after, more = mixture.count_by_corpus(2, start + first, second)
    np.testing.assert_array_equal(after, before + within)
    np.testing.assert_array_equal(
        mixture.count_by_corpus(2, start, first + second)[1], within + more
    )


def test_mixture_proportions_hold_within_a_million_sequences() -> None:
    expected = mixture_proportions(SIZES, 0.7)
    mixture = Mixture(expected, seed=0, max_streams=16)
    counted = sum(mixture.count_by_corpus(stream, 0, 1_000_000 // 16)[1] for stream in range(16))
    assert np.abs(counted / 1_000_000 - expected).max() < 0.0005


def test_mixture_order_depends_on_stream_and_seed() -> None:
    def first_corpora(seed: int, stream: int) -> list[int]:
        mixture = Mixture(mixture_proportions(SIZES, 0.7), seed, max_streams=1)
        return [int(mixture.count_by_corpus(stream, i, 1)[1].argmax()) for i in range(100)]

    assert first_corpora(0, 0) == first_corpora(0, 0)
    assert first_corpora(0, 0) != first_corpora(0, 1) != first_corpora(1, 1)
