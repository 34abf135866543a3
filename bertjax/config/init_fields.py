"""Checks of the fields that initialize a run from another model."""

from typing import Any

from bertjax.config.compound_values import parse_init_layers
from bertjax.model.initialization import POSITION_INITS
from data_pipelines.errors import InputError

# The fields of a configuration whose model is initialized from no other; those of a student may
# not fit the layers of its teacher.
WITHOUT_INIT: dict[str, Any] = {
    "init": "",
    "init_layers": "",
    "init_positions": "",
    "reinit_layers": 0,
}


def check_init_fields(
    init: str, init_layers: str, init_positions: str, reinit_layers: int, num_hidden_layers: int
) -> None:
    """Check the fields of `Config` with these names; `num_hidden_layers` is the model's.

    Raises:
      InputError: a value is out of its range, or contradicts another one.
    """
    if not 0 <= reinit_layers <= num_hidden_layers:
        raise InputError(
            f"reinit_layers={reinit_layers}: the model has {num_hidden_layers} layers. Use 0 to "
            f"{num_hidden_layers}."
        )
    if reinit_layers and not init:
        raise InputError(
            f"reinit_layers={reinit_layers}: without init all layers are random. Set init, or "
            "remove reinit_layers."
        )
    if init_layers and len(parse_init_layers(init_layers)) != num_hidden_layers:
        raise InputError(
            f"init_layers={init_layers!r}: model.num_hidden_layers={num_hidden_layers} is another "
            "number. Change one of them."
        )
    if init_positions not in ("", *POSITION_INITS):
        raise InputError(
            f"init_positions={init_positions!r}: unknown. Use {' or '.join(POSITION_INITS)}."
        )
    for name, value in {"init_layers": init_layers, "init_positions": init_positions}.items():
        if value and not init:
            raise InputError(f"{name}={value!r}: of no model. Set init.")
