"""Optimizers as optax transformations, and the rules that select parameters by name.

The name of a parameter is its path in the tree, joined by slashes, such as
`encoder/blocks/attention/query/kernel`.
"""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config.optimizer_config import OptimizerConfig
from bertjax.mesh.sharding import map_named
from bertjax.steps.muon import scale_by_muon
from bertjax.steps.schedules import learning_rate_schedule

_NOT_DECAYED = re.compile(r"(^|/)\w*norm\w*/|bias$|^features/", re.IGNORECASE)
_STACKED = re.compile(r"(^|/)blocks/")
_EMBEDDINGS = re.compile(r"(^|/)embeddings/")


def is_decayed(name: str) -> bool:
    """Return whether a parameter has weight decay, and under LAMB a trust ratio.

    All have but LayerNorm (the module's name contains "norm"), biases (the name ends in "bias") and
    the weights of a mix of layers, whose factor is near 1. Embeddings decay.
    """
    return not _NOT_DECAYED.search(name)


def is_stacked(name: str) -> bool:
    """Return whether the first axis of a parameter is that of the layers."""
    return bool(_STACKED.search(name))


def layer_depth(name: str, leaf: Any, num_hidden_layers: int) -> np.ndarray:
    """Return the depth of a parameter: embeddings 0, blocks 1 to L, all above the encoder L + 1.

    Returns:
      An array [] or, for a stacked parameter, [L, 1, ...], which broadcasts against the parameter.
    """
    if name.startswith("decoder/"):
        return np.array(num_hidden_layers + 1)
    if is_stacked(name):
        return np.arange(1, num_hidden_layers + 1).reshape(-1, *[1] * (leaf.ndim - 1))
    return np.array(0 if _EMBEDDINGS.search(name) else num_hidden_layers + 1)


def weight_decay_mask(params: Any) -> Any:
    """Return a tree of booleans: which parameters have weight decay."""
    return map_named(lambda name, _: is_decayed(name), params)


def _block_kernel_mask(params: Any) -> Any:
    """Return a tree of booleans: which parameters are the matrices of a module in all layers."""
    return map_named(lambda name, _: is_stacked(name) and name.endswith("/kernel"), params)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the optimizer: clipping, moments, weight decay, trust ratio, learning rate.

    Its `update` takes gradients and parameters, both trees of float32 arrays. Inside the jitted
    step XLA fuses the transformations.
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
    # Omitted if it has no effect: each transformation adds an element to the saved state.
    if config.layerwise_lr_decay < 1 or config.frozen_layers:
        transformations.append(scale_by_layerwise_decay(config))
    return optax.chain(*transformations)


def with_learning_rate(
    optimizer: optax.GradientTransformation, rate: Any
) -> optax.GradientTransformation:
    """Return an optimizer of learning rate 1 with another one, which may be a traced array."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda leaf: rate * leaf, updates), state

    return optax.GradientTransformation(optimizer.init, update)


class BertAdamState(NamedTuple):
    """First and second moment of the gradient, each a tree like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Return Adam without bias correction, as in google-research/bert."""

    def init(params: Any) -> BertAdamState:
        return BertAdamState(optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(grads: Any, state: BertAdamState, params: Any = None) -> tuple[Any, BertAdamState]:
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.nu)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(updates: Any, params: Any) -> Any:
    """Multiply updates by LAMB's trust ratio |w| / |u|, 1 if a norm is 0.

    You et al. 2020, algorithm 2. Each layer of a stacked parameter has its own ratio.
    """

    def scale(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
        if not is_decayed(name):
            return update
        axes = tuple(range(1 if is_stacked(name) else 0, param.ndim))
        param_norm = jnp.sqrt(jnp.sum(param * param, axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(update * update, axes, keepdims=True))
        valid = (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(valid, param_norm / update_norm, 1)

    return map_named(scale, updates, params)


def scale_by_layerwise_decay(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return layer-wise learning rate decay; frozen parameters have updates of 0."""

    def scale(name: str, update: jax.Array) -> jax.Array:
        depth = layer_depth(name, update, config.num_hidden_layers)
        factor = config.layerwise_lr_decay ** (config.num_hidden_layers + 1.0 - depth)
        return update * np.where(_is_frozen(config, depth), 0, factor).astype(np.float32)

    return optax.stateless(lambda updates, _: map_named(scale, updates))


def stop_frozen_gradients(params: Any, config: OptimizerConfig) -> Any:
    """Return the parameters; the gradients of frozen ones are 0.

    It is called inside the differentiated function. So neither clipping nor the logged norm counts
    frozen parameters, and no gradient is computed if all layers are frozen.
    """

    def stop(name: str, leaf: jax.Array) -> jax.Array:
        frozen = _is_frozen(config, layer_depth(name, leaf, config.num_hidden_layers))
        constant = jax.lax.stop_gradient(leaf)
        return constant if frozen.all() else jnp.where(frozen, constant, leaf)

    return map_named(stop, params) if config.frozen_layers else params


def _is_frozen(config: OptimizerConfig, depths: np.ndarray) -> np.ndarray:
    """Return whether each depth is frozen; embeddings are with the lowest block."""
    frozen: np.ndarray = np.maximum(depths, 1) <= config.frozen_layers
    return frozen
