"""Fields of the optimizer and its learning rate schedule, with their validation."""

import dataclasses
import math

from bertjax.config.durations import Duration
from data_pipelines.errors import InputError
from data_pipelines.fields import field

OPTIMIZERS = ("adamw", "bert_adam", "lamb", "muon")
SCHEDULES = ("linear", "bert_linear", "cosine", "polynomial", "one_cycle", "wsd")


@dataclasses.dataclass(frozen=True)
class OptimizerFields:
    """Fields of an optimizer and of its configuration; the defaults are BERT-Base's (A.2)."""

    name: str = field(
        "adamw",
        'optimizer: "adamw", Adam with decoupled weight decay; "bert_adam", the same without bias '
        'correction, as in google-research/bert; "lamb", for very large batches (You et al. 2020), '
        'without decay and trust ratio for LayerNorm and biases; "muon", for small budgets, Muon '
        'for the matrices of the blocks (Jordan et al. 2024) and "adamw" for the others, with the '
        "same learning rate and decay",
    )
    learning_rate: float = field(1e-4, "peak learning rate, at the end of the warm-up")
    schedule: str = field(
        "linear",
        'learning rate schedule: "linear", linear warm-up from 0 and linear decay to 0; '
        '"bert_linear", the same with the decay measured from step 0, as in google-research/bert, '
        "so at the end of the warm-up the rate drops by the warm-up's fraction of the steps; "
        '"cosine", linear warm-up and half a cosine down to 0; "polynomial", linear warm-up and a '
        'power of the linear decay, `decay_power`; "one_cycle", half a cosine up and half a cosine '
        'down to 0 (Smith and Topin 2019); "wsd", linear warm-up, constant rate, and a decay of '
        "1 - sqrt to 0 in the cool-down (Hägele et al. 2024, section 4.1)",
    )
    decay_power: float = field(1.0, 'exponent of the decay of schedule "polynomial"')
    weight_decay: float = field(0.01, "weight decay of all parameters but LayerNorm and biases")
    b1: float = field(0.9, "Adam beta1, decay of the first moment")
    b2: float = field(0.999, "Adam beta2, decay of the second moment")
    eps: float = field(1e-6, "Adam epsilon, added to the root of the second moment")
    max_grad_norm: float = field(1.0, "gradient clipping: maximum global norm")
    layerwise_lr_decay: float = field(
        1.0,
        "layer-wise learning rate decay: factor from a block to the block below it; heads, pooler "
        "and decoder have the full rate, embeddings the lowest (Zhang et al. 2021, section 5)",
    )
    frozen_layers: int = field(
        0, "number of the encoder's lowest blocks that are not trained, with the embeddings"
    )


@dataclasses.dataclass(frozen=True)
class OptimizerSection(OptimizerFields):
    """The optimizer and its learning rate schedule."""

    warmup: Duration = field("1%", "warm-up: time in which the learning rate rises")
    decay_steps: Duration = field(
        0,
        "end of the schedule, where the learning rate is 0; 0 for the end of the run; later than "
        "that if another run continues from this one's parameters",
    )
    cooldown: Duration = field(
        0, 'cool-down of schedule "wsd": time in which the learning rate falls'
    )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(OptimizerFields):
    """An optimizer with a learning rate schedule that ends at `total_steps`.

    With a time budget the three durations are fractions of it.

    Raises:
      InputError: a value is out of its range.
    """

    warmup_steps: float = 10_000
    total_steps: float = 1_000_000
    cooldown_steps: float = 0
    num_hidden_layers: int = 12

    def __post_init__(self) -> None:
        for name, choices in (("name", OPTIMIZERS), ("schedule", SCHEDULES)):
            if (value := getattr(self, name)) not in choices:
                raise InputError(
                    f"optimizer.{name}={value!r}: is unknown. Use one of {', '.join(choices)}."
                )
        if self.decay_power != 1 and self.schedule != "polynomial":
            raise InputError(
                f"optimizer.decay_power={self.decay_power}: belongs to schedule=polynomial, and "
                f"optimizer.schedule={self.schedule}. Remove it."
            )
        for name in ("learning_rate", "eps", "max_grad_norm", "decay_power"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(
                    f"optimizer.{name}={value}: is not a positive number. Use more than 0."
                )
        for name in ("b1", "b2", "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(
                    f"optimizer.{name}={value}: is out of range. Use a number from 0, below 1."
                )
        if not 0 < self.layerwise_lr_decay <= 1:
            raise InputError(
                f"optimizer.layerwise_lr_decay={self.layerwise_lr_decay}: is out of range. Use a "
                "number above 0, up to 1."
            )
        if not 0 <= self.frozen_layers <= self.num_hidden_layers:
            raise InputError(
                f"optimizer.frozen_layers={self.frozen_layers}: the model has "
                f"{self.num_hidden_layers} blocks. Use 0 to {self.num_hidden_layers}."
            )
        self._check_durations()

    def _check_durations(self) -> None:
        if not 0 <= self.warmup_steps < self.total_steps:
            raise InputError(
                f"optimizer.warmup={self.warmup_steps}: is not from 0 to less than the schedule, "
                f"{self.total_steps}. Change it."
            )
        if self.cooldown_steps and self.schedule != "wsd":
            raise InputError(
                f"optimizer.cooldown={self.cooldown_steps}: belongs to schedule=wsd, and "
                f"optimizer.schedule={self.schedule}. Remove it."
            )
        after_warmup = self.total_steps - self.warmup_steps
        if self.cooldown_steps < 0 or self.warmup_steps + self.cooldown_steps > self.total_steps:
            raise InputError(
                f"optimizer.cooldown={self.cooldown_steps}: is not from 0 to the {after_warmup} "
                "after the warm-up. Change it."
            )
