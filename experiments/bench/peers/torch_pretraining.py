"""Pre-training step of `transformers` under PyTorch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def parameter_groups(model: Any, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer: no weight decay of LayerNorm and biases."""
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["LayerNorm" not in name and "bias" not in name].append(parameter)
    return [
        {"params": groups[True], "weight_decay": weight_decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]


def make_model(num_layers: int, hidden_size: int, name: str, device: str, **options: Any) -> Any:
    """Return a model of `transformers` with random parameters.

    Args:
      name: class of the model.
      **options: further arguments of the class.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = transformers.BertConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )
    return getattr(transformers, name)(config, **options).to(device)


def make_step(
    num_layers: int,
    hidden_size: int,
    batch: Mapping[str, np.ndarray],
    compiled: bool,
    cores: int,
    device: str,
    mask: str = "padding",
) -> Callable[[], object]:
    """Return a function that makes an update of `BertForPreTraining`.

    On a GPU it computes in bfloat16 with float32 parameters. Attention is PyTorch's scaled
    dot-product attention, which chooses its kernel by the mask.

    Args:
      mask: "none" for full sequences, "padding", or "packing" of several examples.
    """
    import torch

    torch.set_num_threads(cores)
    model = make_model(num_layers, hidden_size, "BertForPreTraining", device).train()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-4, eps=1e-6, fused=True)
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    arrays = {name: batch[name] for name in ("input_ids", "token_type_ids", "position_ids")}
    arrays |= {"labels": labels, "next_sentence_label": batch["next_sentence_labels"][:, 0]}
    inputs = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
    ids = torch.from_numpy(batch["example_ids"]).long()
    if mask == "padding":
        inputs["attention_mask"] = ids
    elif mask == "packing":
        inputs["attention_mask"] = ids[:, None, :, None] == ids[:, None, None, :]
    tensors = {name: tensor.to(device) for name, tensor in inputs.items()}
    forward = torch.compile(model) if compiled else model

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = forward(**tensors).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item

    return step
