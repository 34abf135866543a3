"""Validation of the optimizer's configuration."""

from typing import Any

import pytest
from published_optimizers import config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "adam"}, "name='adam': is unknown. Use one of adamw, bert_adam, lamb, muon"),
        ({"decay_power": 2.0}, "decay_power=2.0: belongs to schedule=polynomial"),
        ({"schedule": "square"}, "schedule='square': is unknown. Use one of linear"),
        ({"learning_rate": 0}, "learning_rate=0: is not a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: is not a positive number"),
        ({"max_grad_norm": float("inf")}, "max_grad_norm=inf: is not a positive number"),
        ({"eps": -1e-6}, "eps=-1e-06: is not a positive number"),
        ({"b1": 1.0}, "b1=1.0: is out of range. Use a number from 0, below 1"),
        ({"b2": -0.1}, "b2=-0.1: is out of range"),
        ({"weight_decay": -0.01}, "weight_decay=-0.01: is out of range"),
        (
            {"layerwise_lr_decay": 0.0},
            "layerwise_lr_decay=0.0: is out of range. Use a number above",
        ),
        ({"layerwise_lr_decay": 1.01}, "layerwise_lr_decay=1.01: is out of range"),
        ({"frozen_layers": -1}, "frozen_layers=-1: the model has 3 blocks. Use 0 to 3"),
        ({"frozen_layers": 4}, "frozen_layers=4: the model has 3 blocks"),
        (
            {"warmup_steps": 100},
            "optimizer.warmup=100: is not from 0 to less than the schedule, 100",
        ),
        ({"warmup_steps": -1}, "optimizer.warmup=-1: is not from 0"),
        ({"cooldown_steps": 5}, "cooldown=5: belongs to schedule=wsd, and .*schedule=linear"),
        ({"schedule": "wsd", "cooldown_steps": 91}, "cooldown=91: is not from 0 to the 90 after"),
        ({"schedule": "wsd", "cooldown_steps": -1}, "cooldown=-1: is not from 0"),
    ],
)
def test_optimizer_config_rejects_invalid_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**fields)
