"""The pre-training model against golden values of `transformers` in float64.

goldens/make_pretraining.py writes them.
"""

import dataclasses
import functools
import importlib.util
from typing import Any

import flax.linen as nn
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_python
from goldens import make_pretraining as recipe

from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import map_named, named_leaves
from bertjax.model import bert, heads
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import ENCODER_INPUTS, Encoder
from bertjax.model.head_positions import num_last_block_positions
from bertjax.model.heads import HEADS, head_sums
from bertjax.model.layers import gather

CONFIG = BertConfig(**recipe.MODEL)
MODEL = BertWithHeads(CONFIG, ("mlm", "nsp"))
BATCH = recipe.check_batch()


def shapes(model: BertWithHeads) -> Any:
    """Return the shapes of the parameters without computing them."""
    init = functools.partial(model.init, batch=BATCH, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0))["params"]


def like_theirs(tree: Any, source: Any) -> Any:
    """Return a tree like `tree` with leaves from source(name in transformers, shape)."""

    return map_named(lambda name, leaf: recipe.array(name, leaf.shape, source), tree)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(recipe.PATH) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def params() -> Any:
    return like_theirs(shapes(MODEL), recipe.weight)


@functools.partial(jax.jit, static_argnames="config")
def logits(params: Any, batch: Any, config: BertConfig = CONFIG) -> dict[str, jax.Array]:
    return BertWithHeads(config, ("mlm", "nsp")).apply(
        {"params": params}, batch, deterministic=True
    )


@functools.partial(jax.jit, static_argnames="config")
def loss(params: Any, config: BertConfig = CONFIG) -> jax.Array:
    sums = head_sums(logits(params, BATCH, config), BATCH)
    return sum(sums[name][0] / sums[name][1] for name in ("mlm_loss", "nsp_loss"))


gradient = jax.jit(jax.grad(loss), static_argnames="config")


# Equal to the reference


def test_golden_batch_covers_padding_types_and_empty_slots():
    assert (BATCH["example_ids"] == 0).any(axis=1).sum() >= 3
    assert (BATCH["token_type_ids"] == 1).any(axis=1).all()
    assert 0 < (BATCH["masked_lm_weights"] == 0).sum() < BATCH["masked_lm_weights"].size / 2
    assert set(BATCH["next_sentence_labels"].ravel()) == {0, 1}


@pytest.mark.slow
def test_encoder_layers_equal_golden(golden, params):
    chosen = range(CONFIG.num_hidden_layers + 1)
    apply = functools.partial(Encoder(CONFIG).apply, deterministic=True, layers=chosen)
    inputs = (BATCH[name] for name in ENCODER_INPUTS)
    layers = jax.jit(apply)({"params": params["encoder"]}, *inputs)
    real = BATCH["example_ids"] > 0
    np.testing.assert_allclose(layers[:, real], golden["hidden"][:, real], atol=1e-5)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["mlm_logits", "nsp_logits"])
def test_logits_equal_golden(golden, params, name):
    assert np.abs(golden[name]).max() > 0.5
    np.testing.assert_allclose(logits(params, BATCH)[name], golden[name], atol=1e-5)


@pytest.mark.seconds
def test_logits_do_not_depend_on_the_last_block_positions(params, monkeypatch):
    short = BATCH["example_ids"].shape[1]
    batch = BATCH | {name: np.tile(BATCH[name], (1, 3)) for name in ENCODER_INPUTS}
    batch["example_ids"] = np.pad(BATCH["example_ids"], ((0, 0), (0, 2 * short)))
    length = batch["example_ids"].shape[1]
    counts: list[int] = []

    def record(*args: Any) -> int:
        counts.append(num_last_block_positions(*args))
        return counts[-1]

    monkeypatch.setattr(bert, "num_last_block_positions", record)
    at_positions = logits(params, batch)
    assert len(counts) == 1 and counts[0] < length
    monkeypatch.setattr(bert, "num_last_block_positions", lambda *args: length)
    logits.clear_cache()
    everywhere = logits(params, batch)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), at_positions, everywhere)


