"""Dropout keeps expectations and depends only on its key and the element."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p

from bertjax.model.dropout import byte_threshold, dropout, keep_mask, threefry_words


@pytest.mark.seconds
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_mean(rate):
    dropped = np.asarray(dropout(jnp.ones((64, 128, 64)), rate, jax.random.key(1)))
    assert abs(byte_threshold(rate) / 256 - rate) <= 1 / 512
    rate = byte_threshold(rate) / 256
    share = 5 * np.sqrt(rate * (1 - rate) / dropped.size)  # five standard deviations
    assert abs((dropped == 0).mean() - rate) < share
    assert abs(dropped.mean() - 1) < share / (1 - rate)
    assert len(np.unique(dropped)) == 2


@pytest.mark.seconds
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dropout_is_independent_between_elements(axis, step):
    kept = np.asarray(dropout(jnp.ones((64, 64, 64)), 0.5, jax.random.key(2))) > 0
    apart = np.moveaxis(kept, axis, 0)
    correlation = np.corrcoef(apart[step:].ravel(), apart[:-step].ravel())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(apart[step:].size)


@pytest.mark.seconds
def test_dropout_is_independent_between_keys():
    x = jnp.ones((512, 256))
    first, other = (np.asarray(dropout(x, 0.5, jax.random.key(seed))) for seed in (0, 1))
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(x.size)


@pytest.mark.seconds
@pytest.mark.parametrize("axes", [("rows",), (None, "rows"), (None, None, "rows")])
def test_dropout_does_not_depend_on_the_mesh(axes):
    x = jnp.ones((16, 8, 24))
    mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
    spread = jax.jit(
        lambda x: dropout(x, 0.5, jax.random.key(7)), in_shardings=sharding, out_shardings=sharding
    )
    np.testing.assert_array_equal(spread(x), dropout(x, 0.5, jax.random.key(7)))
    # No device draws the bits of others.
    words = re.findall(r"u32\[([\d,]+)\]", spread.lower(x).compile().as_text())
    assert max(math.prod(map(int, shape.split(","))) for shape in words) <= x.size // mesh.size


@pytest.mark.seconds
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (1, 4, 3), (2, 7, 2), (2, 1, 3, 4)])
def test_dropout_takes_any_shape(shape):
    x = jnp.ones(shape)
    dropped = dropout(x, 0.5, jax.random.key(0))
    assert dropped.shape == x.shape and set(np.unique(dropped)) <= {0, 2}


@pytest.mark.seconds
def test_dropout_follows_its_key():
    x = jnp.ones((8, 8))
    first, same, other = (dropout(x, 0.5, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (np.asarray(first) != np.asarray(other)).any()
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


@pytest.mark.seconds
def test_dropout_gradient_has_the_same_mask():
    def total(x):
        return (dropout(x, 0.25, jax.random.key(3)) * 2).sum()

    gradient = np.asarray(jax.grad(total)(jnp.ones((16, 16))))
    kept = np.asarray(dropout(jnp.ones((16, 16)), 0.25, jax.random.key(3)))
    np.testing.assert_allclose(gradient, 2 * kept)


def test_dropout_keeps_the_dtype():
    assert dropout(jnp.ones((4, 4), jnp.bfloat16), 0.1, jax.random.key(0)).dtype == jnp.bfloat16


def test_threefry_words_with_all_rounds_equal_jax(monkeypatch):
    monkeypatch.setattr("bertjax.model.dropout._ROUND_GROUPS", 5)
    seeds, row, place = np.random.default_rng(0).integers(2**32, size=(3, 2, 50), dtype=np.uint32)
    for ours in (threefry_words, jax.jit(threefry_words)):
        words = ours(seeds[:, 0], *map(jnp.asarray, (row[0], place[0])))
        theirs = threefry2x32_p.bind(
            *(jnp.full(50, seed) for seed in seeds[:, 0]), row[0], place[0]
        )
        np.testing.assert_array_equal(words, theirs)


FLIPS = [
    *((np.uint32(1 << bit), np.uint32(0)) for bit in range(8)),
    *((np.uint32(0), np.uint32(1 << bit)) for bit in range(22)),
]


def set_bits(words: tuple[jax.Array, ...]) -> np.ndarray:
    """Return each bit of both words, bool [64, ...]."""
    return np.concatenate(
        [np.asarray(word)[None] >> np.arange(32, dtype=np.uint32)[:, None] & 1 for word in words]
    ).astype(bool)


@pytest.mark.slow
def test_threefry_words_have_the_avalanche_property():
    random = np.random.default_rng(0)
    for seeds in random.integers(2**32, size=(4, 2), dtype=np.uint32):
        row = random.integers(2**8, size=2**14, dtype=np.uint32)
        place = random.integers(2**22, size=2**14, dtype=np.uint32)
        before = set_bits(threefry_words(seeds, row, place))
        for flip_sequence, flip_element in FLIPS:
            flipped = row ^ flip_sequence, place ^ flip_element
            after = set_bits(threefry_words(seeds, *flipped))
            shares = (before != after).mean(axis=1)
            assert abs(shares - 0.5).max() < 6 * 0.5 / np.sqrt(len(row))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2, 4, 16, 64, 128, 512, 4096, 16384])
def test_threefry_words_are_independent_at_any_distance(lag):
    place = jnp.arange(2**21, dtype=jnp.uint32)
    for word in threefry_words(np.array([7, 11], np.uint32), jnp.uint32(5), place):
        for shift in (0, 8, 16, 24):
            byte = np.asarray(word) >> shift & 0xFF
            pairs = (byte[lag:] >> 4) * 16 + (byte[:-lag] >> 4)
            expected = len(pairs) / 256
            excess = ((np.bincount(pairs, minlength=256) - expected) ** 2 / expected).sum() - 255
            assert abs(excess) < 6 * np.sqrt(2 * 255)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (2, 7, 2), (2, 3, 8, 5)])
def test_keep_mask_transposed_equals_transposition(shape):
    start = (jnp.int32(3), jnp.int32(2))[: len(shape) - 2]
    usual, transposed = (
        keep_mask(jnp.array([1, 2], jnp.uint32), 128, shape, start, transposed)
        for transposed in (False, True)
    )
    np.testing.assert_array_equal(usual, transposed.swapaxes(-1, -2))
