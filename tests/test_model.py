"""The encoder: its initial parameters and invariances."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_programs import matrix_flops

from bertjax.mesh.sharding import named_leaves
from bertjax.model import encoder
from bertjax.model.bert_config import BertConfig, hidden_state_indices
from bertjax.model.encoder import Encoder, FeedForward
from bertjax.model.head_positions import encode_at_positions, num_last_block_positions
from bertjax.model.layers import gather

CONFIG = BertConfig(
    vocab_size=120,
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=40,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LENGTH = 16


def inputs(length: int = LENGTH, rows: int = 2) -> tuple[np.ndarray, ...]:
    """Return input_ids, token_type_ids, example_ids and position_ids of full sequences."""
    random = np.random.default_rng(0)
    input_ids = random.integers(5, CONFIG.vocab_size, (rows, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    token_type_ids = (positions >= length // 2).astype(np.int32)
    return input_ids, token_type_ids, np.ones_like(input_ids), positions


def draw_key(seed: int) -> jax.Array:
    """Return a key of the generator that compiles fastest."""
    return jax.random.key(seed, impl="rbg")


@functools.cache
def params(config: BertConfig = CONFIG) -> Any:
    return jax.jit(functools.partial(Encoder(config).init, deterministic=True))(
        draw_key(0), *inputs()
    )


def first_blocks(count: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[:count], params()["params"]["blocks"])


@functools.cache
def program(config: BertConfig, deterministic: bool) -> Any:
    return jax.jit(functools.partial(Encoder(config).apply, deterministic=deterministic))


def encode(config: BertConfig, *arrays: np.ndarray, key: jax.Array | None = None) -> np.ndarray:
    """Return the vectors of `config` with the parameters of CONFIG."""
    rngs = None if key is None else {"dropout": key}
    hidden = program(config, key is None)(params(), *arrays, rngs=rngs)
    return np.asarray(hidden.astype(jnp.float32))


def with_(**fields: Any) -> BertConfig:
    return dataclasses.replace(CONFIG, **fields)


# Shape


@pytest.mark.slow
def test_encoder_param_tree():
    assert {name: leaf.shape for name, leaf in named_leaves(params()["params"])} == {
        "embeddings/word": (120, 32),
        "embeddings/type": (2, 32),
        "embeddings/position": (40, 32),
        "embeddings/norm/scale": (32,),
        "embeddings/norm/bias": (32,),
        "blocks/attention/query/kernel": (2, 32, 32),
        "blocks/attention/query/bias": (2, 32),
        "blocks/attention/key/kernel": (2, 32, 32),
        "blocks/attention/key/bias": (2, 32),
        "blocks/attention/value/kernel": (2, 32, 32),
        "blocks/attention/value/bias": (2, 32),
        "blocks/attention/output/kernel": (2, 32, 32),
        "blocks/attention/output/bias": (2, 32),
        "blocks/attention_norm/scale": (2, 32),
        "blocks/attention_norm/bias": (2, 32),
        "blocks/feed_forward/up/kernel": (2, 32, 96),
        "blocks/feed_forward/up/bias": (2, 96),
        "blocks/feed_forward/down/kernel": (2, 96, 32),
        "blocks/feed_forward/down/bias": (2, 32),
        "blocks/feed_forward_norm/scale": (2, 32),
        "blocks/feed_forward_norm/bias": (2, 32),
    }


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"scan_layers": True, "remat": True}, {"dtype": "bfloat16"}])
def test_encoder_init_does_not_depend_on_how_it_is_computed(fields):
    other = params(with_(**fields))
    jax.tree.map(np.testing.assert_array_equal, params(), other)
    assert {leaf.dtype for leaf in jax.tree.leaves(other)} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_encoder_init_is_a_truncated_normal_zeros_and_ones():
    config = with_(vocab_size=2000, hidden_size=256)
    # The deviation of a standard normal truncated at two; tf.truncated_normal has it too.
    tail = 2 * math.exp(-2) / math.sqrt(2 * math.pi)
    cut = math.sqrt(1 - 2 * tail / math.erf(math.sqrt(2)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params(config)):
        name = path[-1].key
        if name in ("bias", "scale"):
            np.testing.assert_array_equal(leaf, float(name == "scale"))
        else:
            assert np.abs(leaf).max() <= 0.04
            assert abs(leaf.mean()) < 5 * 0.02 / math.sqrt(leaf.size)
            assert abs(leaf.std() / (0.02 * cut) - 1) < 5 / math.sqrt(2 * leaf.size)


@pytest.mark.seconds
def test_encoder_init_differs_between_layers():
    kernels = params()["params"]["blocks"]["attention"]["query"]["kernel"]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == CONFIG.num_hidden_layers


# Invariance


@pytest.mark.seconds
def test_encoder_scanned_equals_unrolled():
    looped = encode(with_(scan_layers=True), *inputs())
    np.testing.assert_allclose(looped, encode(CONFIG, *inputs()), atol=1e-5)


@pytest.mark.slow
def test_encoder_gradients_do_not_depend_on_scan_and_remat():
    def total(params, config):
        hidden = Encoder(config).apply(
            params, *inputs(), deterministic=False, rngs={"dropout": draw_key(5)}
        )
        return (hidden**2 * jnp.arange(CONFIG.hidden_size)).mean()

    gradient = jax.jit(jax.grad(total), static_argnums=1)
    config = with_(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    plain = gradient(params(), config)
    other = gradient(params(), dataclasses.replace(config, scan_layers=True, remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, other)


@pytest.mark.seconds
@pytest.mark.parametrize("scan_layers", [False, True])
def test_feed_forward_on_a_gpu_keeps_one_array_of_its_width(scan_layers, monkeypatch):
    module = FeedForward(with_(scan_layers=scan_layers))
    x = np.random.default_rng(0).normal(size=(2, LENGTH, CONFIG.hidden_size)).astype(np.float32)

    def compute():
        """Return parameters, vectors and gradients, and the number of wide arrays kept."""
        params = module.init(draw_key(0), x)
        y, backward = jax.vjp(module.apply, params, x)
        width = CONFIG.feed_forward_size
        wide = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (2, LENGTH, width)]
        return (params, y, backward(jnp.cos(y))), len(wide)

    expected, kept_elsewhere = compute()
    monkeypatch.setattr(encoder, "gpu_kind", lambda: "NVIDIA H200")
    computed, kept = compute()
    assert (kept_elsewhere, kept) == (2, 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), expected, computed)


@pytest.mark.slow
def test_encoder_of_packed_pairs_equals_pairs_alone():
    input_ids, token_type_ids, example_ids, positions = inputs()
    first, second = np.s_[:1, :9], np.s_[:1, 9:]
    example_ids, positions = example_ids.copy(), positions.copy()
    example_ids[second], positions[second] = 2, np.arange(LENGTH - 9)
    together = encode(CONFIG, *(x[:1] for x in (input_ids, token_type_ids, example_ids, positions)))
    for part in (first, second):
        alone = encode(
            CONFIG, *(x[part] for x in (input_ids, token_type_ids, example_ids, positions))
        )
        np.testing.assert_allclose(together[part], alone, atol=1e-5)


def test_encoder_ignores_padding():
    padded = [np.pad(array, ((0, 0), (0, 20))) for array in inputs()]
    hidden = encode(CONFIG, *padded)
    assert np.isfinite(hidden).all()
    np.testing.assert_allclose(hidden[:, :LENGTH], encode(CONFIG, *inputs()), atol=1e-5)


def test_encoder_separates_sequences():
    alone = encode(CONFIG, *(array[1:] for array in inputs()))
    np.testing.assert_allclose(encode(CONFIG, *inputs())[1:], alone, atol=1e-6)


def changed_at(position: int) -> tuple[np.ndarray, ...]:
    input_ids, *others = inputs()
    input_ids = input_ids.copy()
    input_ids[:, position] = 5 + (input_ids[:, position] + 1) % 100
    return input_ids, *others


@pytest.mark.parametrize(
    ("direction", "blind", "seeing"),
    [
        ("left_to_right", slice(0, 10), slice(10, LENGTH)),
        ("right_to_left", slice(11, LENGTH), slice(0, 11)),
    ],
)
def test_encoder_of_one_direction_sees_no_token_of_the_other(direction, blind, seeing) -> None:
    config = with_(direction=direction)
    before, after = encode(config, *inputs()), encode(config, *changed_at(10))
    np.testing.assert_allclose(before[:, blind], after[:, blind], atol=1e-6)
    assert (np.abs(before - after).max(-1)[:, seeing] > 1e-3).all()


def test_prefix_decoder_leaks_no_target() -> None:
    config = with_(decoder="prefix")
    input_ids, _, example_ids, positions = (x.copy() for x in inputs())
    # In each sequence an example of source and target, then another one, then padding.
    example_ids[:], positions[:] = 0, np.arange(LENGTH) % 6
    example_ids[:, :6], example_ids[:, 6:12] = 1, 2
    token_type_ids = ((positions >= 3) & (example_ids > 0)).astype(np.int32)

    def changes(changed: int) -> np.ndarray:
        """Return which positions see a change of the token at a position."""
        other_ids = input_ids.copy()
        other_ids[:, changed] = 5 + (other_ids[:, changed] + 1) % 100
        arrays = token_type_ids, example_ids, positions
        before, after = (encode(config, ids, *arrays) for ids in (input_ids, other_ids))
        return np.flatnonzero((np.abs(before - after).max(axis=-1) > 1e-6).any(axis=0))

    assert changes(7).tolist() == [6, 7, 8, 9, 10, 11]  # of the source: its whole example
    assert changes(3).tolist() == [3, 4, 5] and changes(10).tolist() == [10, 11]


@pytest.mark.seconds
def test_prefix_decoder_at_positions_equals_encoding_all() -> None:
    config, positions = with_(decoder="prefix"), np.array([[0, 3, 9], [15, 7, 0]], np.int32)
    apply = functools.partial(Encoder(config).apply, params(), *inputs(), deterministic=True)
    some, _ = apply(output_positions=positions, method=encode_at_positions)
    np.testing.assert_allclose(some, gather(encode(config, *inputs()), positions), atol=1e-5)


def test_bidirectional_encoder_attends_to_the_whole_pair():
    before, after = encode(CONFIG, *inputs()), encode(CONFIG, *changed_at(10))
    assert (np.abs(before - after).max(-1) > 1e-6).all()


def test_encoder_depends_on_every_input():
    base = encode(CONFIG, *inputs())
    for i in range(4):
        arrays = list(inputs())
        arrays[i] = np.roll(arrays[i] if i != 2 else arrays[3] // 4, 3, axis=1)
        assert np.abs(encode(CONFIG, *arrays) - base).max() > 1e-3


@pytest.mark.seconds
def test_encoder_in_bfloat16_is_close_to_float32():
    half, full = encode(with_(dtype="bfloat16"), *inputs()), encode(CONFIG, *inputs())
    assert 0 < np.abs(half - full).max() < 0.1
    raw = jax.eval_shape(program(with_(dtype="bfloat16"), True), params(), *inputs())
    assert raw.dtype == jnp.dtype("bfloat16")


def test_encoder_returns_nan_for_unknown_token_ids():
    input_ids, *others = inputs()
    assert np.isnan(encode(CONFIG, np.full_like(input_ids, CONFIG.vocab_size), *others)).all()


# Dropout


@pytest.mark.slow
def test_encoder_dropout_depends_on_key_and_layer():
    config = with_(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    first, same, other = (encode(config, *inputs(), key=draw_key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-3
    np.testing.assert_array_equal(encode(config, *inputs()), encode(CONFIG, *inputs()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"hidden_dropout_prob": 0.5}, {"attention_probs_dropout_prob": 0.5}]
)
def test_encoder_applies_each_dropout_rate(fields):
    dropped = encode(with_(**fields), *inputs(), key=draw_key(0))
    assert np.abs(dropped - encode(CONFIG, *inputs())).max() > 1e-3


def test_encoder_rejects_dropout_without_a_key():
    with pytest.raises(Exception, match="dropout"):
        Encoder(with_(hidden_dropout_prob=0.1)).apply(params(), *inputs(), deterministic=False)


# Layers


def layers_of(layers: Sequence[int], scan_layers: bool = False) -> jax.stages.Wrapped:
    encoder = Encoder(with_(scan_layers=scan_layers))
    return jax.jit(functools.partial(encoder.apply, deterministic=True, layers=layers))


@pytest.mark.seconds
@pytest.mark.parametrize("scan_layers", [False, True])
def test_encoder_layers_are_numbered_from_the_embeddings(scan_layers):
    hidden = layers_of(range(CONFIG.num_hidden_layers + 1), scan_layers)(params(), *inputs())
    assert hidden.shape == (CONFIG.num_hidden_layers + 1, 2, LENGTH, CONFIG.hidden_size)
    np.testing.assert_allclose(hidden[-1], encode(CONFIG, *inputs()), atol=1e-6)
    np.testing.assert_allclose(hidden[0].mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(hidden[0].std(-1), 1, rtol=1e-3)
    some = layers_of((-2, 0, -3, 1), scan_layers)(params(), *inputs())
    np.testing.assert_allclose(some, np.asarray(hidden)[[1, 0, 0, 1]], atol=1e-6)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("layers", [(0,), (1,), (-1,), (0, -2)])
def test_encoder_computes_no_block_above_the_topmost_layer(layers, scan_layers):
    def flops(layers: Sequence[int]) -> int:
        traced = jax.make_jaxpr(layers_of(layers, scan_layers))(params(), *inputs())
        return matrix_flops(traced.jaxpr)

    top = max(hidden_state_indices(layers, CONFIG.num_hidden_layers))
    block = flops((-1,)) // CONFIG.num_hidden_layers
    assert flops(layers) == top * block
    assert block


@pytest.mark.seconds
@pytest.mark.parametrize(
    "fields", [{}, {"scan_layers": True}, {"remat": True}, {"num_hidden_layers": 1}]
)
def test_encode_at_positions_and_gradients_equal_encoding_all(fields) -> None:
    config, positions = with_(**fields), np.array([[0, 3, 3], [15, 7, 0]], np.int32)
    tree = {**params()["params"], "blocks": first_blocks(config.num_hidden_layers)}
    weights = np.random.default_rng(1).normal(size=(2, 3, config.hidden_size))

    def total(tree: Any, only_positions: bool) -> tuple[jax.Array, jax.Array]:
        apply = functools.partial(Encoder(config).apply, {"params": tree}, deterministic=True)
        if only_positions:
            vectors, _ = apply(*inputs(), output_positions=positions, method=encode_at_positions)
        else:
            vectors = gather(apply(*inputs()), positions)
        return (vectors * weights).sum(), vectors

    run = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(assert_close, run(tree, True), run(tree, False))


@pytest.mark.seconds
def test_encode_at_positions_drops_repeated_positions_independently() -> None:
    positions = np.array([[3, 3], [5, 5]], np.int32)
    encoder = Encoder(with_(hidden_dropout_prob=0.5))
    apply = functools.partial(encoder.apply, output_positions=positions, method=encode_at_positions)
    run = jax.jit(apply, static_argnames="deterministic")
    rngs = {"dropout": draw_key(0)}
    dropped, _ = run(params(), *inputs(), deterministic=False, rngs=rngs)
    assert (np.abs(dropped[:, 0] - dropped[:, 1]).max(axis=-1) > 1e-2).all()
    same, _ = run(params(), *inputs(), deterministic=True)
    np.testing.assert_array_equal(same[:, 0], same[:, 1])


@pytest.mark.parametrize(
    ("fields", "heads", "num_masked", "expected"),
    [
        ({}, ("mlm",), 8, 8),
        ({}, ("mlm",), 9, 16),
        ({}, ("mlm", "nsp"), 7, 8),
        ({}, ("mlm", "nsp"), 8, 16),
        ({}, ("nsp", "sequence_classification"), 8, 1),
        ({}, ("mlm", "token_classification"), 1, 16),
        ({}, (), 1, 16),
        ({"scan_layers": True}, ("mlm",), 1, 16),
        ({"bilstm": 8}, ("mlm",), 1, 16),
        ({"feature_layers": "-2..-1"}, ("mlm",), 1, 16),
    ],
)
def test_num_last_block_positions_is_all_where_heads_read_many(
    fields, heads, num_masked, expected
) -> None:
    lengths = {"example_ids": 16, "masked_lm_positions": num_masked, "cls_positions": 1}
    batch = {name: np.zeros((2, n), np.int32) for name, n in lengths.items()}
    assert num_last_block_positions(with_(**fields), heads, batch) == expected
