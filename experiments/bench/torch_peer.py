"""What peers under PyTorch have in common: a run's recipe, and the optimizer that follows it."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.config.config import Config

TrainingInterval = list[float]  # of a run: its last step, its mean loss, and examples/s


def peer_recipe(config: "Config") -> dict[str, Any]:
    """What a peer must know of a resolved run, for JSON: seed, dropout, optimizer and all rates."""
    from bertjax.steps.schedules import learning_rate_schedule

    optimizer = config.optimizer_config()
    if optimizer.name != "adamw" or optimizer.layerwise_lr_decay < 1 or optimizer.frozen_layers:
        sys.exit("the peer has but AdamW, with one rate for all layers: leave out what differs.")
    if config.reinit_layers:
        sys.exit("the peer begins with all layers of init: leave reinit_layers out.")
    schedule = learning_rate_schedule(optimizer)
    return dataclasses.asdict(optimizer) | {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "hidden_dropout_prob": config.model.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.model.attention_probs_dropout_prob,
        "rates": [float(schedule(step)) for step in range(int(config.steps) + 1)],
    }


def decayed(model: Any, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """The groups of PyTorch's optimizers: LayerNorm and biases are not decayed."""
    named = list(model.named_parameters())
    plain = [p for name, p in named if "LayerNorm" in name or "bias" in name]
    rest = [p for name, p in named if not ("LayerNorm" in name or "bias" in name)]
    return [
        {"params": rest, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def make_torch_optimizer(model: Any, recipe: dict[str, Any]) -> tuple[Any, Any]:
    """PyTorch's fused AdamW and its rates, without decay of LayerNorm and biases."""
    import torch

    groups = decayed(model, recipe["weight_decay"])
    betas = recipe["b1"], recipe["b2"]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=recipe["eps"], fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, recipe["rates"].__getitem__)
