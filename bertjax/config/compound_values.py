"""Values of configuration fields that are written as one text with several parts."""

import math
import re
from collections.abc import Sequence

from data_pipelines.errors import InputError


def parse_init_layers(value: str) -> list[int]:
    """Return the numbers of `init_layers`.

    Raises:
      InputError: the text is malformed, or names a layer twice.
    """
    if not re.fullmatch(r"\d+(,\d+)*", value):
        raise InputError(f"init_layers={value!r}: not numbers of layers. Write them as 0,2,4.")
    layers = [int(number) for number in value.split(",")]
    if len({*layers}) < len(layers):
        raise InputError(f"init_layers={value!r}: names a layer twice. Remove one.")
    return layers


def parse_loss_weights(value: str, heads: Sequence[str]) -> dict[str, float]:
    """Return head -> factor of its losses, of the text of `loss_weights`.

    Args:
      value: such as "mlm=1,nsp=0.5"; "" for none.
      heads: heads of the objective.

    Raises:
      InputError: the text is malformed, names a head twice or an unknown one, or a factor is
        negative or not finite, or all are 0.
    """
    weights = dict[str, float]()
    for item in value.split(",") if value else ():
        head, _, number = item.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise InputError(
                f"loss_weights={value!r}: {item!r} is not a head and a factor of at least 0. "
                "Write HEAD=FACTOR,..."
            )
        if head in weights or head not in heads:
            problem = "occurs twice" if head in weights else "is no head of the task"
            raise InputError(
                f"loss_weights={value!r}: {head!r} {problem}. Use one of {', '.join(heads)}, once."
            )
        weights[head] = weight
    if heads and all(weights.get(head, 1.0) == 0 for head in heads):
        raise InputError(f"loss_weights={value!r}: leave no loss. Raise one above 0.")
    return weights
