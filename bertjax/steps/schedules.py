"""Learning rate schedules, by the step or by the progress of a time budget."""

import jax
import jax.numpy as jnp
import optax

from bertjax.config.optimizer_config import OptimizerConfig


def learning_rate_schedule(config: OptimizerConfig) -> optax.Schedule:
    """Return a function from the number of updates, int32 [], to a learning rate, float32 [].

    With a time budget the argument, float32 [], and the durations are fractions of the budget.

    With a warm-up the rate at 0 is 0, as in google-research/bert: the first update only fills the
    moments. The rate at `warmup` is the peak, except for "bert_linear". The rate at `total`, which
    no update uses, is 0, except for "wsd" without a cool-down.
    """
    name, peak, total = config.schedule, config.learning_rate, config.total_steps
    warmup, cooldown = config.warmup_steps, config.cooldown_steps

    # Subtract integers, not floats: optax's joined linear schedules compute 1 - 0.999999 in
    # float32, which makes the first and last rates of a long run wrong by some percent.
    def remaining(step: jax.Array, duration: float) -> jax.Array:
        """Return the fraction of the last `duration` that is left, from 1 down to 0."""
        duration = duration if duration > 0 else 1
        return jnp.clip(total - step, 0, duration) / duration

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step)
        warmup_factor = step / (warmup or 1)
        if name == "linear":
            decay_factor = remaining(step, total - warmup)
        elif name == "bert_linear":
            decay_factor = remaining(step, total)  # the decay counts from 0, not from `warmup`
        elif name == "polynomial":
            decay_factor = remaining(step, total - warmup) ** config.decay_power
        elif name in ("cosine", "one_cycle"):
            warmup_factor = _half_cosine(warmup_factor) if name == "one_cycle" else warmup_factor
            decay_factor = _half_cosine(remaining(step, total - warmup))
        else:  # "wsd", with the decay 1 - sqrt(1 - left) in a form without cancellation near 0
            left = remaining(step, cooldown)
            decay_factor = left / (1 + jnp.sqrt(1 - left)) if cooldown else jnp.ones(())
        return peak * jnp.where(step < warmup, warmup_factor, decay_factor)

    return schedule


def _half_cosine(fraction: jax.Array) -> jax.Array:
    """Return (1 - cos(pi x)) / 2 as sin^2(pi x / 2), which is exact near 0."""
    return jnp.sin(fraction * (jnp.pi / 2)) ** 2
