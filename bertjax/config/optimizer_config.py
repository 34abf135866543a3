"""Fields of the optimizer and its learning rate, with their checks."""

import dataclasses
import math

from data_pipelines.errors import InputError
from data_pipelines.fields import field

OPTIMIZERS = ("adamw", "bert_adam", "lamb", "muon")
SCHEDULES = ("linear", "bert_linear", "one_cycle", "wsd")


@dataclasses.dataclass(frozen=True)
class OptimizerFields:
    """What an optimiser and the configuration of one share; the defaults are BERT-Base's (A.2)."""

    name: str = field(
        "adamw",
        '"adamw": Adam with decoupled weight decay; "bert_adam": the same without bias '
        'correction, as BERT was trained; "lamb": for very large batches (You et al. 2020), no '
        'decay and no trust ratio on LayerNorm and biases; "muon": for small budgets, Muon for the '
        'matrices of the blocks (Jordan et al. 2024) and "adamw" for all else, both at the same '
        "rate and decay",
    )
    learning_rate: float = field(1e-4, "the highest, at the end of the warm-up")
    schedule: str = field(
        "linear",
        '"linear": linear up from 0, and linear down to 0; "bert_linear": the same, the decay '
        "measured from step 0, as BERT was trained, so at the end of warm-up the rate drops by its "
        'share of the steps; "one_cycle": half a cosine up, and half a cosine down to 0 (Smith and '
        'Topin 2019); "wsd": linear up, then the full rate, and over the cool-down to 0 by '
        "1 - sqrt (Hägele et al. 2024, section 4.1)",
    )
    weight_decay: float = field(0.01, "of everything but LayerNorm and biases")
    b1: float = field(0.9, "how much of the mean of the gradients a step keeps")
    b2: float = field(0.999, "how much of the mean of their squares a step keeps")
    eps: float = field(1e-6, "what is added to the root of that")
    max_grad_norm: float = field(1.0, "the largest global norm that a gradient keeps")
    layerwise_lr_decay: float = field(
        1.0,
        "a block learns at so many times the rate of what stands on it, heads and pooler at the "
        "full rate and the embeddings at the lowest (Zhang et al. 2021, section 5)",
    )
    frozen_layers: int = field(
        0, "the lowest blocks that stay what they are, and with them the embeddings"
    )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(OptimizerFields):
    """An optimiser and its learning rate, which comes to 0 at `total_steps`.

    Raises:
      InputError: values that make no optimiser.
    """

    warmup_steps: float = 10_000  # these three are fractions with a time budget
    total_steps: float = 1_000_000
    cooldown_steps: float = 0
    num_hidden_layers: int = 12

    def __post_init__(self) -> None:
        for name, known in (("name", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"optimizer.{name} is {getattr(self, name)!r} "
                    f"and must be one of {', '.join(known)}"
                )
        for name in ("learning_rate", "eps", "max_grad_norm"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"optimizer.{name} is {value} and must be a number greater than 0")
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optimizer.{name} is {getattr(self, name)}, choose from [0, 1)")
        if not 0 <= self.weight_decay < 1:
            raise InputError(f"optimizer.weight_decay is {self.weight_decay}, choose from [0, 1)")
        if not 0 < self.layerwise_lr_decay <= 1:
            raise InputError(
                f"optimizer.layerwise_lr_decay is {self.layerwise_lr_decay}, choose from (0, 1]"
            )
        if not 0 <= self.frozen_layers <= self.num_hidden_layers:
            raise InputError(
                f"optimizer.frozen_layers is {self.frozen_layers} and the model has "
                f"{self.num_hidden_layers} blocks: freeze from 0 to all of them"
            )
        if self.total_steps < 1:
            raise InputError(f"a run of {self.total_steps} steps trains nothing: use at least 1")
        if not 0 <= self.warmup_steps < self.total_steps:
            raise InputError(
                f"optimizer.warmup of {self.warmup_steps} steps does not fit a run of "
                f"{self.total_steps}: use from 0 to one step less than the run has"
            )
        if self.cooldown_steps and self.schedule != "wsd":
            raise InputError(
                f"optimizer.cooldown is of schedule=wsd and the schedule is {self.schedule}: leave "
                "it out"
            )
        if (
            not 0 <= self.cooldown_steps
            or self.warmup_steps + self.cooldown_steps > self.total_steps
        ):
            raise InputError(
                f"a cool-down of {self.cooldown_steps} steps does not fit the "
                f"{self.total_steps - self.warmup_steps} after the warm-up: use at most these"
            )
