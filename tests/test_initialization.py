"""What parameters begin as: a cut normal, or heads that look a few pieces to one side."""

import functools

import jax
import numpy as np
import pytest

from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.initialization import neighbours, normal, sinusoids

SHAPES = [(32, 1), (64, 1), (96, 3), (128, 2), (256, 4), (384, 6), (768, 12), (1024, 16)]
POSITIONS = 512


def test_what_is_drawn_is_a_normal_cut_at_two_deviations() -> None:
    drawn = np.asarray(normal(0.05)(jax.random.key(0), (400, 500)))
    assert abs(drawn).max() <= 0.1
    assert drawn.std() == pytest.approx(0.05 * 0.8796, rel=0.01)


@pytest.mark.parametrize("size", [7, 64, 128, 768])
def test_positions_are_waves_of_the_given_deviation(size: int) -> None:
    table = np.asarray(sinusoids(0.02)(jax.random.key(0), (POSITIONS, size)))
    assert table.shape == (POSITIONS, size)
    even = table[:, : size // 2 * 2]
    assert np.sqrt(np.square(even).mean(axis=1)) == pytest.approx(0.02, rel=1e-5)
    nearest = np.argsort(-even @ even.T, axis=1)[:, 0]
    np.testing.assert_array_equal(nearest, np.arange(POSITIONS))


@pytest.mark.parametrize(("size", "heads"), SHAPES)
def test_each_head_scores_highest_the_piece_so_far_to_its_side(size: int, heads: int) -> None:
    key = jax.random.key(0)
    places = np.asarray(sinusoids(1.0)(key, (POSITIONS, size)))
    queries, keys = (
        (places @ np.asarray(neighbours(1e-9, heads, POSITIONS, aside)(key, (size, size))))
        .reshape(POSITIONS, heads, size // heads)
        .swapaxes(0, 1)
        for aside in (True, False)
    )
    scores = queries @ keys.swapaxes(1, 2)
    inside = np.arange(20, POSITIONS - 20)
    for head in range(heads):
        place = inside + (head // 2 + 1) * (1 if head % 2 else -1)
        own = scores[head][inside]
        assert (own.argmax(axis=1) == place).all()
        far = abs(np.arange(POSITIONS) - place[:, None]) > 16
        assert (own.max(axis=1, where=far, initial=0) < 0.85 * own.max(axis=1)).all()


def test_all_else_begins_as_usual() -> None:
    """The random numbers are the same ones, so that nothing else differs."""

    def params(initialization: str) -> dict:
        config = BertConfig(64, 2, 64, 2, max_position_embeddings=32, initialization=initialization)
        ids = np.zeros((1, 8), np.int32)
        begin = jax.jit(functools.partial(Encoder(config).init, deterministic=True))
        return begin(jax.random.key(3), ids, ids, ids, ids)["params"]

    usual, begun = params("normal"), params("neighbours")
    changed = {"position", "query", "key"}
    flat = jax.tree_util.tree_flatten_with_path(usual)[0]
    for (path, ours), theirs in zip(flat, jax.tree.leaves(begun), strict=True):
        names = {entry.key for entry in path}
        differs = bool(changed & names) and path[-1].key != "bias"
        assert np.array_equal(ours, theirs) != differs
