"""Optimizers against the published formulas; selection of parameters by name."""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import in_test_all
from jax.sharding import NamedSharding
from published_optimizers import (
    DECAYED,
    LAYERS,
    SHAPES,
    Arrays,
    config,
    draw,
    nested,
    published_updates,
    rate_factors,
)

from bertjax.config.optimizer_config import OPTIMIZERS
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

LAYERWISE: dict[str, Any] = {"layerwise_lr_decay": 0.7, "frozen_layers": 1}


@pytest.mark.seconds
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
@pytest.mark.parametrize("gradient_accumulation_steps", [4, *in_test_all(1)])
@pytest.mark.parametrize("mesh", [(2, 2, 2), *in_test_all(((8, 1, 1),))])
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
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


@pytest.mark.seconds
@pytest.mark.parametrize("zero", ["parameter", "gradient"])
def test_lamb_has_a_trust_ratio_of_one_if_a_norm_is_zero(zero: str) -> None:
    params = {"kernel": jnp.full(4, 0.0 if zero == "parameter" else 2.0)}
    gradient = {"kernel": jnp.full(4, 0.0 if zero == "gradient" else 2.0)}
    c = config(name="lamb", warmup_steps=0, learning_rate=1.0, weight_decay=0.0)
    optimizer = make_optimizer(c)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    expected = -1.0 if zero == "parameter" else 0.0
    np.testing.assert_allclose(updates["kernel"], expected, atol=1e-5)


@pytest.mark.seconds
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
