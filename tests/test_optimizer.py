"""Optimizers against the published formulas; selection of parameters by name."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from bertjax.config.optimizer_config import OPTIMIZERS, OptimizerConfig
from bertjax.mesh.device_mesh import BATCH_SPEC, make_mesh
from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import named_leaves, tree_shardings
from bertjax.steps.muon import orthogonalize
from bertjax.steps.optimizer import (
    is_decayed,
    is_stacked,
    make_optimizer,
    stop_frozen_gradients,
    weight_decay_mask,
)
from bertjax.steps.train_step import TrainState, init_state, make_train_step

LAYERS = 3
# A small tree with names and shapes as in the model.
SHAPES: dict[str, tuple[int, ...]] = {
    "encoder/embeddings/word": (11, 4),
    "encoder/embeddings/norm/scale": (4,),
    "encoder/blocks/attention/query/kernel": (LAYERS, 4, 4),
    "encoder/blocks/attention/query/bias": (LAYERS, 4),
    "encoder/blocks/attention_norm/bias": (LAYERS, 4),
    "encoder/blocks/feed_forward/up/kernel": (LAYERS, 4, 8),
    "encoder/blocks/feed_forward/down/kernel": (LAYERS, 8, 4),
    "mlm/transform/kernel": (4, 4),
    "mlm/bias": (11,),
}
DECAYED = [
    "encoder/embeddings/word",
    "encoder/blocks/attention/query/kernel",
    "encoder/blocks/feed_forward/up/kernel",
    "encoder/blocks/feed_forward/down/kernel",
    "mlm/transform/kernel",
]
Arrays = dict[str, np.ndarray]


def draw(seed: int, scale: float) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0, scale, shape).astype(np.float32) for name, shape in SHAPES.items()
    }


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), folders, tree)[last] = value
    return tree


def config(**fields: Any) -> OptimizerConfig:
    fields = {"warmup_steps": 10, "total_steps": 100, "num_hidden_layers": LAYERS, **fields}
    return OptimizerConfig(**fields)


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Return Muon's update from a matrix of momentum."""
    x = matrix / max(np.linalg.norm(matrix), 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x * 0.2 * max(x.shape) ** 0.5


def rate_factors(c: OptimizerConfig, name: str) -> np.ndarray:
    """Return the factor of the learning rate, by layer if stacked; 0 for frozen parameters."""
    if "/embeddings/" in name:
        return np.array(0 if c.frozen_layers else c.layerwise_lr_decay**4)
    if "/blocks/" not in name:
        return np.array(1)
    layers = np.array([c.layerwise_lr_decay**3, c.layerwise_lr_decay**2, c.layerwise_lr_decay])
    layers[: c.frozen_layers] = 0
    return layers.reshape(-1, *[1] * (len(SHAPES[name]) - 1))


def published_updates(c: OptimizerConfig, params: Arrays, gradients: list[Arrays]) -> Arrays:
    """Compute the published update rules in NumPy, float64, one layer at a time."""
    w = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in w.items()}
    v = {name: np.zeros_like(value) for name, value in w.items()}
    trace = {name: np.zeros_like(value) for name, value in w.items()}
    for step, full_gradient in enumerate(gradients):
        gradient = {name: g * (rate_factors(c, name) > 0) for name, g in full_gradient.items()}
        norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradient.values()))
        if step < c.warmup_steps:
            rate = c.learning_rate * step / c.warmup_steps
        elif c.schedule == "linear":
            remaining = c.total_steps - step
            rate = c.learning_rate * remaining / (c.total_steps - c.warmup_steps)
        else:
            rate = c.learning_rate * (1 - step / c.total_steps)
        for name in w:
            g = gradient[name].astype(np.float64) * min(1, c.max_grad_norm / norm)
            m[name] = c.b1 * m[name] + (1 - c.b1) * g
            v[name] = c.b2 * v[name] + (1 - c.b2) * g**2
            m_hat, v_hat = m[name], v[name]
            if c.name != "bert_adam":
                m_hat = m_hat / (1 - c.b1 ** (step + 1))
                v_hat = v_hat / (1 - c.b2 ** (step + 1))
            u = m_hat / (np.sqrt(v_hat) + c.eps)
            if c.name == "muon" and "/blocks/" in name and "/kernel" in name:
                trace[name] = 0.95 * trace[name] + g
                u = np.stack([orthogonal(layer) for layer in g + 0.95 * trace[name]])
            if name in DECAYED:
                u = u + c.weight_decay * w[name]
                if c.name == "lamb":
                    stacked = "/blocks/" in name
                    layers = zip(u, w[name], strict=True) if stacked else [(u, w[name])]
                    for layer_u, layer_w in layers:
                        layer_u *= np.linalg.norm(layer_w) / np.linalg.norm(layer_u)
            w[name] = w[name] - rate * rate_factors(c, name) * u
    return w


