"""The typed configuration that a ConfigDict becomes, and all validation of it.

`load_config` runs a configuration file (see `config_file`), applies `--config.a.b=value` overrides
and gives a frozen `Config`; a field that no one reads is an error.
"""

import ast
import copy
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from etils import epath

from bertjax.config import durations
from bertjax.config.config_file import run_config_file
from bertjax.config.durations import SECONDS_PER_UNIT, Duration, is_percentage
from bertjax.config.fields import build_dataclass, coerce, unknown_field_message
from bertjax.config.optimizer_config import OptimizerConfig, OptimizerFields
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.paths import check_file
from data_pipelines.rampup import BatchSizeRampup

# What defines a model, and what goes on from it cannot change; the other fields of BertConfig say
# how it is trained and computed.
MODEL_FIELDS = [
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
]
MODEL_FIELDS += [
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
    "layer_norm_eps",
    "causal",
]
MODEL_FIELDS += LAYER_MIX_FIELDS
MIN_INTERVAL_STEPS = 10  # steps between what is to happen every so many percent of a run

# Fields that runs of older versions have and that opening their checkpoints does not need.


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; one may be -1: all that the others leave."""

    data: int = field(-1, "parts of each batch")
    fsdp: int = field(1, "further parts of it; parameters are divided over them too")
    tensor: int = field(1, "parts of each layer's matrices; divides the devices of a host")


@dataclasses.dataclass(frozen=True)
class OptimizerSection(OptimizerFields):
    """The optimiser and its learning rate."""

    warmup: Duration = field("1%", "how long the rate rises")
    decay_steps: Duration = field(
        0,
        "when the rate comes to 0; 0 for the end of the run; what is later leaves the rest to the "
        "run that goes on from this one's parameters",
    )
    cooldown: Duration = field(0, 'of schedule "wsd": how long the rate falls')


TENSORBOARD_SUMMARIES = {"examples", "parameters"}  # see `Config.tensorboard`


@dataclasses.dataclass(frozen=True)
class Config:
    """One run. `resolve` makes steps of the durations.

    The fields of `data` are those of the task; `dir` is always one.
    """

    task: str = field("pretraining", "one of those below, or the module that has one's own")
    seed: int = field(0, "decides initial parameters, data order, masks and dropout")
    data_seed: int | None = field(
        None, "decides the order of data, and masks, in place of `seed`; None for that"
    )
    steps: Duration = field(
        1_000_000,
        'updates of the parameters in the whole run; a time, such as "2 hours", ends it, and its '
        "schedule, by the clock",
    )
    batch_size: int = field(256, "rows a step, over all hosts, devices and accumulation")
    batch_size_rampup: int = field(
        1,
        "a power of 2: the first batches are so much smaller, and double, each size for as many "
        "steps",
    )
    max_seq_length: int = field(128, "pieces a row")
    packing: bool = field(True, "several examples a row")
    gradient_accumulation_steps: int = field(
        1, "parts that a batch is computed in, one after the other"
    )
    log_every: Duration = field(100, "between lines of metrics; the last step has one")
    checkpoint_every: Duration = field(
        1000,
        "between checkpoints; the last step has one; of a time it is asked whenever metrics are "
        "logged",
    )
    eval_every: Duration = field(1000, "between evaluations, as `checkpoint_every`")
    eval_batch_size: int = field(
        0,
        "rows of each batch of held-out data, over all hosts; 0 for those of a step, but no more "
        "than memory takes without a thought",
    )
    eval_batches: int = field(0, "batches of held-out data in an evaluation; 0 for all")
    max_to_keep: int = field(3, "newest checkpoints that are kept")
    keep_period: Duration = field(
        0,
        "the first checkpoint at or after each of its multiples is kept for ever; 0 for none; a "
        "time only where the clock ends the run",
    )
    best_metric: str = field(
        "", 'a score of evaluations; the best checkpoint by it is kept, and used; "" for none'
    )
    init: str = field(
        "",
        "a run, a checkpoint, or a directory of Hugging Face or TF1 that gives the first "
        'parameters; "" for random ones',
    )
    reinit_layers: int = field(
        0, "highest layers that begin at random all the same, and with them the pooler"
    )
    profile: str = field(
        "", '"START:STOP" writes a trace of these steps by the profiler; "" for none'
    )
    tensorboard: str = field(
        "",
        'what TensorBoard shows at each evaluation beside the scores: "examples" and what is said '
        'of them, "parameters" as histograms, or both, joined by "+"; "" for neither',
    )
    mesh: MeshConfig = MeshConfig()
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    optimizer: OptimizerSection = OptimizerSection()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "max_seq_length",
            "batch_size_rampup",
            "gradient_accumulation_steps",
            "max_to_keep",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("eval_batches", "eval_batch_size"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0.")
        if self.max_seq_length > self.model.max_position_embeddings:
            raise InputError(
                f"max_seq_length={self.max_seq_length} is more than model.max_position_embeddings="
                f"{self.model.max_position_embeddings}: shorten the one or raise the other."
            )
        if self.batch_size % self.gradient_accumulation_steps:
            raise InputError(
                f"batch_size={self.batch_size} is not a multiple of accumulation="
                f"{self.gradient_accumulation_steps}: change one of them."
            )
        if (
            self.batch_size_rampup & (self.batch_size_rampup - 1)
            or self.batch_size % self.batch_size_rampup
        ):
            raise InputError(
                f"batch_size_rampup={self.batch_size_rampup} must be a power of 2 that batch_size="
                f"{self.batch_size} is a multiple of."
            )
        if self.budget_seconds == 0:
            raise InputError(f"steps={self.steps!r} is no time at all: give the run some.")
        if self.batch_size_rampup > 1 and self.budget_seconds is not None:
            raise InputError(
                f"batch_size_rampup={self.batch_size_rampup} counts steps and steps={self.steps!r} is a "
                "time: give a number of steps."
            )
        if not 0 <= self.reinit_layers <= self.model.num_hidden_layers:
            raise InputError(
                f"reinit_layers={self.reinit_layers} and the model has {self.model.num_hidden_layers} "
                "layers: choose from 0 to all of them."
            )
        if self.reinit_layers and not self.init:
            raise InputError(
                f"reinit_layers={self.reinit_layers} leaves random what is random without init: "
                "name a model as init, or leave it out."
            )
        if self.profile:
            self.profile_steps()
        if unknown_parts := self.tensorboard_summaries - TENSORBOARD_SUMMARIES:
            raise InputError(
                f"tensorboard={self.tensorboard!r}: {min(unknown_parts)!r} is unknown, use "
                f"{'+'.join(sorted(TENSORBOARD_SUMMARIES))} or one of them."
            )

    @property
    def tensorboard_summaries(self) -> set[str]:
        """What of `TENSORBOARD_SUMMARIES` TensorBoard is to show."""
        return {*self.tensorboard.split("+")} - {""}

    def profile_steps(self) -> range:
        """Steps that a profiler trace covers; empty when `profile` is."""
        if not self.profile:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"profile={self.profile!r} must read START:STOP, such as 100:105.")
        return range(int(match[1]), int(match[2]))

    @property
    def data_order_seed(self) -> int:
        """What decides the order of data."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def rampup(self) -> BatchSizeRampup:
        """The rows of each step of a resolved configuration."""
        return BatchSizeRampup(self.batch_size, self.batch_size_rampup, self.total_steps or 1)

    @property
    def budget_seconds(self) -> float | None:
        """Seconds after which the run ends, where `steps` is a time; else None."""
        number, unit = durations.parse("steps", self.steps)
        return number * SECONDS_PER_UNIT[unit] if unit in SECONDS_PER_UNIT else None

    @property
    def total_steps(self) -> int | None:
        """Those of a resolved configuration; None where the clock ends the run."""
        return None if self.budget_seconds is not None else int(self.steps)

    def interval_seconds(self, name: str) -> float | None:
        """Those of `eval_every`, `checkpoint_every` or `keep_period`; None where it counts steps.

        A share is a time where the clock ends the run.
        """
        number, unit = durations.parse(name, getattr(self, name))
        if unit == "%" and self.budget_seconds:
            return number / 100 * self.budget_seconds
        return number * SECONDS_PER_UNIT[unit] if unit in SECONDS_PER_UNIT else None

    @property
    def has_epoch_durations(self) -> bool:
        """Whether a duration can only be resolved with data."""
        durations = [self.steps, self.log_every, self.checkpoint_every, self.eval_every]
        durations += [self.keep_period, self.optimizer.warmup, self.optimizer.cooldown]
        durations.append(self.optimizer.decay_steps)
        return any(isinstance(value, str) and "epoch" in value for value in durations)

    def resolve(self, sequences_per_epoch: int | None = None) -> "Config":
        """The same configuration with every duration that is no time as a number of steps.

        Args:
          sequences_per_epoch: rows of one pass over the training data; None where it is not known.
        Raises:
          InputError: a duration cannot be read, or comes to no step at all.
        """

        sizes = BatchSizeRampup(self.batch_size, self.batch_size_rampup).batch_sizes
        batch_size = Fraction(sum(sizes), len(sizes))

        def steps_of(name: str, value: Duration, total: int | None, least: int) -> int:
            found = durations.steps(name, value, batch_size, sequences_per_epoch, total)
            if found < least:
                raise InputError(f"{name}={value!r} comes to {found} steps; the least is {least}.")
            return found

        least = {"log_every": 1, "checkpoint_every": 1, "eval_every": 1, "keep_period": 0}
        timed = [
            "checkpoint_every",
            "eval_every",
            *(["keep_period"] if self.budget_seconds else []),
        ]
        for name in timed:
            seconds = self.interval_seconds(name)
            if seconds is not None:
                if not seconds and least[name]:
                    raise InputError(f"{name}={getattr(self, name)!r} is no time at all.")
                del least[name]
        optimizer, total = self.optimizer, None
        if self.budget_seconds is None:
            total = steps_of("steps", self.steps, None, 1)
            decay = optimizer.decay_steps or total
            optimizer = dataclasses.replace(
                optimizer,
                warmup=steps_of("optimizer.warmup", optimizer.warmup, total, 0),
                cooldown=steps_of("optimizer.cooldown", optimizer.cooldown, total, 0),
                decay_steps=steps_of("optimizer.decay_steps", decay, total, total),
            )
        every: dict[str, Any] = {}
        for name, low in least.items():
            value = getattr(self, name)
            found = steps_of(name, value, total, low)
            # A hundredth of a short run is no time at all.
            every[name] = (
                max(found, MIN_INTERVAL_STEPS) if found and is_percentage(value) else found
            )
        steps = self.steps if total is None else total
        resolved = dataclasses.replace(self, steps=steps, optimizer=optimizer, **every)
        resolved.optimizer_config()
        return resolved

    def optimizer_config(self) -> OptimizerConfig:
        """Return the optimizer of a resolved configuration.

        With a time budget its durations are fractions of the budget instead of steps.
        """
        fields = dataclasses.asdict(self.optimizer)
        parts = {name: fields.pop(name) for name in ("warmup", "cooldown", "decay_steps")}
        if self.budget_seconds is not None:
            parts = {
                name: durations.fraction_of_budget(f"optimizer.{name}", value, self.budget_seconds)
                for name, value in parts.items()
            }
            parts["decay_steps"] = whole = parts["decay_steps"] or 1.0
            if whole < 1:
                given = self.optimizer.decay_steps
                raise InputError(f"optimizer.decay_steps={given!r} ends before the run: give 100%.")
            if parts["warmup"] >= whole or parts["warmup"] + parts["cooldown"] > whole:
                raise InputError(
                    f"optimizer.warmup={self.optimizer.warmup!r} and optimizer.cooldown="
                    f"{self.optimizer.cooldown!r} do not fit steps={self.steps!r}: shorten them."
                )
        return OptimizerConfig(
            num_hidden_layers=self.model.num_hidden_layers,
            warmup_steps=parts["warmup"],
            cooldown_steps=parts["cooldown"],
            total_steps=parts["decay_steps"],
            **fields,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, for config.json."""
        return dataclasses.asdict(self)


def load_config(
    spec: str | Mapping[str, Any],
    overrides: Mapping[str, Any],
    data_fields: Mapping[str, Mapping[str, Any]],
    load_model_config: Callable[[str], BertConfig] | None = None,
) -> Config:
    """Reads `NAME[:OPTIONS]` or `FILE[:OPTIONS]` and applies overrides.

    Args:
      spec: name or path of a configuration, and its options after a colon; see `config_file`. Or
        what is in one.
      overrides: dotted field name -> new value, or text of it, as Python writes it.
      data_fields: task name -> the `data` fields that it has, with their defaults.
      load_model_config: gives the model that `init` names; where the configuration does not say how wide
        the model is, that one's `MODEL_FIELDS` are those of the configuration.
    Raises:
      InputError: an unknown option, field or task, or a value of the wrong type.
    """
    raw = run_config_file(spec) if isinstance(spec, str) else copy.deepcopy(dict(spec))
    for name, value in overrides.items():
        _set_field(raw, name, _parse_literal(value) if isinstance(value, str) else value)
    model, init = raw.get("model", {}), raw.get("init")
    named = isinstance(init, str) and init  # what else they may be is refused below
    if load_model_config and named and isinstance(model, Mapping) and "hidden_size" not in model:
        found = load_model_config(named)
        raw["model"] = {name: getattr(found, name) for name in MODEL_FIELDS} | dict(model)
    return parse_config(raw, data_fields)


def parse_config(raw: Mapping[str, Any], data_fields: Mapping[str, Mapping[str, Any]]) -> Config:
    """A `Config` from nested dictionaries, as `to_dict` gives them; see `load_config`."""
    raw = dict(raw)
    task = raw.get("task", Config.task)
    if not isinstance(task, str):
        raise InputError(f"task={task!r} is a {type(task).__name__}: it must be str.")
    given = raw.pop("data", {})
    if not isinstance(given, Mapping):
        raise InputError(f"data={given!r} must be a section with fields.")
    given = dict(given)
    defaults = data_fields[task]
    for name, value in given.items():
        if name not in defaults:
            raise InputError(
                unknown_field_message(f"data.{name}", [f"data.{known}" for known in defaults])
            )
        default = defaults[name]
        kind = int | None if default is None else type(default)
        given[name] = coerce(f"data.{name}", value, kind)
    config = build_dataclass(Config, raw)
    return dataclasses.replace(config, data={**defaults, **given})


def read_config(path: Any, data_fields: Mapping[str, Mapping[str, Any]]) -> Config:
    """The `Config` in a config.json that a run or checkpoint holds (an epath.Path)."""
    return parse_config(_read_json(path), data_fields)


def read_model_config(path: epath.Path) -> BertConfig:
    """The model in a config.json that a run or checkpoint holds, of whichever task."""
    model: BertConfig = build_dataclass(BertConfig, _read_json(path)["model"], "model.", Config)
    return model


def _read_json(path: epath.Path) -> dict[str, Any]:
    file = check_file(path)
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise InputError(f"{path} is not what a run wrote ({error}): use another one.") from error
    return raw


def _parse_literal(text: str) -> Any:
    """The value that a text stands for, itself where it is none of Python's."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)


def _set_field(raw: dict[str, Any], name: str, value: Any) -> None:
    *sections, field = name.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise InputError(f"{name}: {section} is a value, not a section.")
    raw[field] = value
