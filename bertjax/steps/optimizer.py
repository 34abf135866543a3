"""Optimisers and learning rates of BERT pre-training, as optax transformations.

Every rule that depends on which parameter it is goes by the parameter's name, its path in the
tree joined by slashes (`encoder/blocks/attention/query/kernel`), and stands in this file.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.sharding import parameter_name
from bertjax.steps.muon import scale_by_muon
from bertjax.steps.schedules import learning_rate_schedule

_LAYER_NORM_OR_BIAS = re.compile(r"(^|/)\w*norm\w*/|bias$", re.IGNORECASE)
_STACKED = re.compile(r"(^|/)blocks/")
_EMBEDDINGS = re.compile(r"(^|/)embeddings/")


def is_decayed(name: str) -> bool:
    """Whether a parameter decays, and under LAMB has a trust ratio: all but LayerNorm and biases.

    Embeddings decay. A LayerNorm is known by "norm" in the name of its module, a bias by a last
    key that ends in "bias".
    """
    return not _LAYER_NORM_OR_BIAS.search(name)


def is_stacked(name: str) -> bool:
    """Whether the parameter holds one array a layer along its first axis."""
    return bool(_STACKED.search(name))


def is_block_kernel(name: str) -> bool:
    """Whether the parameter is a matrix that every layer has: of attention or feed-forward."""
    return is_stacked(name) and name.endswith("/kernel")


def layer_depth(name: str, leaf: Any, num_hidden_layers: int) -> np.ndarray:
    """How high a parameter stands: embeddings 0, blocks 1 to L, the pooler and heads L + 1.

    One number, or of a stacked parameter one a layer, in an array that broadcasts against it.
    """
    if is_stacked(name):
        return np.arange(1, num_hidden_layers + 1).reshape(-1, *[1] * (leaf.ndim - 1))
    return np.array(0 if _EMBEDDINGS.search(name) else num_hidden_layers + 1)


def weight_decay_mask(params: Any) -> Any:
    """The tree of booleans, of the shape of `params`, that says which parameters decay."""
    return _mask_by_name(is_decayed, params)


def _block_kernel_mask(params: Any) -> Any:
    return _mask_by_name(is_block_kernel, params)


def _mask_by_name(rule: Callable[[str], bool], params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: rule(parameter_name(path)), params)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The whole update: clipping, moments, decay, LAMB's trust ratio, times minus the rate.

    Its `update` takes the gradients and the parameters, both trees of float32 arrays, and is meant
    to run inside the jitted step, where XLA makes one pass of what is written here as several.
    """
    if config.name == "bert_adam":
        moments = scale_by_bert_adam(config.b1, config.b2, config.eps)
    else:
        moments = optax.scale_by_adam(config.b1, config.b2, config.eps)
    if config.name == "muon":
        moments = optax.partition({True: scale_by_muon(), False: moments}, _block_kernel_mask)
    transformations = [
        optax.clip_by_global_norm(config.max_grad_norm),
        moments,
        optax.add_decayed_weights(config.weight_decay, weight_decay_mask),
        optax.stateless(scale_by_trust_ratio) if config.name == "lamb" else optax.identity(),
        optax.scale_by_learning_rate(learning_rate_schedule(config)),
    ]
    # Left out where it would do nothing: each one has its place in the states that are saved.
    if config.layerwise_lr_decay < 1 or config.frozen_layers:
        transformations.append(scale_by_layerwise_decay(config))
    return optax.chain(*transformations)


def with_learning_rate(
    optimizer: optax.GradientTransformation, rate: Any
) -> optax.GradientTransformation:
    """An optimizer of rate 1, at another, which may be an argument of the program."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda leaf: rate * leaf, updates), state

    return optax.GradientTransformation(optimizer.init, update)


class BertAdamState(NamedTuple):
    """Running means of the gradient and of its square, each a tree like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam as google-research/bert has it: the moments start at zero and are not corrected."""

    def init(params: Any) -> BertAdamState:
        return BertAdamState(
            jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        )

    def update(grads: Any, state: BertAdamState, params: Any = None) -> tuple[Any, BertAdamState]:
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(updates: Any, params: Any) -> Any:
    """LAMB's trust ratio |w| / |u| (You et al. 2020, algorithm 2), 1 where either norm is 0.

    A stacked parameter is as many layers as its first axis is long, and each has its own ratio.
    """

    def scaled(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> jax.Array:
        name = parameter_name(path)
        if not is_decayed(name):
            return update
        axes = tuple(range(1 if is_stacked(name) else 0, param.ndim))
        size = jnp.sqrt(jnp.sum(param * param, axes, keepdims=True))
        length = jnp.sqrt(jnp.sum(update * update, axes, keepdims=True))
        return update * jnp.where((size > 0) & (length > 0), size / length, 1)

    return jax.tree_util.tree_map_with_path(scaled, updates, params)


def scale_by_layerwise_decay(config: OptimizerConfig) -> optax.GradientTransformation:
    """The rate of each depth, as a share of the full one; 0 for what is frozen, decay included."""

    def scaled(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        below = layer_depth(parameter_name(path), update, config.num_hidden_layers)
        share = config.layerwise_lr_decay ** (config.num_hidden_layers + 1.0 - below)
        return update * np.where(_frozen(config, below), 0, share).astype(np.float32)

    return optax.stateless(
        lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates),
    )


def stop_frozen_gradients(params: Any, config: OptimizerConfig) -> Any:
    """The same parameters, with a gradient of 0 for those that are frozen.

    To be called inside what is differentiated, so that neither the norm that is clipped nor the
    one that is logged counts them, and no gradient is computed where all layers are frozen.
    """

    def held(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        frozen = _frozen(config, layer_depth(parameter_name(path), leaf, config.num_hidden_layers))
        constant = jax.lax.stop_gradient(leaf)
        return constant if frozen.all() else jnp.where(frozen, constant, leaf)

    return jax.tree_util.tree_map_with_path(held, params) if config.frozen_layers else params


def _frozen(config: OptimizerConfig, depths: np.ndarray) -> np.ndarray:
    """Which of the depths are; the embeddings go with the lowest block."""
    frozen: np.ndarray = np.maximum(depths, 1) <= config.frozen_layers
    return frozen
