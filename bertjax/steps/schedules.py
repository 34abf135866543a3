"""Learning rates by the step, or by the clock."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config.optimizer_config import OptimizerConfig


class Plan(NamedTuple):
    """From `step` on, which begins at `tick` of `durations.TICKS`, a step takes `pace` ticks."""

    step: Any
    tick: Any
    pace: Any

    def at(self, step: Any) -> Any:
        """The tick that a step begins with."""
        return self.tick + (step - self.step) * self.pace


def learning_rate_schedule(config: OptimizerConfig) -> optax.Schedule:
    """Return the schedule of a configuration; see `make_schedule`."""
    return make_schedule(
        config.schedule,
        config.learning_rate,
        config.warmup_steps,
        config.total_steps,
        config.cooldown_steps,
    )


def make_schedule(
    name: str, peak: float, warmup: int, total: int, cooldown: int = 0
) -> optax.Schedule:
    """The learning rate, float32 [], at the update that comes after `step` updates (int32 []).

    Where the clock ends a run `step` is a tick, and may lie between two of them (float32 []).

    Rate(0) is 0 where there is a warm-up, as in the original, so the first update only fills the
    moments; rate(warmup) is the peak; rate(total), which no update uses, is 0, but for "wsd"
    without a cool-down.

    Args:
      name: one of `SCHEDULES`, as `bertjax.config.optimizer_config.OptimizerConfig` has them.
      warmup, total, cooldown: steps.
    """

    # Subtractions are between integers: joined from optax's linear schedules, the first and the
    # last rates of a long run would come from 1 - 0.999999 in float32, wrong by some percent.
    def left(step: jax.Array, steps: int) -> jax.Array:
        """The share of the last `steps` steps that is still to come, at most 1."""
        return jnp.clip(total - step, 0, max(steps, 1)) / max(steps, 1)

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step)
        rising = step / max(warmup, 1)
        if name == "linear":
            falling = left(step, total - warmup)
        elif name == "bert_linear":
            falling = left(step, total)
        elif name == "one_cycle":
            rising, falling = _half_cosine(rising), _half_cosine(left(step, total - warmup))
        else:
            # 1 - sqrt(1 - x), so written that nothing cancels near 0.
            share = left(step, cooldown)
            falling = share / (1 + jnp.sqrt(1 - share)) if cooldown else jnp.ones(())
        return peak * jnp.where(step < warmup, rising, falling)

    return schedule


def _half_cosine(share: jax.Array) -> jax.Array:
    """From 0 to 1 as the share does, level at both ends: sin^2, which is exact near 0."""
    return jnp.sin(share * (jnp.pi / 2)) ** 2
