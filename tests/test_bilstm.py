"""Layers between an encoder and its heads: BiLSTM and layer mix."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bertjax.mesh.device_mesh import BATCH_SPEC, make_mesh
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.encoders import LayerMix
from bertjax.model.recurrent.bilstm import BiLSTM
from data_pipelines.errors import InputError

UNITS, WIDTH = 3, 5


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def params() -> Any:
    x, example_ids = jnp.zeros((1, 4, WIDTH)), jnp.ones((1, 4), jnp.int32)
    return BiLSTM(UNITS).init(jax.random.key(0), x, example_ids)["params"]


def apply(params: Any, x: np.ndarray, example_ids: Any) -> np.ndarray:
    return np.asarray(
        BiLSTM(UNITS).apply({"params": params}, x, jnp.asarray(example_ids, jnp.int32))
    )


def one_way(params: Any, x: np.ndarray) -> np.ndarray:
    """Compute one direction of a layer for a sequence [T, n], in float64, as in textbooks."""
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


@pytest.mark.seconds
def test_bilstm_equals_its_equations(params) -> None:
    x = draw(2, 7, WIDTH)
    outputs = apply(params, x, np.ones((2, 7)))
    expected = np.stack([transcription(params, sequence) for sequence in x])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.seconds
def test_bilstm_separates_packed_examples(params) -> None:
    x = draw(1, 9, WIDTH)
    outputs = apply(params, x, [[1, 1, 1, 2, 2, 2, 2, 0, 0]])
    for part in (slice(0, 3), slice(3, 7)):
        alone = apply(params, x[:, part], np.ones((1, part.stop - part.start)))
        np.testing.assert_allclose(outputs[:, part], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.seconds
def test_bilstm_reduces_gradients_once_and_not_at_each_token(params) -> None:
    mesh = make_mesh(8, 1, 1)
    x, example_ids = (
        jax.device_put(array, NamedSharding(mesh, BATCH_SPEC))
        for array in (draw(8, 7, WIDTH), np.ones((8, 7), np.int32))
    )

    def loss(params: Any) -> jax.Array:
        return (BiLSTM(UNITS).apply({"params": params}, x, example_ids) ** 2).sum()

    with jax.set_mesh(mesh):
        program = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    computations = re.split(r"\n(?=%|ENTRY)", program.as_text() or "")
    loops = {*re.findall(r"body=%?([\w.\-]+)", "".join(computations))}
    reducing = {
        re.split(r"[ (]", text, maxsplit=1)[0] for text in computations if "all-reduce" in text
    }
    assert loops and reducing and not {f"%{name}" for name in loops} & reducing
    value, gradient = program(params)
    expected, expected_gradient = jax.value_and_grad(
        lambda params: (
            BiLSTM(UNITS).apply({"params": params}, draw(8, 7, WIDTH), np.ones((8, 7), np.int32))
            ** 2
        ).sum()
    )(params)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        gradient,
        expected_gradient,
    )


@pytest.mark.seconds
def test_bilstm_in_bfloat16_is_close_to_float32(params) -> None:
    x = draw(1, 6, WIDTH)
    exact = apply(params, x, np.ones((1, 6)))
    outputs = BiLSTM(UNITS).apply(
        {"params": params}, jnp.asarray(x, jnp.bfloat16), jnp.ones((1, 6), jnp.int32)
    )
    assert outputs.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(outputs, np.float32), exact, atol=0.03)


def test_layer_mix_concatenates_or_averages() -> None:
    layers = draw(3, 2, 4, WIDTH)
    beside = LayerMix("concat").apply({}, layers)
    assert beside.shape == (2, 4, 3 * WIDTH)
    np.testing.assert_array_equal(beside[..., WIDTH : 2 * WIDTH], layers[1])
    begun = LayerMix("sum").init(jax.random.key(0), layers)
    np.testing.assert_allclose(LayerMix("sum").apply(begun, layers), layers.mean(0), rtol=1e-5)
    weights = {"weights": jnp.array([0.0, -99.0, -99.0]), "factor": jnp.float32(2)}
    outputs = LayerMix("sum").apply({"params": weights}, layers)
    np.testing.assert_allclose(outputs, 2 * layers[0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["", "-2", "1..-1"])
def test_feature_layers_freeze_the_encoder(spec) -> None:
    config = BertConfig(
        32, 2, 8, 2, max_position_embeddings=16, num_labels=3, feature_layers=spec, bilstm=4
    )
    ids = np.arange(8, dtype=np.int32).reshape(1, 8)
    batch = dict(zip(ENCODER_INPUTS, (ids, 0 * ids, 1 + 0 * ids, ids), strict=True))
    network = BertWithHeads(config, ("token_classification",))
    begin = jax.jit(functools.partial(network.init, deterministic=True))
    params = begin(jax.random.key(0), batch)["params"]

    def loss(params: Any) -> Any:
        rngs = {"dropout": jax.random.key(1)}
        outputs = network.apply({"params": params}, batch, deterministic=False, rngs=rngs)
        return jnp.sum(jnp.square(outputs["token_classification_logits"]))

    gradient = jax.jit(jax.grad(loss))(params)
    learns = {
        part: any(jnp.any(leaf) for leaf in jax.tree.leaves(g)) for part, g in gradient.items()
    }
    assert learns == {"encoder": not spec, "bilstm": True, "token_classification": True}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("last", "feature_layers='last': not a layer or a range"),
        ("-1..-2", "feature_layers='-1..-2': ends below its first layer"),
        ("3", "layer 3: not in a model of 2 layers"),
    ],
)
def test_bert_config_rejects_invalid_feature_layers(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BertConfig(num_hidden_layers=2, feature_layers=spec)
