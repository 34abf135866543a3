"""`transformers` under PyTorch: its recipe, optimizer and pre-training step."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.bench.peers.pretraining_batch import VOCAB_SIZE, to_transformers

if TYPE_CHECKING:
    from bertjax.config.config import Config

TrainingInterval = list[float]  # last step, mean loss, examples/s


def peer_recipe(config: "Config") -> dict[str, Any]:
    """Return what the peer must know of a resolved configuration, for JSON."""
    from bertjax.steps.schedules import learning_rate_schedule

    optimizer = config.optimizer_config()
    if optimizer.name != "adamw" or optimizer.layerwise_lr_decay < 1 or optimizer.frozen_layers:
        sys.exit("The peer only has AdamW, with one learning rate for all layers.")
    if config.reinit_layers:
        sys.exit("The peer keeps all layers of init. Leave out reinit_layers.")
    schedule = learning_rate_schedule(optimizer)
    return dataclasses.asdict(optimizer) | {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "hidden_dropout_prob": config.model.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.model.attention_probs_dropout_prob,
        "learning_rates": [float(schedule(step)) for step in range(int(config.steps) + 1)],
    }


def parameter_groups(model: Any, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer: no weight decay of LayerNorm and biases."""
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["LayerNorm" not in name and "bias" not in name].append(parameter)
    return [
        {"params": groups[True], "weight_decay": weight_decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


def make_torch_optimizer(model: Any, recipe: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return PyTorch's fused AdamW and its learning rate schedule."""
    import torch

    groups = parameter_groups(model, recipe["weight_decay"])
    betas = recipe["b1"], recipe["b2"]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=recipe["eps"], fused=True)
    rates = recipe["learning_rates"]
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)


def make_pretraining_step(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    batch: dict[str, np.ndarray],
    *,
    device: str,
    compiled: bool,
    steps: int = 1,
) -> Callable[[], object]:
    """Return a function that makes some updates of `BertForPreTraining`.

    On a GPU the model computes in bfloat16 and without a mask, so that PyTorch's scaled dot-product
    attention takes its fastest kernel.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=num_heads,
        intermediate_size=4 * hidden_size,
    )
    model = transformers.BertForPreTraining(config).train().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-4, eps=1e-6, fused=True)
    inputs = to_transformers(batch)
    on_gpu = device == "cuda"
    if not on_gpu:
        inputs["attention_mask"] = batch["example_ids"]
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in inputs.items()}
    forward = torch.compile(model) if compiled else model

    def step() -> object:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
                loss = forward(**tensors).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    return step