@pytest.mark.seconds
def test_heads_of_cls_positions_get_raw_or_pooled_vectors(params, monkeypatch):
    class Raw(nn.Module):
        @nn.compact
        def __call__(self, x, batch, word):
            return x

    raw = dataclasses.replace(
        heads.HEADS["nsp"],
        name="raw",
        module=lambda config, name: Raw(name=name),
        pooled=False,
        positions_key="cls_positions",
    )
    monkeypatch.setitem(heads.HEADS, "raw", raw)
    apply = functools.partial(BertWithHeads(CONFIG, ("raw", "nsp")).apply, deterministic=True)
    outputs = jax.jit(apply)({"params": params}, BATCH)
    encode = jax.jit(functools.partial(Encoder(CONFIG).apply, deterministic=True))
    inputs = (BATCH[name] for name in ENCODER_INPUTS)
    hidden = encode({"params": params["encoder"]}, *inputs)
    vectors = gather(hidden, BATCH["cls_positions"])
    np.testing.assert_allclose(outputs["raw_logits"], vectors, atol=1e-5)
    np.testing.assert_allclose(
        outputs["nsp_logits"], logits(params, BATCH)["nsp_logits"], atol=1e-5
    )
    apply = functools.partial(BertWithHeads(CONFIG, ("raw",)).apply, deterministic=True)
    alone = jax.jit(apply)({"params": params}, BATCH)
    np.testing.assert_allclose(alone["raw_logits"], vectors, atol=1e-5)


@pytest.mark.slow
def test_dropout_at_head_positions_does_not_depend_on_the_mesh(params):
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    batch = {name: np.tile(array, (4, 4)) for name, array in BATCH.items() if "_ids" in name}
    batch["position_ids"] = np.tile(BATCH["position_ids"], (4, 4))
    batch |= {
        name: np.tile(BATCH[name], (4, 1)) for name in ("masked_lm_positions", "cls_positions")
    }
    rngs = {"dropout": jax.random.key(0)}
    length = batch["example_ids"].shape[1]
    assert num_last_block_positions(config, MODEL.heads, batch) < length

    @jax.jit
    def run(params):
        return BertWithHeads(config, MODEL.heads).apply(
            {"params": params}, batch, deterministic=False, rngs=rngs
        )

    alone = run(params)
    with jax.set_mesh(make_mesh(2, 2, 2)):
        spread = run(params)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), spread, alone)
    whole = logits(params, batch)["mlm_logits"]
    assert np.abs(alone["mlm_logits"] - whole).max() > 1e-2


@pytest.mark.seconds
@pytest.mark.parametrize("hidden_act", recipe.ACTIVATIONS)
def test_loss_with_each_activation_equals_golden(golden, params, hidden_act):
    config = dataclasses.replace(CONFIG, hidden_act=hidden_act)
    np.testing.assert_allclose(loss(params, config), golden[f"loss/{hidden_act}"], rtol=1e-6)


@pytest.mark.slow
def test_gradient_of_every_parameter_equals_golden(golden, params):
    gradients = gradient(params)
    theirs = like_theirs(params, lambda name, shape: golden[f"gradient/{name}"])

    def compare(name: str, ours: jax.Array, theirs: np.ndarray) -> None:
        # Softmax does not feel a key's bias: that gradient is 0, and ours rounding.
        largest = max(np.abs(theirs).max(), 1e-3)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest, err_msg=name)

    map_named(compare, gradients, theirs)


# As large as published

HEADLESS = {"pooler", "encoder"}
SIZES = [
    # vocabulary, layers, hidden, heads, encoder + pooler, with both heads
    ("base uncased", 30522, 12, 768, 12, 109_482_240, 110_106_428),
    ("large uncased", 30522, 24, 1024, 16, 335_141_888, 336_226_108),
    ("base cased", 28996, 12, 768, 12, 108_310_272, 108_932_934),
    ("large cased", 28996, 24, 1024, 16, 333_579_264, 334_661_958),
    ("base multilingual cased", 119547, 12, 768, 12, 177_853_440, 178_566_653),
    ("tiny", 30522, 2, 128, 2, 4_385_920, None),
    ("mini", 30522, 4, 256, 4, 11_170_560, None),
    ("small", 30522, 4, 512, 8, 28_763_648, None),
    ("medium", 30522, 8, 512, 8, 41_373_184, None),
]


