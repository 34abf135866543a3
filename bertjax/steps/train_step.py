"""The train step as a pure function.

Losses and metrics are (sum, weight) pairs throughout. The loss is a ratio of sums over the global
batch, so devices, gradient accumulation and padding do not change it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bertjax.mesh.feed import Batch
from bertjax.model.losses import Sums

# (params, batch, dropout key or None) -> sums. Names `*_loss` are terms of the loss: the sum of
# their means is minimized. The others are metrics.
LossFunction = Callable[[Any, Batch, Array | None], Sums]


class TrainState(NamedTuple):
    """The state that a train step updates.

    Attributes:
      step: int32 [], number of updates so far.
      params: nested dictionary of float32 arrays.
      opt_state: state of the optimizer.
      metric_sums: sums of losses and metrics since the last multiple of `log_every`. They are part
        of the state so that a resumed run logs the same values.
    """

    step: Array
    params: Any
    opt_state: Any
    metric_sums: Sums


def loss_terms(sums: Sums) -> Sums:
    """Return the sums that are terms of the loss."""
    return {name: pair for name, pair in sums.items() if name.endswith("_loss")}


def total_loss(sums: Sums) -> Array:
    """Return the sum of the terms' means, float32 []; a term of weight 0 counts as 0."""
    terms = loss_terms(sums).values()
    return jnp.asarray(sum(value / jnp.where(weight > 0, weight, 1) for value, weight in terms))


def sums_and_gradient(
    loss: LossFunction,
    params: Any,
    batch: Batch,
    key: Array | None,
    gradient_accumulation_steps: int = 1,
    gather: Callable[[Any], Any] = lambda params: params,
) -> tuple[Sums, Any]:
    """Return the sums over the batch, and the gradient of the total loss.

    Args:
      loss: the loss function.
      params: nested dictionary of float32 arrays.
      batch: arrays [B, ...]; B is a multiple of `gradient_accumulation_steps`.
      key: key of dropout; None to turn dropout off.
      gradient_accumulation_steps: number of microbatches, computed one after the other. Each is
        divided by the weight of the whole batch, so the result does not depend on the number.
      gather: converts the parameters to those that the loss takes, once for all microbatches.
    """
    gathered, gradient_of_params = jax.vjp(gather, params)

    def scaled_loss(
        gathered: Any, microbatch: Batch, key: Array | None, weights: dict[str, Array]
    ) -> tuple[Array, Sums]:
        sums = loss(gathered, microbatch, key)
        scaled = {
            name: (value, weights.get(name, weight)) for name, (value, weight) in sums.items()
        }
        return total_loss(scaled), sums

    def gradient(
        microbatch: Batch, key: Array | None, weights: dict[str, Array]
    ) -> tuple[Any, Sums]:
        grads, sums = jax.grad(scaled_loss, has_aux=True)(gathered, microbatch, key, weights)
        return gradient_of_params(grads)[0], sums

    if gradient_accumulation_steps == 1:
        grads, sums = gradient(batch, key, {})
        return sums, grads

    # The weights do not depend on the parameters: XLA removes the model from this call.
    terms = loss_terms(loss(gathered, batch, None))
    weights = {name: weight for name, (_, weight) in terms.items()}
    # A microbatch takes every n-th sequence, so sequences stay on their device.
    microbatches = {
        name: array.reshape(-1, gradient_accumulation_steps, *array.shape[1:]).swapaxes(0, 1)
        for name, array in batch.items()
    }

    def add(carry: Any, item: tuple[Batch, Array]) -> tuple[Any, None]:
        microbatch, index = item
        microbatch_key = None if key is None else jax.random.fold_in(key, index)
        return jax.tree.map(jnp.add, carry, gradient(microbatch, microbatch_key, weights)), None

    first = {name: array[0] for name, array in microbatches.items()}
    shapes = jax.eval_shape(gradient, first, key, weights)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (grads, sums), _ = jax.lax.scan(
        add, zeros, (microbatches, jnp.arange(gradient_accumulation_steps))
    )
    return sums, grads


def make_train_step(
    loss: LossFunction,
    optimizer: optax.GradientTransformation,
    *,
    seed_key: Array,
    gradient_accumulation_steps: int = 1,
    log_every: int = 1,
    gather: Callable[[Any], Any] = lambda params: params,
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """Return a function (state, batch) -> (state, metric_sums), to be jitted with shardings.

    The metric sums run over the steps since the last multiple of `log_every`: those of the
    loss function, the total `loss`, and `grad_norm`. A step adds a weight of 1 to the last two.

    Args:
      loss: the loss function.
      optimizer: the optimizer.
      seed_key: with the step it determines the key of dropout.
      gradient_accumulation_steps: see `sums_and_gradient`.
      log_every: steps after which the metric sums start again at 0.
      gather: see `sums_and_gradient`.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        key = jax.random.fold_in(seed_key, state.step)
        sums, grads = sums_and_gradient(
            loss, state.params, batch, key, gradient_accumulation_steps, gather
        )
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        one = jnp.ones((), jnp.float32)
        sums |= {"loss": (total_loss(sums), one), "grad_norm": (optax.tree.norm(grads), one)}
        metric_sums = jax.tree.map(jnp.add, state.metric_sums, sums)
        step = state.step + 1
        is_logged = step % log_every == 0
        next_sums = jax.tree.map(
            lambda value: jnp.where(is_logged, jnp.zeros_like(value), value), metric_sums
        )
        return TrainState(step, params, opt_state, next_sums), metric_sums

    return train_step


def init_state(params: Any, sums: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step.

    Args:
      params: nested dictionary of float32 arrays.
      sums: sums of the loss function, or their shapes; only the names are used.
      optimizer: the optimizer.
    """
    zero = jnp.zeros((), jnp.float32)
    metric_sums = {name: (zero, zero) for name in [*sums, "loss", "grad_norm"]}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), metric_sums)


def means(sums: Any) -> dict[str, float]:
    """Return name -> sum / weight of sums on the host, without names of weight 0."""
    return {name: float(value) / float(weight) for name, (value, weight) in sums.items() if weight}
