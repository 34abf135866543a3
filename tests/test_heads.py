"""The pre-training model: equal to an independent implementation, and only as large as it must be.

The goldens are what `transformers` computes in float64; goldens/make_pretraining.py made them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bertjax import losses
from bertjax.heads import PretrainingModel, gather
from bertjax.model import BertConfig
from goldens import make_pretraining as recipe

CONFIG = BertConfig(**recipe.MODEL)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(recipe.PATH) as arrays:
        return dict(arrays)


def like_theirs(tree: Any, source: Any) -> Any:
    """A tree like `tree`, each leaf put together from what source(their name, shape) gives."""

    def leaf(path: Any, leaf: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return recipe.array(name, leaf.shape, source)

    return jax.tree_util.tree_map_with_path(leaf, tree)


def shapes(model: PretrainingModel) -> Any:
    init = jax.eval_shape(
        lambda key: model.init(key, recipe.check_batch(), deterministic=True), jax.random.key(0)
    )
    return init["params"]


@pytest.fixture(scope="module")
def params() -> Any:
    return like_theirs(shapes(PretrainingModel(CONFIG)), recipe.weight)


def loss(params: Any, batch: dict[str, np.ndarray], config: BertConfig = CONFIG) -> jax.Array:
    logits = PretrainingModel(config).apply({"params": params}, batch, deterministic=True)
    sums = losses.pretraining(logits, batch)
    return sum(sums[name][0] / sums[name][1] for name in ("mlm_loss", "nsp_loss"))


def test_logits(golden, params):
    batch = recipe.check_batch()
    assert (batch["pack_ids"] == 0).any() and (batch["type_ids"] == 1).any()
    logits = PretrainingModel(CONFIG).apply({"params": params}, batch, deterministic=True)
    for name in ("mlm_logits", "nsp_logits"):
        print(name, np.abs(logits[name]-golden[name]).max(), np.abs(golden[name]).max())

def test_hidden(golden, params):
    from bertjax.model import Encoder
    b = recipe.check_batch()
    h = Encoder(CONFIG).apply({"params": params["encoder"]}, b["token_ids"], b["type_ids"], b["pack_ids"], b["positions"], deterministic=True, all_layers=True)
    print(np.abs(np.where(b["pack_ids"][None,...,None]>0, h-golden["hidden"], 0)).max())

@pytest.mark.parametrize("act", recipe.ACTIVATIONS)
def test_loss(golden, params, act):
    import dataclasses
    l = loss(params, recipe.check_batch(), dataclasses.replace(CONFIG, activation=act))
    print(act, l/golden[f"loss/{act}"]-1, l)

def test_grad(golden, params):
    g = jax.jit(jax.grad(loss))(params, recipe.check_batch())
    want = like_theirs(params, lambda name, shape: golden[f"gradient/{name}"])
    jax.tree_util.tree_map_with_path(lambda p,a,b: print(jax.tree_util.keystr(p), np.abs(b).max(), np.abs(a-b).max()/np.abs(b).max()), g, want)