def size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "tokens", "layers", "hidden", "heads", "body", "whole"), SIZES)
def test_param_counts_equal_published_models(name, tokens, layers, hidden, heads, body, whole):
    tree = shapes(BertWithHeads(BertConfig(tokens, layers, hidden, heads), ("mlm", "nsp")))
    assert size({part: tree[part] for part in HEADLESS}) == body
    if whole:
        assert size(tree) == whole


@pytest.mark.parametrize("hidden", [128, 256, 512, 768])
@pytest.mark.parametrize("layers", [2, 4, 6, 8, 10, 12])
def test_param_counts_equal_the_24_miniatures(layers, hidden):
    embeddings = (30522 + 512 + 2 + 2) * hidden
    block = 12 * hidden**2 + 13 * hidden
    pooler = hidden**2 + hidden
    heads = (hidden**2 + hidden) + 2 * hidden + 30522 + (2 * hidden + 2)
    tree = shapes(BertWithHeads(BertConfig(30522, layers, hidden, hidden // 64), ("mlm", "nsp")))
    assert size({part: tree[part] for part in HEADLESS}) == embeddings + layers * block + pooler
    assert size(tree) == embeddings + layers * block + pooler + heads


def test_head_param_tree():
    tree = {part: leaves for part, leaves in shapes(MODEL).items() if part != "encoder"}
    assert {name: leaf.shape for name, leaf in named_leaves(tree)} == {
        "mlm/transform/kernel": (32, 32),
        "mlm/transform/bias": (32,),
        "mlm/norm/scale": (32,),
        "mlm/norm/bias": (32,),
        "mlm/bias": (120,),
        "pooler/transform/kernel": (32, 32),
        "pooler/transform/bias": (32,),
        "nsp/kernel": (32, 2),
        "nsp/bias": (2,),
    }


@pytest.mark.seconds
def test_model_without_nsp_has_no_pooler(params):
    model = BertWithHeads(CONFIG, ("mlm",))
    assert set(shapes(model)) == {"encoder", "mlm"}
    batch = {name: array for name, array in BATCH.items() if name != "cls_positions"}
    out = jax.jit(functools.partial(model.apply, deterministic=True))({"params": params}, batch)
    assert set(out) == {"mlm_logits"}
    both = logits(params, BATCH)
    np.testing.assert_allclose(out["mlm_logits"], both["mlm_logits"], atol=1e-5)


# Invariance


def packed(batch: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Return the examples of `batch` packed into a single sequence of `length`."""
    real = batch["example_ids"] > 0
    lengths = real.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
    examples = batch | {"example_ids": real * np.arange(1, len(real) + 1)[:, None]}
    out = {name: np.zeros((1, length), np.int32) for name in ENCODER_INPUTS}
    for name, array in out.items():
        array[0, : lengths.sum()] = examples[name][real]
    out["masked_lm_positions"] = (batch["masked_lm_positions"] + starts[:, None]).reshape(1, -1)
    out["cls_positions"] = starts[None]
    return out


@pytest.mark.seconds
def test_logits_of_packed_pairs_equal_pairs_alone(params):
    together = logits(params, packed(BATCH, length=100))
    alone = logits(params, BATCH)
    for name in alone:
        flat = alone[name].reshape(1, -1, alone[name].shape[-1])
        np.testing.assert_allclose(together[name], flat, atol=1e-5)


@pytest.mark.slow
def test_logits_do_not_depend_on_padding():
    config = dataclasses.replace(CONFIG, max_position_embeddings=512)
    short = recipe.batch("padded", batch_size=2, length=128, slots=20)
    params = like_theirs(shapes(BertWithHeads(config, ("mlm", "nsp"))), recipe.weight)
    long = short | {name: np.pad(short[name], ((0, 0), (0, 384))) for name in ENCODER_INPUTS}
    for name, expected in logits(params, short, config).items():
        np.testing.assert_allclose(logits(params, long, config)[name], expected, atol=1e-5)


def test_logits_in_bfloat16_are_close_to_float32(params):
    half = logits(params, BATCH, dataclasses.replace(CONFIG, dtype="bfloat16"))
    for name, full in logits(params, BATCH).items():
        assert half[name].dtype == jnp.float32
        assert 0 < np.abs(half[name] - full).max() < 0.1


@pytest.mark.parametrize("name", ["sequence_classification", "multiple_choice"])
def test_pooled_logits_of_close_vectors_differ_in_bfloat16_runs(name: str) -> None:
    config = dataclasses.replace(CONFIG, dtype="bfloat16", num_labels=1)
    head = HEADS[name].module(config, name)
    vectors = 3 + np.random.default_rng(0).normal(0, 1e-3, (200, CONFIG.hidden_size))
    variables = head.init(jax.random.key(0), vectors, {}, vectors)
    scores = head.apply(variables, vectors.astype(np.float32), {}, vectors)
    assert scores.dtype == jnp.float32 and len(np.unique(scores)) > 190


@pytest.mark.parametrize(
    "name",
    [
        "nsp",
        "question_answering",
        "sequence_classification",
        "multiple_choice",
        "token_classification",
    ],
)
def test_only_heads_of_fine_tuning_are_drawn_from_a_whole_normal(name: str) -> None:
    vectors = np.zeros((1, 20_000), np.float32)
    head = HEADS[name].module(dataclasses.replace(CONFIG, num_labels=2), name)
    kernel = np.asarray(head.init(jax.random.key(0), vectors, {}, vectors)["params"]["kernel"])
    is_truncated = name == "nsp"
    assert kernel.std() == pytest.approx(0.02 * (0.8796 if is_truncated else 1), rel=0.03)
    # A normal is beyond two deviations in 4.55% of the draws.
    assert np.mean(abs(kernel) > 0.04) == pytest.approx(0 if is_truncated else 0.0455, rel=0.15)


@pytest.mark.slow
def test_gradients_in_bfloat16_are_close_to_float32(params):
    half = gradient(params, dataclasses.replace(CONFIG, dtype="bfloat16", scan_layers=True))
    flat = [jax.flatten_util.ravel_pytree(tree)[0] for tree in (half, gradient(params))]
    cosine = jnp.vdot(*flat) / (jnp.linalg.norm(flat[0]) * jnp.linalg.norm(flat[1]))
    assert cosine > 0.999


def test_vocab_logits_are_computed_only_at_masked_positions(params):
    program = logits.lower(params, BATCH).as_text()
    rows, length = BATCH["input_ids"].shape
    assert f"{BATCH['masked_lm_positions'].size}x{CONFIG.vocab_size}xf32" in program
    assert f"{rows * length}x{CONFIG.vocab_size}" not in program
    assert f"{rows}x{length}x{CONFIG.vocab_size}" not in program


COPIES_OF_LOGITS = """
import re
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import MaskedLMHead
from bertjax.model.losses import masked_lm_sums
from bertjax.preflight.topology import Topology

config = BertConfig(vocab_size=8192, hidden_size=512, num_attention_heads=8, dtype="bfloat16")
head = MaskedLMHead(config)
x, word = jnp.zeros((128, 20, 512), "bfloat16"), jnp.zeros((8192, 512))
params = jax.eval_shape(head.init, jax.random.key(0), x, {}, word)
batch = {"masked_lm_ids": jnp.zeros((128, 20), int), "masked_lm_weights": jnp.ones((128, 20))}

def loss(params, x, word, batch):
    return masked_lm_sums(head.apply(params, x, batch, word), batch)["mlm_loss"][0]

for name in ("v5e:2x2", "v6e:2x2"):
    with jax.set_mesh(make_mesh(4, 1, 1, Topology(name).devices())):
        arguments = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(
                array.shape,
                array.dtype,
                sharding=PartitionSpec("data") if array.shape[0] == 128 else PartitionSpec(),
            ),
            (params, x, word, batch),
        )
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arguments).compile()
    text = compiled.as_text()
    assert re.search(r"\\[640,8192\\]", text), text
    print(name, *re.findall(r"= \\w+\\[(?:640|32,20),8192\\]\\S* (?:copy|reshape)\\(", text))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler")
def test_tpu_compiler_copies_no_gradient_of_logits() -> None:
    assert run_python(COPIES_OF_LOGITS).split() == ["v5e:2x2", "v6e:2x2"]
