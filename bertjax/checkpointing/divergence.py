"""Values of a run that must be finite: losses, scores, parameters, the optimizer's state."""

import math
from collections.abc import Mapping
from typing import Any

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.errors import DivergedError
from bertjax.mesh.finite import find_non_finite


class DivergenceCheck:
    """Checks of a run; parallel runs, which may diverge one by one, are not checked.

    Args:
      checkpointer: knows the last good checkpoint.
      is_active: whether anything is checked.
    """

    def __init__(self, checkpointer: Checkpointer, is_active: bool) -> None:
        self._checkpointer, self._is_active = checkpointer, is_active

    def check_state(self, step: int, state: Any) -> None:
        """Raise DivergedError if a parameter is not finite, or a part of the optimizer's state."""
        name = find_non_finite(state) if self._is_active else None
        if name:
            self.check_values(step, {name.removeprefix("0/"): math.nan})

    def check_values(self, step: int, values: Mapping[str, float]) -> None:
        """Raise DivergedError if a value is not finite."""
        for name, value in values.items() if self._is_active else ():
            if not math.isfinite(value):
                self._checkpointer.wait_until_finished()
                steps = self._checkpointer.all_steps()
                good = f"the last good checkpoint is step {steps[-1]}" if steps else "none is saved"
                raise DivergedError(
                    f"{name}={value} at step {step}, {good}: lower "
                    "optimizer.learning_rate or lengthen optimizer.warmup in a new workdir."
                )
