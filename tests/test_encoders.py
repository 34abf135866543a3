"""Encoders of one direction, pairs of them, and LSTMs."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from goldens import make_elmo as recipe

from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.encoders import PAIR, LayerMix, make_encoder
from bertjax.model.recurrent.lstm_encoder import CLIP, lstm
from data_pipelines.errors import InputError

LENGTH = 12
BERT = BertConfig(
    vocab_size=40, num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_labels=3,
    max_position_embeddings=LENGTH, initializer_range=0.2,
)  # fmt: skip
PAIRS = [
    dataclasses.replace(BERT, encoder=encoder, direction="pair")
    for encoder in ("transformer", "lstm")
]
LSTM = dataclasses.replace(
    BERT,
    encoder="lstm",
    direction="left_to_right",
    vocab_size=recipe.VOCAB,
    hidden_size=recipe.SIZE,
    intermediate_size=recipe.UNITS,
)
EXAMPLE_IDS = np.array([[1, 1, 1, 2, 2, 2, 2, 3, 3, 0, 0, 0], [1] * LENGTH], np.int32)
STARTS = np.array([[0, 3, 7], [0, 0, 0]], np.int32)  # of the examples


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(recipe.PATH) as arrays:
        return dict(arrays)


def batch() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(1).integers(5, 40, (2, LENGTH)).astype(np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 0, 0], range(LENGTH)], np.int32)
    arrays = dict(zip(ENCODER_INPUTS, (ids, 0 * ids, EXAMPLE_IDS, positions), strict=True))
    return arrays | {"cls_positions": STARTS}


@functools.cache
def program(config: BertConfig, layers: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    """Return a compiled encoder and random parameters."""
    encoder = make_encoder(config, "encoder")
    apply = functools.partial(encoder.apply, deterministic=True, layers=layers)
    inputs = [batch()[name] for name in ENCODER_INPUTS]
    init = jax.jit(functools.partial(encoder.init, deterministic=True))
    return jax.jit(lambda params, *arrays: apply(params, *arrays)), init(jax.random.key(0), *inputs)


def encode(config: BertConfig, arrays: Any, layers: tuple[int, ...] | None = None) -> np.ndarray:
    run, params = program(config, layers)
    return np.asarray(run(params, *(arrays[name] for name in ENCODER_INPUTS)))


def elmo_params() -> dict[str, Any]:
    arrays = recipe.draw()
    blocks = {
        "input": {"kernel": arrays["kernel"], "bias": arrays["bias"]},
        "recurrent": {"kernel": arrays["recurrent"]},
        "projection": {"kernel": arrays["projection"]},
    }
    return {"params": {"embeddings": {"word": arrays["word"]}, "blocks": blocks}}


def elmo_states(direction: str, ids: np.ndarray, example_ids: np.ndarray) -> np.ndarray:
    encoder = make_encoder(dataclasses.replace(LSTM, direction=direction), "encoder")
    inputs = ids, 0 * ids, example_ids, 0 * ids
    return np.asarray(encoder.apply(elmo_params(), *inputs, deterministic=True, layers=[0, 1, 2]))


@pytest.mark.seconds
def test_lstm_and_scalar_mix_equal_those_of_pytorch(golden) -> None:
    ids = recipe.draw()["ids"]
    states = elmo_states("left_to_right", ids, np.ones_like(ids))
    np.testing.assert_allclose(states, golden["states"], atol=1e-5)
    mix = {"weights": jnp.array(recipe.MIX_WEIGHTS), "factor": jnp.float32(recipe.MIX_FACTOR)}
    mixed = LayerMix("sum").apply({"params": mix}, jnp.asarray(states))
    np.testing.assert_allclose(mixed, golden["mix"], atol=1e-5)


def test_lstm_from_right_to_left_reads_the_reversed_tokens(golden) -> None:
    ids = recipe.draw()["ids"][:, ::-1]
    states = elmo_states("right_to_left", ids, np.ones_like(ids))
    np.testing.assert_allclose(states[:, :, ::-1], golden["states"], atol=1e-5)


@pytest.mark.seconds
def test_lstm_sums_gradients_over_the_steps_in_float32() -> None:
    shapes = (1, 256, 8), (8, 64), (8, 64), (64,), (16, 8)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arrays = [jax.random.normal(key, shape) / 3 for key, shape in zip(keys, shapes, strict=True)]
    x, kernel, recurrent, bias, projection = arrays
    starts = jnp.arange(256)[None] == 0

    def gradients(dtype: str) -> Any:
        def loss(recurrent: jax.Array, projection: jax.Array) -> jax.Array:
            outputs = lstm(x.astype(dtype), starts, kernel, recurrent, bias, projection)
            return outputs.astype(jnp.float32).sum()

        return jax.jit(jax.grad(loss, (0, 1)))(recurrent, projection)

    for half, full in zip(gradients("bfloat16"), gradients("float32"), strict=True):
        assert float(jnp.linalg.norm(half - full) / jnp.linalg.norm(full)) < 0.01


def test_lstm_clips_cells_and_projections() -> None:
    # The gates are open and the candidate is 1, so that a cell counts the tokens.
    units, size = 3, 2
    bias = np.repeat([30.0, 30.0, 30.0, 30.0], units)
    zeros = np.zeros((size, 4 * units))
    arrays = (np.zeros((1, 8, size)), np.zeros((1, 8), bool), zeros, zeros, bias)
    projection = np.array([[0.1, 10.0], [0.0, 0.0], [0.0, 0.0]])
    outputs = lstm(*(jnp.asarray(x) for x in (*arrays, projection)))
    cells = np.minimum(np.arange(1, 9), CLIP)
    np.testing.assert_allclose(outputs[0, :, 0], 0.1 * np.tanh(cells), rtol=1e-5)
    np.testing.assert_allclose(outputs[0, :, 1], CLIP, rtol=1e-5)


@pytest.mark.seconds
@pytest.mark.parametrize("config", PAIRS, ids=lambda config: config.encoder)
def test_examples_of_a_packed_sequence_do_not_see_each_other(config) -> None:
    whole, arrays = encode(config, batch()), batch()
    swapped = np.r_[3:7, 0:3, 7:LENGTH]  # the second example first
    for name in ENCODER_INPUTS:
        arrays[name] = arrays[name].copy()
        arrays[name][0] = arrays[name][0, swapped]
    arrays["example_ids"][0, :7] = [1, 1, 1, 1, 2, 2, 2]
    np.testing.assert_allclose(encode(config, arrays)[0], whole[0, swapped], atol=1e-5)


@pytest.mark.seconds
@pytest.mark.parametrize("config", PAIRS, ids=lambda config: config.encoder)
def test_each_encoder_of_a_pair_sees_the_token_and_one_side(config) -> None:
    before, arrays = encode(config, batch(), (0, 1, 2)), batch()
    arrays["input_ids"] = arrays["input_ids"].copy()
    arrays["input_ids"][1, 5] += 1
    changes = np.abs(before - encode(config, arrays, (0, 1, 2)))[:, 1] > 1e-6
    left_to_right, right_to_left = (half.any(axis=-1) for half in np.split(changes, 2, axis=-1))
    for layer in (1, 2):
        assert np.flatnonzero(left_to_right[layer]).tolist() == [*range(5, LENGTH)]
        assert np.flatnonzero(right_to_left[layer]).tolist() == [*range(6)]
    for embeddings in (left_to_right[0], right_to_left[0]):
        assert np.flatnonzero(embeddings).tolist() == [5]


@pytest.mark.seconds
@pytest.mark.parametrize("config", PAIRS, ids=lambda config: config.encoder)
def test_a_pair_is_both_of_its_encoders(config) -> None:
    _, params = program(config)
    hidden = np.split(encode(config, batch()), 2, axis=-1)
    for name, half in zip(PAIR, hidden, strict=True):
        single, _ = program(dataclasses.replace(config, direction=name))
        inputs = [batch()[key] for key in ENCODER_INPUTS]
        alone = single({"params": params["params"][name]}, *inputs)
        np.testing.assert_allclose(half, alone, atol=1e-6)


def logits(config: BertConfig, params: Any, arrays: Any) -> np.ndarray:
    model = BertWithHeads(config, ("sequence_classification",))
    outputs = model.apply({"params": params}, arrays, deterministic=True)
    return np.asarray(outputs["sequence_classification_logits"])


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (0, {}),
        (0, {"feature_layers": "0..-1", "feature_mix": "sum"}),
        (0, {"feature_layers": "0..-1", "feature_mix": "concat"}),
        (1, {"feature_layers": "0..-1", "feature_mix": "concat"}),
        (1, {"bilstm": 8}),
    ],
)
def test_pooled_vectors_of_a_pair_have_read_the_whole_example(kind, fields) -> None:
    config = dataclasses.replace(PAIRS[kind], **fields)
    model = BertWithHeads(config, ("sequence_classification",))
    init = jax.jit(functools.partial(model.init, deterministic=True))
    params = init(jax.random.key(0), batch())["params"]
    before = logits(config, params, batch())
    for position in (0, 3):  # the first and the last token of the second example, in turn
        arrays = batch()
        arrays["input_ids"] = arrays["input_ids"].copy()
        arrays["input_ids"][0, 3 + position] += 1
        changes = np.abs(logits(config, params, arrays) - before).max(axis=-1) > 1e-6
        assert changes[0].tolist() == [False, True, False]
    # Each half of the pooler's input depends on both ends alone.
    kernel = params["pooler"]["transform"]["kernel"]
    for half in np.split(np.arange(len(kernel)), 2):
        pooler = {"transform": params["pooler"]["transform"] | {"kernel": kernel.at[half].set(0)}}
        other = logits(config, params | {"pooler": pooler}, batch())
        arrays = batch()
        arrays["input_ids"] = arrays["input_ids"].copy()
        arrays["input_ids"][0, 4] += 1  # within the example
        changed = logits(config, params | {"pooler": pooler}, arrays)
        assert (np.abs(changed - other).max(axis=-1) > 1e-6)[0].tolist() == [False, True, False]


@pytest.mark.seconds
@pytest.mark.parametrize("is_frozen", [True, False])
def test_freeze_features_decides_whether_the_encoders_learn(is_frozen) -> None:
    config = dataclasses.replace(
        PAIRS[0], feature_layers="0..-1", feature_mix="sum", freeze_features=is_frozen
    )
    model = BertWithHeads(config, ("token_classification",))
    params = model.init(jax.random.key(0), batch(), deterministic=True)["params"]

    def loss(params: Any) -> Any:
        outputs = model.apply(
            {"params": params}, batch(), deterministic=False, rngs={"dropout": jax.random.key(1)}
        )
        return jnp.square(outputs["token_classification_logits"]).sum()

    gradient = jax.grad(loss)(params)
    learns = {
        name: any(jnp.any(leaf) for leaf in jax.tree.leaves(tree))
        for name, tree in gradient["encoder"].items()
    }
    assert learns == dict.fromkeys(PAIR, not is_frozen)
    assert jnp.any(gradient["features"]["weights"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder": "gru"}, "encoder='gru': unknown. Use transformer or lstm"),
        ({"direction": "both"}, "direction='both': unknown. Use bidirectional or left_to_right"),
        ({"encoder": "lstm"}, "direction=bidirectional: an LSTM reads in one direction"),
        ({"encoder": "lstm", "direction": "pair", "remat": True}, "remat=True: an LSTM does not"),
        ({"feature_mix": "sum"}, "feature_mix='sum': there are no layers to combine"),
        ({"sampled_softmax": 40}, "sampled_softmax=40: not below vocab_size=40"),
        ({"decoder": "prefix", "direction": "pair"}, "decoder='prefix': the source is bidirec"),
    ],
)
def test_bert_config_rejects_encoders_that_do_not_exist(fields, message) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(BERT, **fields)
