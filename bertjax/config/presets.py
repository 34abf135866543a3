"""Defaults that the fine-tuning configurations in `experiments/` share."""

import copy
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

_FINETUNING: dict[str, Any] = {
    "seed": 0,
    "steps": "3 epochs",
    "batch_size": 32,
    "max_seq_length": 128,
    "log_every": 50,
    "checkpoint_every": "20%",
    "eval_every": "1 epochs",
    "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
    "model": {"dtype": "bfloat16"},
    "optimizer": {"learning_rate": 5e-5, "warmup": "10%"},
}
# A run of a minute on a CPU: the encoder is tiny unless `init` names one.
_SMOKE: dict[str, Any] = {
    "steps": 20,
    "batch_size": 8,
    "log_every": 5,
    "checkpoint_every": 10,
    "eval_every": 20,
    "model": {"dtype": "float32"},
}
_SMOKE_MODEL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "dtype": "float32",
}


def finetuning_config(
    task: str,
    init: str,
    data: Mapping[str, Any],
    smoke: bool,
    smoke_overrides: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ConfigDict:
    """Return a configuration of a fine-tuning run.

    Args:
      task: name of the task.
      init: checkpoint or model directory to initialize from.
      data: fields of `data`.
      smoke: shrink the run to a minute on a CPU.
      smoke_overrides: fields that `smoke` sets besides the shared ones; sections are merged.
      **fields: fields that differ from the shared defaults; sections are merged.
    """
    config = copy.deepcopy(_FINETUNING) | {"task": task, "init": init, "data": dict(data)}
    _merge(config, fields)
    if smoke:
        _merge(config, _SMOKE)
        if not init:
            _merge(config, {"model": _SMOKE_MODEL})
        _merge(config, smoke_overrides or {})
    return ConfigDict(config)


def _merge(config: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        config[name] = config[name] | dict(value) if isinstance(value, Mapping) else value
