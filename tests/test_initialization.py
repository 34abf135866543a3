"""Initial values: a truncated normal, or position embeddings and heads that attend locally."""

import functools

import jax
import numpy as np
import pytest

from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.initialization import local_attention_init, sinusoids

SHAPES = [(32, 1), (64, 1), (96, 3), (128, 2), (256, 4), (384, 6), (768, 12), (1024, 16)]
POSITIONS = 512


@pytest.mark.parametrize("size", [7, 64, 128, 768])
def test_sinusoids_have_the_deviation_and_differ_between_positions(size: int) -> None:
    table = np.asarray(sinusoids(0.02)(jax.random.key(0), (POSITIONS, size)))
    assert table.shape == (POSITIONS, size)
    even = table[:, : size // 2 * 2]
    assert np.sqrt(np.square(even).mean(axis=1)) == pytest.approx(0.02, rel=1e-5)
    nearest = np.argsort(-even @ even.T, axis=1)[:, 0]
    np.testing.assert_array_equal(nearest, np.arange(POSITIONS))


@pytest.mark.seconds
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize(("size", "heads"), SHAPES)
def test_local_attention_init_scores_highest_at_the_offset_of_the_head(
    size: int, heads: int, is_reverse: bool
) -> None:
    key = jax.random.key(0)
    positions = np.asarray(sinusoids(1.0)(key, (POSITIONS, size)))
    kernels = (
        np.asarray(
            local_attention_init(1e-9, heads, POSITIONS, query, is_reverse)(key, (size, size))
        )
        for query in (True, False)
    )
    shape = (POSITIONS, heads, size // heads)
    queries, keys = ((positions @ kernel).reshape(shape) for kernel in kernels)
    all_scores = queries.swapaxes(0, 1) @ keys.transpose(1, 2, 0)
    inside = np.arange(20, POSITIONS - 20)
    for head in range(heads):
        target = inside + (head // 2 + 1) * (1 if head % 2 else -1) * (-1 if is_reverse else 1)
        scores = all_scores[head][inside]
        assert (scores.argmax(axis=1) == target).all()
        far = abs(np.arange(POSITIONS) - target[:, None]) > 16
        assert (scores.max(axis=1, where=far, initial=0) < 0.85 * scores.max(axis=1)).all()


@pytest.mark.seconds
def test_attention_init_changes_only_positions_queries_and_keys() -> None:
    """The random numbers are the same, so that all other parameters are equal."""

    def params(attention_init: str) -> dict:
        config = BertConfig(64, 2, 64, 2, max_position_embeddings=32, attention_init=attention_init)
        ids = np.zeros((1, 8), np.int32)
        init = jax.jit(functools.partial(Encoder(config).init, deterministic=True))
        return init(jax.random.key(3), ids, ids, ids, ids)["params"]

    usual, local = params("normal"), params("local")
    changed = {"position", "query", "key"}
    flat = jax.tree_util.tree_flatten_with_path(usual)[0]
    for (path, ours), theirs in zip(flat, jax.tree.leaves(local), strict=True):
        names = {entry.key for entry in path}
        differs = bool(changed & names) and path[-1].key != "bias"
        assert np.array_equal(ours, theirs) != differs
