"""Layers equal their formulas, and their explicit gradients the derived ones."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model import layers
from bertjax.model.layers import add_bias, embedding_lookup, gelu, layer_norm


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return 2 * jax.random.normal(jax.random.key(seed), shape) + 0.5


def assert_same_gradients(function, formula, *inputs) -> None:
    """Check the outputs, and the gradients of a weighted sum of them to every input."""
    out = formula(*inputs)
    np.testing.assert_allclose(function(*inputs), out, rtol=1e-5, atol=1e-5)
    weights = draw(*out.shape, seed=9)
    ours, derived = (
        jax.grad(lambda xs, f=f: (f(*xs) * weights).sum())(inputs) for f in (function, formula)
    )
    for a, b in zip(ours, derived, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_gelu_equals_its_formula() -> None:
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    expected = [float(v) * 0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(gelu(x), expected, atol=1e-6)


@pytest.mark.seconds
def test_gelu_gradient_equals_derived() -> None:
    assert_same_gradients(gelu, lambda x: 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))), draw(999))


def test_gelu_keeps_the_dtype() -> None:
    value, gradient = jax.value_and_grad(lambda x: gelu(x).sum())(jnp.ones(4, jnp.bfloat16))
    assert value.dtype == gradient.dtype == jnp.bfloat16


@pytest.mark.slow
def test_layer_norm_and_gradient_equal_formula() -> None:
    def formula(x, scale, bias):
        deviation = x - x.mean(-1, keepdims=True)
        return deviation / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3) * scale + bias

    inputs = draw(3, 5, 16), draw(16, seed=1), draw(16, seed=2)
    assert_same_gradients(lambda *xs: layer_norm(*xs, 1e-3), formula, *inputs)


@pytest.mark.seconds
def test_layer_norm_computes_bfloat16_statistics_in_float32() -> None:
    x = (30 + draw(4, 512)).astype(jnp.bfloat16)  # a mean of three digits would lose most of them
    out = layer_norm(x, jnp.ones(512), jnp.zeros(512), 1e-12)
    assert out.dtype == jnp.float32
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(out, exact, atol=1e-3)


@pytest.mark.seconds
@pytest.mark.parametrize("tpu", [False, True])
@pytest.mark.parametrize("shape", [(7, 16), (2, 7, 16)])
def test_add_bias_gradient_is_a_sum_on_any_device(shape, tpu: bool, monkeypatch) -> None:
    monkeypatch.setattr(layers, "tpu_kind", lambda: "TPU v5 lite" if tpu else "")
    assert_same_gradients(add_bias, lambda x, bias: x + bias, draw(*shape), draw(16, seed=1))


@pytest.mark.seconds
def test_add_bias_sums_bfloat16_gradients_in_float32(monkeypatch) -> None:
    monkeypatch.setattr(layers, "tpu_kind", lambda: "TPU v5 lite")
    gradient = (1 + draw(4096, 8)).astype(jnp.bfloat16)
    _, back = jax.vjp(add_bias, jnp.zeros_like(gradient), jnp.zeros(8, jnp.bfloat16))
    exact = np.asarray(gradient, np.float64).sum(0)
    np.testing.assert_allclose(np.asarray(back(gradient)[1], np.float64), exact, rtol=4e-3)


@pytest.mark.slow
def test_layer_norm_gradient_in_bfloat16_is_close_to_float32() -> None:
    inputs = draw(8, 32), draw(32, seed=1), draw(32, seed=2)

    def loss(x, scale, bias):
        return (layer_norm(gelu(x), scale, bias, 1e-12) * draw(8, 32, seed=3)).sum()

    half = jax.grad(loss)(inputs[0].astype(jnp.bfloat16), *inputs[1:])
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        half.astype(jnp.float32), jax.grad(loss)(*inputs), rtol=2**-7, atol=0.05
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embedding_lookup_gradient_counts_frequent_tokens(dtype: str) -> None:
    table, ids = jnp.ones((3, 4), dtype), jnp.full((4096,), 1)
    gradient = jax.grad(lambda table: embedding_lookup(table, ids).astype(jnp.float32).sum())(table)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient, [[0] * 4, [4096] * 4, [0] * 4])
