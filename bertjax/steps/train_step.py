"""One update of the parameters, and one evaluation of a batch, as pure functions.

Losses and metrics are (sum, weight) pairs throughout: what is optimised is the ratio of sums over
the global batch, so devices, accumulation and padding do not change it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bertjax.mesh.feed import Batch
from bertjax.model.losses import Sums

# (params, batch, dropout key or None) -> sums; what is named `*_loss` is a term of the loss: the
# sum of the terms' means is minimised, the rest is reported.
LossFunction = Callable[[Any, Batch, Array | None], Sums]


class TrainState(NamedTuple):
    """All that a step changes.

    Attributes:
      step: int32 scalar, updates done.
      params: nested dictionary of float32 arrays.
      opt_state: what the optimizer keeps.
      window: sums of losses and metrics since the last multiple of `log_every`; part of the
        state, so that a resumed run logs what an uninterrupted one does.
    """

    step: Array
    params: Any
    opt_state: Any
    window: Sums


def loss_terms(sums: Sums) -> Sums:
    """The terms of the loss among the sums."""
    return {name: pair for name, pair in sums.items() if name.endswith("_loss")}


def total_loss(sums: Sums) -> Array:
    """The sum of the terms' means, float32; a term of no weight counts 0."""
    return jnp.asarray(sum(_mean(*pair) for pair in loss_terms(sums).values()))


def _mean(value: Array, weight: Array) -> Array:
    return value / jnp.where(weight > 0, weight, 1)


def sums_and_gradient(
    loss: LossFunction,
    params: Any,
    batch: Batch,
    key: Array | None,
    gradient_accumulation_steps: int = 1,
    gather: Callable[[Any], Any] = lambda params: params,
) -> tuple[Sums, Any]:
    """All sums over the batch, and the gradient of the total loss.

    Args:
      batch: arrays with a leading axis of rows, a multiple of `gradient_accumulation_steps`.
      key: key of dropout; None to leave it out.
      accumulation: parts that the rows are computed in, one after the other. Each part is
        divided by the weight of the whole batch, so the result is that of one part.
      gather: makes of the parameters those that the loss takes, once for all parts.
    """
    used, gradient_of_params = jax.vjp(gather, params)

    def scaled(
        used: Any, rows: Batch, key: Array | None, weights: dict[str, Array]
    ) -> tuple[Array, Sums]:
        sums = loss(used, rows, key)
        whole = {name: (value, weights.get(name, weight)) for name, (value, weight) in sums.items()}
        return total_loss(whole), sums

    def gradient(rows: Batch, key: Array | None, weights: dict[str, Array]) -> tuple[Any, Sums]:
        grads, sums = jax.grad(scaled, has_aux=True)(used, rows, key, weights)
        return gradient_of_params(grads)[0], sums

    if gradient_accumulation_steps == 1:
        grads, sums = gradient(batch, key, {})
        return sums, grads

    # The weights do not depend on the parameters: the compiler drops the model from this call.
    weights = {name: weight for name, (_, weight) in loss_terms(loss(used, batch, None)).items()}
    # Every `gradient_accumulation_steps`-th row goes into a part, so rows stay on the device that holds them.
    parts = {
        name: array.reshape(-1, gradient_accumulation_steps, *array.shape[1:]).swapaxes(0, 1)
        for name, array in batch.items()
    }

    def add(carry: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
        rows, index = part
        part_key = None if key is None else jax.random.fold_in(key, index)
        return jax.tree.map(jnp.add, carry, gradient(rows, part_key, weights)), None

    first = {name: array[0] for name, array in parts.items()}
    shapes = jax.eval_shape(gradient, first, key, weights)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (grads, sums), _ = jax.lax.scan(add, zeros, (parts, jnp.arange(gradient_accumulation_steps)))
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
    """A function (state, batch) -> (state, window); `jax.jit` it with shardings.

    The window holds the sums over all steps since the last multiple of `log_every`, this one
    included: those of the loss function, and `loss` (the total) and `grad_norm`, to which each
    step adds a weight of 1. Dropout's key is a function of `seed_key` and the step. `gradient_accumulation_steps`
    and `gather` are those of `sums_and_gradient`.
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
        now = sums | {"loss": (total_loss(sums), one), "grad_norm": (optax.tree.norm(grads), one)}
        window = jax.tree.map(jnp.add, state.window, now)
        step = state.step + 1
        fresh = step % log_every == 0
        kept = jax.tree.map(lambda value: jnp.where(fresh, jnp.zeros_like(value), value), window)
        return TrainState(step, params, opt_state, kept), window

    return train_step


def init_state(params: Any, sums: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step.

    Args:
      sums: those that the loss function gives, or their shapes; only the names are looked at.
    """
    zero = jnp.zeros((), jnp.float32)
    window = {name: (zero, zero) for name in [*sums, "loss", "grad_norm"]}
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), window)


def means(sums: Any) -> dict[str, float]:
    """Sums on the host -> name: sum / weight; a name of no weight is left out."""
    return {name: float(value) / float(weight) for name, (value, weight) in sums.items() if weight}
