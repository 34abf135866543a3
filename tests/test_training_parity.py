"""Losses of 200 updates against PyTorch, with the same weights and batches.

The reference curve is of PyTorch's AdamW on the `transformers` model, from
goldens/make_pretraining.py. Weights and batches follow from NumPy's random stream.
"""

from typing import Any

import jax
import numpy as np
import pytest
from goldens import make_pretraining as recipe

from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.sharding import map_named
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import head_sums
from bertjax.steps.optimizer import make_optimizer
from bertjax.steps.train_step import Sums, init_state, make_train_step

MODEL = BertWithHeads(BertConfig(**recipe.MODEL), ("mlm", "nsp"))


def weights() -> Any:
    shapes = jax.eval_shape(
        lambda key: MODEL.init(key, recipe.train_batch(0), deterministic=True), jax.random.key(0)
    )

    return map_named(
        lambda name, leaf: recipe.array(name, leaf.shape, recipe.weight), shapes["params"]
    )


def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array | None) -> Sums:
    logits = MODEL.apply({"params": params}, batch, deterministic=True)
    return head_sums(logits, batch)


@pytest.mark.slow
def test_losses_of_200_steps_equal_pytorchs():
    fields = {"learning_rate": recipe.LEARNING_RATE, "weight_decay": recipe.WEIGHT_DECAY}
    fields |= {"warmup_steps": recipe.WARMUP, "total_steps": recipe.STEPS}
    fields |= {"b1": recipe.B1, "b2": recipe.B2, "eps": recipe.EPS}
    optimizer = make_optimizer(OptimizerConfig(max_grad_norm=recipe.MAX_GRAD_NORM, **fields))
    step = jax.jit(make_train_step(loss, optimizer, seed_key=jax.random.key(0)))
    sums = jax.eval_shape(loss, weights(), recipe.train_batch(0), None)
    state = init_state(weights(), sums, optimizer)
    curve = []
    for number in range(recipe.STEPS):
        state, sums = step(state, recipe.train_batch(number))
        curve.append(float(sums["loss"][0]))
    with np.load(recipe.PATH) as golden:
        reference = golden["curve"]
    assert reference[-1] < 0.5 * reference[0]
    np.testing.assert_allclose(curve, reference, rtol=1e-3)
