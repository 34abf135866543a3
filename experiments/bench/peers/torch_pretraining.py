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


def make_step(
    num_layers: int,
    hidden_size: int,
    batch: Mapping[str, np.ndarray],
    compiled: bool,
    cores: int,
    device: str,
) -> Callable[[], object]:
    """Return a function that makes an update of `BertForPreTraining`.

    On a GPU the model computes in bfloat16 and without a mask, so that PyTorch's scaled dot-product
    attention takes its fastest kernel.
    """
    import torch
    import transformers

    torch.set_num_threads(cores)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = transformers.BertConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )
    on_gpu = device == "cuda"
    model = transformers.BertForPreTraining(config).train().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-4, eps=1e-6, fused=True)
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids")}
    inputs |= {"labels": labels, "next_sentence_label": batch["next_sentence_labels"][:, 0]}
    if not on_gpu:
        inputs["attention_mask"] = batch["example_ids"]
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in inputs.items()}
    forward = torch.compile(model) if compiled else model

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            loss = forward(**tensors).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item

    return step
