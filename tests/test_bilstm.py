"""The BiLSTM on top of an encoder."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.bilstm import BiLSTM

UNITS, WIDTH = 3, 5


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def params() -> Any:
    x, packs = jnp.zeros((1, 4, WIDTH)), jnp.ones((1, 4), jnp.int32)
    return BiLSTM(UNITS).init(jax.random.key(0), x, packs)["params"]


def apply(params: Any, x: np.ndarray, pack_ids: Any) -> np.ndarray:
    return np.asarray(BiLSTM(UNITS).apply({"params": params}, x, jnp.asarray(pack_ids, jnp.int32)))


def one_way(params: Any, x: np.ndarray) -> np.ndarray:
    """One direction of a layer on one sequence [T, n], in float64 and as books write it."""
    w, u, b = (np.asarray(params[n], np.float64) for n in ("kernel", "recurrent", "bias"))
    h = c = np.zeros(UNITS)
    outputs = []
    for now in x.astype(np.float64):
        i, f, o, g = np.split(now @ w + h @ u + b, 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


def transcription(params: Any, x: np.ndarray) -> np.ndarray:
    for layer in range(2):
        ahead = one_way(params[f"forward_{layer}"], x)
        back = one_way(params[f"backward_{layer}"], x[::-1])[::-1]
        x = np.concatenate([ahead, back], axis=-1)
    return x


def test_it_computes_what_its_equations_say(params) -> None:
    x = draw(2, 7, WIDTH)
    found = apply(params, x, np.ones((2, 7)))
    expected = np.stack([transcription(params, each) for each in x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_examples_of_a_row_are_as_if_alone(params) -> None:
    x = draw(1, 9, WIDTH)
    found = apply(params, x, [[1, 1, 1, 2, 2, 2, 2, 0, 0]])
    for part in (slice(0, 3), slice(3, 7)):
        alone = apply(params, x[:, part], np.ones((1, part.stop - part.start)))
        np.testing.assert_allclose(found[:, part], alone, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_it_keeps_its_dtype_and_about_its_values(params) -> None:
    x = draw(1, 6, WIDTH)
    exact = apply(params, x, np.ones((1, 6)))
    found = BiLSTM(UNITS).apply(
        {"params": params}, jnp.asarray(x, jnp.bfloat16), jnp.ones((1, 6), jnp.int32)
    )
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float32), exact, atol=0.03)
