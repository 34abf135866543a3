"""The typed configuration of a run, its fields and their validation."""

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from bertjax.config import durations
from bertjax.config.distill_config import DistillConfig
from bertjax.config.durations import SECONDS_PER_UNIT, Duration
from bertjax.config.extraction_options import ExtractionOptions
from bertjax.config.init_fields import check_init_fields
from bertjax.config.optimizer_config import OptimizerConfig, OptimizerSection
from bertjax.model.bert_config import BertConfig
from bertjax.model.decoder.options import DecodingOptions
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.rampup import BatchSizeRampup

MIN_INTERVAL_STEPS = 10  # shortest interval that a percentage of a run stands for
TENSORBOARD_SUMMARIES = {"examples", "parameters"}  # see `Config.tensorboard`
_AT_LEAST_1 = (
    "batch_size",
    "max_seq_length",
    "batch_size_rampup",
    "gradient_accumulation_steps",
    "max_to_keep",
)
# Each would be allocated. `max_seq_length` is bounded by the positions of the model.
_AT_MOST = {
    "batch_size": 1 << 24,
    "batch_size_rampup": 1 << 24,
    "eval_batch_size": 1 << 24,
    "gradient_accumulation_steps": 1 << 20,
    "max_to_keep": 1 << 20,
}
_AT_LEAST_0 = (
    *("eval_batches", "eval_batch_size", "watchdog_minutes", "replay_every", "early_stopping"),
)
# Intervals, and the fewest steps of each.
_INTERVALS = {"log_every": 1, "checkpoint_every": 1, "eval_every": 1, "keep_period": 0}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; one size may be -1 for the remaining devices."""

    data: int = field(-1, "data parallelism: shards of each batch")
    fsdp: int = field(
        1, "fully sharded data parallelism: shards of each batch and of the parameters"
    )
    tensor: int = field(
        1, "tensor parallelism: shards of each layer's matrices; divides the devices of a process"
    )


@dataclasses.dataclass(frozen=True)
class Config:
    """One run; `resolve` converts its durations to steps.

    The fields of `data` are those of the task; `dir` is always one.

    Raises:
      InputError: a value is out of its range, or contradicts another one.
    """

    task: str = field("pretraining", "a task of those below, or the module of a custom one")
    seed: int = field(0, "seed of initial parameters, data order, masking and dropout")
    data_seed: int | None = field(
        None, "seed of data order and masking, in place of `seed`; None for `seed`"
    )
    steps: Duration = field(
        1_000_000,
        'length of the run, in optimizer steps; in pre-training with a time such as "2 hours" '
        "the run and its learning rate schedule end by the clock",
    )
    batch_size: int = field(
        256,
        "global batch size of a step, over all processes, devices and microbatches; sequences in "
        "pre-training, examples in fine-tuning",
    )
    batch_size_rampup: int = field(
        1,
        "batch size ramp-up of pre-training, a power of 2: the first batches are smaller by this "
        "factor and double until `batch_size`; each size lasts for as many steps",
    )
    max_seq_length: int = field(128, "tokens of a sequence")
    packing: bool = field(True, "packs several examples into a sequence")
    gradient_accumulation_steps: int = field(
        1, "microbatches that a batch is computed in, one after the other"
    )
    log_every: Duration = field(100, "interval of logged metrics; the last step is logged too")
    checkpoint_every: Duration = field(
        1000,
        "interval of checkpoints; the last step is saved too; a time is checked when metrics are "
        "logged",
    )
    eval_every: Duration = field(1000, "interval of evaluations, as `checkpoint_every`")
    eval_batch_size: int = field(
        0,
        "sequences of a global eval batch; 0 for `batch_size`, reduced to a default that fits "
        "memory",
    )
    eval_batches: int = field(0, "eval batches of an evaluation of pre-training; 0 for all")
    max_to_keep: int = field(3, "number of newest checkpoints that are kept")
    keep_period: Duration = field(
        0,
        "the first checkpoint at or after each multiple of it is kept forever; 0 for none; a time "
        "only in a run with a time budget",
    )
    best_metric: str = field(
        "", 'a score of evaluations; the best checkpoint by it is kept and used; "" for none'
    )
    greater_is_better: bool | None = field(
        None,
        "direction of `best_metric`; None for that of its name: less is better if it ends in loss, "
        "perplexity, mse, mae, error, error_rate, distance, wer or cer",
    )
    early_stopping: int = field(
        0, "evaluations without a better `best_metric` after which the run ends; 0 for never"
    )
    init: str = field(
        "",
        "a run, a checkpoint, also the prefix of one of TF1, or a directory of Hugging Face or TF1 "
        'to initialize parameters from; "" for random ones',
    )
    init_layers: str = field(
        "",
        'blocks of `init` that the model takes, from 0, such as "0,2,4"; their number is '
        '`model.num_hidden_layers`; "" for all',
    )
    init_positions: str = field(
        "",
        "extension of the position embeddings of `init` to more of "
        '`model.max_position_embeddings`: "copy" repeats the table, as in Longformer, '
        '"interpolate" is linear between its ends; "" for an equal number',
    )
    reinit_layers: int = field(
        0, "number of highest layers, with the pooler, that stay random in spite of `init`"
    )
    watchdog_minutes: float = field(
        30.0,
        "minutes without a finished step, eval batch, save or compilation after which a command "
        "prints its threads and exits with 75; 0 for never",
    )
    replay_every: int = field(
        0,
        "interval of steps whose gradients are computed twice and compared, to find devices that "
        "compute wrong numbers; 0 for never; GPUs need XLA_FLAGS=--xla_gpu_deterministic_ops=true",
    )
    sdc_checker: bool = field(
        False, "compiles for TPUs with xla_tpu_enable_sdc_checker, which repeats operations"
    )
    profile: str = field("", '"START:STOP" writes a profiler trace of these steps; "" for none')
    tensorboard: str = field(
        "",
        'summaries that TensorBoard shows after an evaluation: "examples" with predictions, '
        '"parameters" as histograms, or both, joined by "+"; "" for none',
    )
    loss: str = field(
        "",
        "MODULE:FUNCTION that replaces the task's loss: takes logits, labels, weights, returns the "
        'sums of losses and weights, as `bertjax.model.losses.cross_entropy` does; "" for none',
    )
    loss_weights: str = field(
        "", 'factors of the training losses of heads, such as "mlm=1,nsp=0.5"; others have 1'
    )
    metrics: str = field(
        "",
        "MODULE:FUNCTION that adds scores: takes the `Evaluation` of an eval set, with its "
        'predictions, returns names and numbers; "" for none',
    )
    mesh: MeshConfig = MeshConfig()
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    optimizer: OptimizerSection = dataclasses.field(default_factory=OptimizerSection)
    distill: DistillConfig = dataclasses.field(default_factory=DistillConfig)
    decoding: DecodingOptions = dataclasses.field(default_factory=DecodingOptions)
    extraction: ExtractionOptions = dataclasses.field(default_factory=ExtractionOptions)
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_batch()
        if self.budget_seconds == 0:
            raise InputError(f"steps={self.steps!r}: is a time budget of 0. Use more.")
        check_init_fields(
            self.init,
            self.init_layers,
            self.init_positions,
            self.reinit_layers,
            self.model.num_hidden_layers,
        )
        self.profile_steps()
        if self.greater_is_better is not None and not self.best_metric:
            raise InputError(
                f"greater_is_better={self.greater_is_better}: of no score. Set best_metric."
            )
        if unknown := self.tensorboard_summaries - TENSORBOARD_SUMMARIES:
            raise InputError(
                f"tensorboard={self.tensorboard!r}: {min(unknown)!r} is unknown. Use "
                f"{'+'.join(sorted(TENSORBOARD_SUMMARIES))}, or one of them."
            )

    def _check_ranges(self) -> None:
        for names, minimum in ((_AT_LEAST_1, 1), (_AT_LEAST_0, 0)):
            for name in names:
                if (value := getattr(self, name)) < minimum:
                    raise InputError(f"{name}={value}: is too small. Use at least {minimum}.")
        for name, largest in _AT_MOST.items():
            if (value := getattr(self, name)) > largest:
                raise InputError(f"{name}={value}: is too large. Use at most {largest}.")
        for name in ("seed", "data_seed"):
            if not 0 <= (getattr(self, name) or 0) < 1 << 32:  # uint32 holds it on devices
                raise InputError(
                    f"{name}={getattr(self, name)}: out of range. Use 0 to 4294967295."
                )

    def _check_batch(self) -> None:
        max_positions = self.model.max_position_embeddings
        if self.max_seq_length > max_positions:
            raise InputError(
                f"max_seq_length={self.max_seq_length}: is more than "
                f"model.max_position_embeddings={max_positions}. Reduce the one or raise the other."
            )
        if self.batch_size % self.gradient_accumulation_steps:
            raise InputError(
                f"batch_size={self.batch_size}: is not a multiple of gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}. Change one of them."
            )
        rampup = self.batch_size_rampup
        if rampup & (rampup - 1) or self.batch_size % rampup:
            raise InputError(
                f"batch_size_rampup={rampup}: is not a power of 2 that divides batch_size="
                f"{self.batch_size}. Change one of them."
            )
        if rampup > 1 and self.budget_seconds is not None:
            raise InputError(
                f"batch_size_rampup={rampup}: needs a number of steps, and steps="
                f"{self.steps!r} is a time. Change one of them."
            )

    @property
    def tensorboard_summaries(self) -> set[str]:
        """The elements of `TENSORBOARD_SUMMARIES` that are enabled."""
        return {*self.tensorboard.split("+")} - {""}

    def profile_steps(self) -> range:
        """Return the steps of the profiler trace; empty without `profile`."""
        if not self.profile:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(
                f"profile={self.profile!r}: is not START:STOP. Write two steps, such as 100:105."
            )
        return range(int(match[1]), int(match[2]))

    @property
    def data_order_seed(self) -> int:
        """The seed of data order and masking."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def rampup(self) -> BatchSizeRampup:
        """The batch size of each step of a resolved configuration."""
        return BatchSizeRampup(self.batch_size, self.batch_size_rampup, self.total_steps or 1)

    @property
    def budget_seconds(self) -> float | None:
        """The time budget in seconds; None if `steps` is not a time."""
        number, unit = durations.parse_duration("steps", self.steps)
        return number * SECONDS_PER_UNIT[unit] if unit in SECONDS_PER_UNIT else None

    @property
    def total_steps(self) -> int | None:
        """The steps of a resolved configuration; None with a time budget."""
        return None if self.budget_seconds is not None else int(self.steps)

    def interval_seconds(self, name: str) -> float | None:
        """Return an interval in seconds; None if it counts steps.

        With a time budget a percentage is a time.

        Args:
          name: `eval_every`, `checkpoint_every` or `keep_period`.
        """
        number, unit = durations.parse_duration(name, getattr(self, name))
        if unit == "%" and self.budget_seconds:
            return number / 100 * self.budget_seconds
        return number * SECONDS_PER_UNIT[unit] if unit in SECONDS_PER_UNIT else None

    @property
    def has_epoch_durations(self) -> bool:
        """True if data are needed to resolve the durations."""
        values = [self.steps, *(getattr(self, name) for name in _INTERVALS)]
        values += [self.optimizer.warmup, self.optimizer.decay_steps, self.optimizer.cooldown]
        return any(isinstance(value, str) and "epoch" in value for value in values)

    def resolve(self, examples_per_epoch: int | None = None) -> "Config":
        """Return the configuration with every duration, except times, as a number of steps.

        Args:
          examples_per_epoch: examples of a pass over the training data (sequences in pre-training);
            None if unknown.

        Raises:
          InputError: a duration is invalid, or too short.
        """
        sizes = BatchSizeRampup(self.batch_size, self.batch_size_rampup).batch_sizes
        mean_batch_size = Fraction(sum(sizes), len(sizes))

        def to_steps(name: str, value: Duration, total: int | None, minimum: int) -> int:
            steps = durations.to_steps(name, value, mean_batch_size, examples_per_epoch, total)
            if steps < minimum:
                raise InputError(f"{name}={value!r}: is {steps} steps. Use at least {minimum}.")
            if steps > durations.MAX_STEPS:
                raise InputError(f"{name}={value!r}: is {steps} steps. Use a shorter one.")
            return steps

        optimizer, total = self.optimizer, None
        if self.budget_seconds is None:
            total = to_steps("steps", self.steps, None, 1)
            if self.profile and self.profile_steps().start >= total:
                raise InputError(
                    f"profile={self.profile!r}: the run has {total} steps. Name earlier ones."
                )
            decay = optimizer.decay_steps or total
            warmup = to_steps("optimizer.warmup", optimizer.warmup, total, 0)
            percent, unit = durations.parse_duration("optimizer.warmup", optimizer.warmup)
            if unit == "%" and percent < 100:  # 10% of a run of one step, rounded up, is all of it
                warmup = min(warmup, total - 1)
            optimizer = dataclasses.replace(
                optimizer,
                warmup=warmup,
                cooldown=to_steps("optimizer.cooldown", optimizer.cooldown, total, 0),
                decay_steps=to_steps("optimizer.decay_steps", decay, total, total),
            )
        may_be_times = ["checkpoint_every", "eval_every"]
        may_be_times += ["keep_period"] if self.budget_seconds else []
        intervals: dict[str, Any] = {}
        for name, minimum in _INTERVALS.items():
            value = getattr(self, name)
            if name in may_be_times and (seconds := self.interval_seconds(name)) is not None:
                if minimum and not seconds:
                    raise InputError(f"{name}={value!r}: is 0. Use more.")
                continue
            steps = to_steps(name, value, total, minimum)
            _, unit = durations.parse_duration(name, value)
            if steps and unit == "%":  # 1% of a short run may be less than a step
                steps = max(steps, MIN_INTERVAL_STEPS)
            intervals[name] = steps
        resolved = dataclasses.replace(
            self, steps=self.steps if total is None else total, optimizer=optimizer, **intervals
        )
        resolved.optimizer_config()
        return resolved

    def optimizer_config(self) -> OptimizerConfig:
        """Return the optimizer of a resolved configuration.

        With a time budget its durations are fractions of the budget instead of steps.
        """
        section = self.optimizer
        fields = dataclasses.asdict(section)
        parts = {name: fields.pop(name) for name in ("warmup", "cooldown", "decay_steps")}
        if self.budget_seconds is not None:
            parts = {
                name: durations.fraction_of_budget(f"optimizer.{name}", value, self.budget_seconds)
                for name, value in parts.items()
            }
            parts["decay_steps"] = parts["decay_steps"] or 1.0
            if parts["decay_steps"] < 1:
                raise InputError(
                    f"optimizer.decay_steps={section.decay_steps!r}: ends before the run. Use 100%."
                )
            if (
                parts["warmup"] >= parts["decay_steps"]
                or parts["warmup"] + parts["cooldown"] > parts["decay_steps"]
            ):
                raise InputError(
                    f"optimizer.warmup={section.warmup!r}, optimizer.cooldown="
                    f"{section.cooldown!r}: do not fit steps={self.steps!r}. Shorten them."
                )
        return OptimizerConfig(
            num_hidden_layers=self.model.num_hidden_layers,
            warmup_steps=parts["warmup"],
            cooldown_steps=parts["cooldown"],
            total_steps=parts["decay_steps"],
            **fields,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries, as config.json holds them."""
        return dataclasses.asdict(self)