LAYERWISE: dict[str, Any] = {"layerwise_lr_decay": 0.7, "frozen_layers": 1}


@pytest.mark.parametrize(
    "fields", [*({"schedule": name} for name in ("linear", "bert_linear")), LAYERWISE], ids=str
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hundred_steps_equal_the_published_formulas(name: str, fields: dict[str, Any]) -> None:
    c = config(name=name, learning_rate=2e-3, **fields)
    params = draw(0, 0.1)
    # Norms from about 0.1 to 10: some gradients are clipped and some are not.
    gradients = [draw(step + 1, 0.01 * 10 ** (step % 3)) for step in range(100)]
    norms = [np.sqrt(sum(np.sum(g**2) for g in gradient.values())) for gradient in gradients]
    assert min(norms) < c.max_grad_norm < max(norms)

    optimizer = make_optimizer(c)
    tree = nested(params)
    state = optimizer.init(tree)

    def loss(tree: Any, gradient: Any) -> Any:
        return optax.tree.vdot(stop_frozen_gradients(tree, c), gradient)

    @jax.jit
    def step(tree: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        gradient = jax.grad(loss)(tree, gradient)
        updates, state = optimizer.update(gradient, state, tree)
        return optax.apply_updates(tree, updates), state

    for gradient in gradients:
        tree, state = step(tree, state, nested(gradient))
    expected = published_updates(c, params, gradients)
    for name, actual in named_leaves(tree):
        np.testing.assert_allclose(actual, expected[name], rtol=0, atol=1e-6)
        frozen = np.broadcast_to(rate_factors(c, name) == 0, actual.shape)
        np.testing.assert_array_equal(actual[frozen], params[name][frozen])
        moved = np.abs(actual - params[name])
        assert frozen.all() or moved.max() > 1e-3, "the test moves every parameter"


@pytest.mark.slow
@pytest.mark.parametrize("gradient_accumulation_steps", [1, 4])
@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_muon_with_layerwise_decay_is_the_same_on_meshes_and_with_accumulation(
    mesh: tuple[int, int, int], gradient_accumulation_steps: int
) -> None:
    c = config(name="muon", learning_rate=2e-3, **LAYERWISE)
    widen = {4: 16, 8: 32, 11: 16}  # multiples of eight devices
    shapes = {
        name: tuple(widen.get(size, size) for size in shape) for name, shape in SHAPES.items()
    }
    random = np.random.default_rng(0)

    def drawn(*rows: int) -> Arrays:
        return {
            name: random.normal(0, 0.1, (*rows, *shape)).astype(np.float32)
            for name, shape in shapes.items()
        }

    params, batches = drawn(), [drawn(32) for _ in range(100)]

    def loss(params: Any, batch: Any, key: Any) -> Any:
        """Return a loss whose gradient is the mean of the sequences."""
        named = dict(named_leaves(stop_frozen_gradients(params, c)))
        return {"a_loss": (sum((batch[name] * named[name]).sum() for name in batch), 32.0)}

    optimizer = make_optimizer(c)
    step = make_train_step(
        loss,
        optimizer,
        seed_key=jax.random.key(0),
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    devices = make_mesh(*mesh)
    with jax.set_mesh(devices):

        def first() -> TrainState:
            return init_state(nested(params), {"a_loss": None}, optimizer)

        shardings = tree_shardings(devices, jax.eval_shape(first))
        state = jax.jit(first, out_shardings=shardings)()
        kernel = state.params["encoder"]["blocks"]["feed_forward"]["up"]["kernel"]
        assert kernel.addressable_shards[0].data.size == kernel.size / 8
        run = jax.jit(step, donate_argnums=0)
        for batch in batches:
            state, _ = run(state, to_global(batch, NamedSharding(devices, BATCH_SPEC)))
            jax.block_until_ready(state)
    gradients = [{name: rows.mean(0) for name, rows in batch.items()} for batch in batches]
    expected = nested(published_updates(c, params, gradients))
    for actual, reference in zip(*map(jax.tree.leaves, (state.params, expected)), strict=True):
        np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_layerwise_decay_adds_no_state(name: str) -> None:
    params = nested(draw(0, 1))
    plain, layerwise = (make_optimizer(config(name=name, **fields)) for fields in ({}, LAYERWISE))
    before, after = (named_leaves(optimizer.init(params)) for optimizer in (plain, layerwise))
    assert [name for name, _ in before] == [name for name, _ in after]


def test_layerwise_decay_scales_the_updates_of_each_layer() -> None:
    params, gradient = nested(draw(0, 1)), nested(draw(1, 1))
    plain, slower = (
        make_optimizer(config(warmup_steps=0, layerwise_lr_decay=decay)) for decay in (1.0, 0.5)
    )
    full, reduced = (
        dict(named_leaves(jax.jit(optimizer.update)(gradient, optimizer.init(params), params)[0]))
        for optimizer in (plain, slower)
    )
    for name in SHAPES:
        factor = [1 / 8, 1 / 4, 1 / 2] if "/blocks/" in name else 1
        factor = 1 / 16 if "/embeddings/" in name else factor
        np.testing.assert_array_equal(reduced[name].T, full[name].T * np.float32(factor))


def test_stop_frozen_gradients_sets_gradients_of_frozen_layers_to_zero() -> None:
    params = nested(draw(0, 1))
    for frozen in range(LAYERS + 1):
        c = config(frozen_layers=frozen)
        gradient = jax.grad(lambda tree, c=c: optax.tree.sum(stop_frozen_gradients(tree, c)))(
            params
        )
        for name, leaf in named_leaves(gradient):
            layers = np.arange(LAYERS) >= frozen if "/blocks/" in name else frozen == 0
            learns = True if name.startswith("mlm/") else layers
            np.testing.assert_array_equal(leaf.T, np.broadcast_to(learns, leaf.T.shape))


def test_muon_keeps_one_moment_of_block_kernels_and_two_of_others() -> None:
    params = nested(draw(0, 1))
    state = make_optimizer(config(name="muon")).init(params)
    moments = collections.Counter(leaf.shape for leaf in jax.tree.leaves(state))
    assert moments[LAYERS, 4, 8] == moments[LAYERS, 8, 4] == moments[LAYERS, 4, 4] == 1
    assert moments[LAYERS, 4] == 2 * 2 and moments[11, 4] == moments[4, 4] == 2


def test_orthogonalize_returns_updates_of_the_size_of_adams() -> None:
    random = np.random.default_rng(0)
    tree = {"blocks": {"kernel": random.normal(0, 1e-3, (2, 64, 16)).astype(np.float32)}}
    (update,) = jax.tree.leaves(orthogonalize(tree))
    for matrix in update:
        values = np.linalg.svd(matrix, compute_uv=False) / (0.2 * 64**0.5)
        assert (values > 0.65).all() and (values < 1.25).all()
        assert 0.05 < np.sqrt((matrix**2).mean()) < 0.2
    zero = orthogonalize({"kernel": np.zeros((1, 4, 4), np.float32)})
    assert not zero["kernel"].any()


def test_first_updates_of_optimizers_differ_as_published() -> None:
    """Adam's first update is the sign of the gradient; without bias correction 3.16 times that.

    In google-research/bert the first moment is 0.1 g, the root of the second sqrt(0.001) |g|.
    """
    params = {"dense": {"kernel": jnp.full((2, 2), 0.5)}}
    gradient = {"dense": {"kernel": jnp.array([[0.1, -0.2], [0.3, -0.4]])}}
    sign = np.sign(gradient["dense"]["kernel"])
    expected = {"adamw": sign, "bert_adam": sign * 0.1 / 0.001**0.5, "lamb": 0.5 * sign}
    for name, update in expected.items():
        c = config(name=name, warmup_steps=0, learning_rate=1.0, weight_decay=0.0)
        optimizer = make_optimizer(c)
        updates, _ = optimizer.update(gradient, optimizer.init(params), params)
        np.testing.assert_allclose(updates["dense"]["kernel"], -update, rtol=1e-3)


@pytest.mark.slow
def test_lamb_has_a_trust_ratio_for_each_layer() -> None:
    random = np.random.default_rng(0)
    scales = np.array([0.1, 1, 10]).reshape(LAYERS, 1, 1)
    kernel = random.normal(0, scales, (LAYERS, 4, 5)).astype(np.float32)
    gradient = random.normal(0, 0.01, kernel.shape).astype(np.float32)
    optimizer = make_optimizer(config(name="lamb", warmup_steps=0, max_grad_norm=1e6))

    def updated(params: Any, gradients: Any) -> Any:
        return optimizer.update(gradients, optimizer.init(params), params)[0]

    stacked = updated({"blocks": {"kernel": kernel}}, {"blocks": {"kernel": gradient}})
    for layer in range(LAYERS):
        single = updated({"kernel": kernel[layer]}, {"kernel": gradient[layer]})
        np.testing.assert_allclose(stacked["blocks"]["kernel"][layer], single["kernel"], rtol=1e-6)


@pytest.mark.parametrize("zero", ["parameter", "gradient"])
def test_lamb_has_a_trust_ratio_of_one_if_a_norm_is_zero(zero: str) -> None:
    params = {"kernel": jnp.full(4, 0.0 if zero == "parameter" else 2.0)}
    gradient = {"kernel": jnp.full(4, 0.0 if zero == "gradient" else 2.0)}
    c = config(name="lamb", warmup_steps=0, learning_rate=1.0, weight_decay=0.0)
    optimizer = make_optimizer(c)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    expected = -1.0 if zero == "parameter" else 0.0
    np.testing.assert_allclose(updates["kernel"], expected, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nan_gradient_makes_all_updates_nan(name: str) -> None:
    params = {"kernel": jnp.ones(3), "norm": {"scale": jnp.ones(3)}}
    gradient = {"kernel": jnp.array([1, jnp.nan, 1]), "norm": {"scale": jnp.ones(3)}}
    optimizer = make_optimizer(config(name=name, warmup_steps=0))
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(updates))


def test_weight_decay_mask_excludes_layer_norm_and_biases() -> None:
    assert [name for name in SHAPES if is_decayed(name)] == DECAYED
    assert weight_decay_mask(nested(draw(0, 1))) == nested(
        {name: name in DECAYED for name in SHAPES}
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("word", True),
        ("encoder/embeddings/position", True),
        ("encoder/embeddings/type", True),
        ("pooler/transform/kernel", True),
        ("encoder/blocks/attention/LayerNorm_0/scale", False),
        ("encoder/blocks/feed_forward_norm/bias", False),
        ("norm/scale", False),
        ("bias", False),
        ("mlm/output_bias", False),
        ("nsp/bias", False),
    ],
)
def test_is_decayed_decides_by_name(name: str, expected: bool) -> None:
    assert is_decayed(name) is expected


def test_is_stacked_decides_by_the_module_blocks() -> None:
    assert [name for name in SHAPES if is_stacked(name)] == [n for n in SHAPES if "/blocks/" in n]
    assert is_stacked("blocks/kernel")
    assert not is_stacked("building_blocks/kernel")


@pytest.mark.slow
def test_first_update_of_a_warmup_changes_no_parameter() -> None:
    params = nested(draw(0, 1))
    optimizer = make_optimizer(config())
    updates, state = optimizer.update(nested(draw(1, 1)), optimizer.init(params), params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    assert any(leaf.any() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "adam"}, "name='adam': is unknown. Use one of adamw, bert_adam, lamb, muon"),
        ({"schedule": "cosine"}, "schedule='cosine': is unknown. Use one of linear"),
        ({"learning_rate": 0}, "learning_rate=0: is not a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: is not a positive number"),
        ({"max_grad_norm": float("inf")}, "max_grad_norm=inf: is not a positive number"),
        ({"eps": -1e-6}, "eps=-1e-06: is not a positive number"),
        ({"b1": 1.0}, "b1=1.0: is out of range. Use a number from 0, below 1"),
        ({"b2": -0.1}, "b2=-0.1: is out of range"),
        ({"weight_decay": -0.01}, "weight_decay=-0.01: is out of range"),
        (
            {"layerwise_lr_decay": 0.0},
            "layerwise_lr_decay=0.0: is out of range. Use a number above",
        ),
        ({"layerwise_lr_decay": 1.01}, "layerwise_lr_decay=1.01: is out of range"),
        ({"frozen_layers": -1}, "frozen_layers=-1: the model has 3 blocks. Use 0 to 3"),
        ({"frozen_layers": 4}, "frozen_layers=4: the model has 3 blocks"),
        (
            {"warmup_steps": 100},
            "optimizer.warmup=100: is not from 0 to less than the schedule, 100",
        ),
        ({"warmup_steps": -1}, "optimizer.warmup=-1: is not from 0"),
        ({"warmup_steps": 0, "total_steps": 0}, "steps=0: trains nothing. Use at least 1"),
        ({"cooldown_steps": 5}, "cooldown=5: belongs to schedule=wsd, and .*schedule=linear"),
        ({"schedule": "wsd", "cooldown_steps": 91}, "cooldown=91: is not from 0 to the 90 after"),
        ({"schedule": "wsd", "cooldown_steps": -1}, "cooldown=-1: is not from 0"),
    ],
)
def test_optimizer_config_rejects_invalid_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)
