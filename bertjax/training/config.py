"""The typed configuration that a ConfigDict becomes, and all validation of it.

`load_config` runs a configuration file (see `config_file`), applies `--config.a.b=value` overrides
and gives a frozen `Config`; a field that no one reads is an error.
"""

import ast
import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from bertjax.model.encoder import BertConfig
from bertjax.training.config_file import run_file
from bertjax.training.optimizer import OptimizerConfig
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

# A number of steps, or text: "3 epochs", "5000 examples", "10%" (of all steps), "200 steps"; for
# checkpoints also "30 minutes", "2 hours".
Duration = int | str

# What defines a model, and what goes on from it cannot change; the other fields of BertConfig say
# how it is trained and computed.
MODEL_FIELDS = ["vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size"]
MODEL_FIELDS += ["max_positions", "type_vocab_size", "activation", "layer_norm_eps", "causal"]
LEAST_EVERY = 10  # steps between what is to happen every so many percent of a run

# Fields that runs of older versions have and that opening their checkpoints does not need.
RETIRED = {"model.dropout_rng"}
_UNITS = "%|percent|steps?|epochs?|examples?|minutes?|hours?"
_DURATION = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({_UNITS})\s*")
_SECONDS = {"minute": 60, "hour": 3600}


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; one axis may be -1: all devices the others leave."""

    data: int = -1
    fsdp: int = 1
    model: int = 1


@dataclasses.dataclass(frozen=True)
class OptimizerSection:
    """The `optimizer` fields of a configuration; see `bertjax.training.optimizer.OptimizerConfig`.

    `decay_steps` is the step at which the rate comes to 0; 0 stands for the run's last. A later
    one leaves the rest of the decay to the run that goes on from this one's parameters.
    """

    name: str = "adamw"
    learning_rate: float = 1e-4
    warmup: Duration = "1%"
    decay_steps: Duration = 0
    schedule: str = "linear"
    weight_decay: float = 0.01
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    clip_norm: float = 1.0
    layer_decay: float = 1.0
    frozen_layers: int = 0


@dataclasses.dataclass(frozen=True)
class Config:
    """One run. Durations (steps, *_every, warmup) are resolved by `resolve`.

    Attributes:
      task: name in `bertjax.tasks.registry`.
      seed: decides initial parameters, data order, masks and dropout.
      data_seed: decides the order of data, and masks, in its place where it is given.
      steps: updates of the parameters in the whole run.
      batch_size: rows a step, over all hosts, devices and accumulation.
      seq_len: pieces a row, T.
      packing: several pairs a row.
      accumulation: parts that each batch is computed in, one after the other.
      log_every, checkpoint_every, eval_every: how often each happens, besides at the last step; in
        percent, at most every 10 steps (`LEAST_EVERY`). Whether it is time for a checkpoint, where
        that is minutes or hours, is asked whenever metrics are logged.
      eval_batch_size: rows of each batch of held-out data, over all hosts; 0 for those of a step,
        but no more than memory takes without a thought.
      eval_batches: batches of held-out data in an evaluation; 0 for all.
      keep: newest checkpoints that are kept.
      keep_every: checkpoints at its multiples are kept for ever; 0 for none.
      keep_best: a score of evaluations; the best checkpoint by it is kept, and used; "" for none.
      init: a workdir or checkpoint that gives the first parameters; "" for random ones.
      reinit_layers: highest layers that stay random all the same, and with them the pooler.
      profile: "START:STOP" writes a profiler trace of these steps; "" for none.
      data: fields that the task defines; `dir` is always one.
    """

    task: str = "pretrain"
    seed: int = 0
    data_seed: int | None = None
    steps: Duration = 1_000_000
    batch_size: int = 256
    seq_len: int = 128
    packing: bool = True
    accumulation: int = 1
    log_every: Duration = 100
    checkpoint_every: Duration = 1000
    eval_every: Duration = 1000
    eval_batch_size: int = 0
    eval_batches: int = 0
    keep: int = 3
    keep_every: Duration = 0
    keep_best: str = ""
    init: str = ""
    reinit_layers: int = 0
    profile: str = ""
    mesh: MeshConfig = MeshConfig()
    model: BertConfig = dataclasses.field(default_factory=BertConfig)
    optimizer: OptimizerSection = OptimizerSection()
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_len", "accumulation", "keep"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("eval_batches", "eval_batch_size"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0.")
        if self.seq_len > self.model.max_positions:
            raise InputError(
                f"seq_len={self.seq_len} is more than model.max_positions="
                f"{self.model.max_positions}: shorten the one or raise the other."
            )
        if self.batch_size % self.accumulation:
            raise InputError(
                f"batch_size={self.batch_size} is not a multiple of accumulation="
                f"{self.accumulation}: change one of them."
            )
        if not 0 <= self.reinit_layers <= self.model.num_layers:
            raise InputError(
                f"reinit_layers={self.reinit_layers} and the model has {self.model.num_layers} "
                "layers: choose from 0 to all of them."
            )
        if self.reinit_layers and not self.init:
            raise InputError(
                f"reinit_layers={self.reinit_layers} leaves random what is random without init: "
                "name a model as init, or leave it out."
            )
        if self.profile:
            self.profile_steps()

    def profile_steps(self) -> range:
        """Steps that a profiler trace covers; empty when `profile` is."""
        if not self.profile:
            return range(0)
        match = re.fullmatch(r"(\d+):(\d+)", self.profile)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"profile={self.profile!r} must read START:STOP, such as 100:105.")
        return range(int(match[1]), int(match[2]))

    @property
    def order_seed(self) -> int:
        """What decides the order of data."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def checkpoint_seconds(self) -> float | None:
        """From one checkpoint to the next where `checkpoint_every` is a time; else None."""
        number, unit = _parse("checkpoint_every", self.checkpoint_every)
        return number * _SECONDS[unit] if unit in _SECONDS else None

    @property
    def counts_epochs(self) -> bool:
        """Whether a duration can only be resolved with data."""
        durations = [self.steps, self.log_every, self.checkpoint_every, self.eval_every]
        durations += [self.keep_every, self.optimizer.warmup, self.optimizer.decay_steps]
        return any(isinstance(value, str) and "epoch" in value for value in durations)

    def resolve(self, rows_per_epoch: int | None = None) -> "Config":
        """The same configuration with every duration that is no time as a number of steps.

        Args:
          rows_per_epoch: rows of one pass over the training data; None where it is not known.
        Raises:
          InputError: a duration cannot be read, or comes to no step at all.
        """

        def steps_of(name: str, value: Duration, total: int | None, least: int) -> int:
            steps = _steps(name, value, self.batch_size, rows_per_epoch, total)
            if steps < least:
                raise InputError(f"{name}={value!r} comes to {steps} steps; the least is {least}.")
            return steps

        total = steps_of("steps", self.steps, None, 1)
        warmup = steps_of("optimizer.warmup", self.optimizer.warmup, total, 0)
        decay = steps_of("optimizer.decay_steps", self.optimizer.decay_steps or total, total, total)
        least = {"log_every": 1, "checkpoint_every": 1, "eval_every": 1, "keep_every": 0}
        if self.checkpoint_seconds is not None:
            if not self.checkpoint_seconds:
                raise InputError(f"checkpoint_every={self.checkpoint_every!r} is no time at all.")
            del least["checkpoint_every"]
        every: dict[str, Any] = {}
        for name, low in least.items():
            value = getattr(self, name)
            steps = steps_of(name, value, total, low)
            # A hundredth of a short run is no time at all.
            every[name] = max(steps, LEAST_EVERY) if steps and _is_share(value) else steps
        optimizer = dataclasses.replace(self.optimizer, warmup=warmup, decay_steps=decay)
        resolved = dataclasses.replace(self, steps=total, optimizer=optimizer, **every)
        resolved.optimizer_config()
        return resolved

    def optimizer_config(self) -> OptimizerConfig:
        """The optimizer of a resolved configuration."""
        fields = dataclasses.asdict(self.optimizer)
        warmup, total = int(fields.pop("warmup")), int(fields.pop("decay_steps"))
        fields |= {"warmup_steps": warmup, "total_steps": total}
        return OptimizerConfig(num_layers=self.model.num_layers, **fields)

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, for config.json."""
        return dataclasses.asdict(self)


def _steps(
    name: str, value: Duration, batch_size: int, rows_per_epoch: int | None, total: int | None
) -> int:
    number, unit = _parse(name, value)
    if unit in _SECONDS:
        raise InputError(
            f"{name}={value!r} is a time, as checkpoint_every alone may be: count steps."
        )
    if unit == "step":
        return int(number)
    if unit == "example":
        return math.ceil(number / batch_size)
    if unit == "epoch":
        if rows_per_epoch is None:
            raise InputError(f"{name}={value!r} counts epochs, which needs data: set data.dir.")
        return math.ceil(number * rows_per_epoch / batch_size)
    if total is None:
        raise InputError(f"{name}={value!r} cannot be a share of itself: give steps or epochs.")
    return math.ceil(number / 100 * total)


def _parse(name: str, value: Duration) -> tuple[float, str]:
    """A duration as a number of a unit."""
    if isinstance(value, int):
        return value, "step"
    match = _DURATION.fullmatch(value)
    if not match:
        raise InputError(
            f"{name}={value!r} is no duration: write 200, '3 epochs', '5000 examples' or '10%'."
        )
    return float(match[1]), match[2].rstrip("s")


def _is_share(value: Duration) -> bool:
    """Whether a duration that can be read is in percent."""
    return isinstance(value, str) and ("%" in value or "percent" in value)


def load_config(
    spec: str,
    overrides: Mapping[str, str],
    data_fields: Mapping[str, Mapping[str, Any]],
    model_of: Callable[[str], BertConfig] | None = None,
) -> Config:
    """Reads `FILE[:OPTIONS]` and applies overrides.

    Args:
      spec: path of a configuration file, and its options after a colon; see `config_file`.
      overrides: dotted field name -> text of the new value.
      data_fields: task name -> the `data` fields that it has, with their defaults.
      model_of: gives the model that `init` names; where the configuration does not say how wide
        the model is, that one's `MODEL_FIELDS` are those of the configuration.
    Raises:
      InputError: an unknown option, field or task, or a value of the wrong type.
    """
    raw = run_file(spec)
    for name, text in overrides.items():
        _override(raw, name, text)
    model, init = raw.get("model", {}), raw.get("init")
    named = isinstance(init, str) and init  # what else they may be is refused below
    if model_of and named and isinstance(model, Mapping) and "hidden_size" not in model:
        found = model_of(named)
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
            raise InputError(_unknown(f"data.{name}", [f"data.{known}" for known in defaults]))
        given[name] = _coerce(f"data.{name}", value, _type_of_default(defaults[name]))
    config = _build(Config, raw, "")
    return dataclasses.replace(config, data={**defaults, **given})


def read_config(path: Any, data_fields: Mapping[str, Mapping[str, Any]]) -> Config:
    """The `Config` in a config.json that a run or checkpoint holds (an epath.Path)."""
    return parse_config(_read_json(path), data_fields)


def read_model_config(path: epath.Path) -> BertConfig:
    """The model in a config.json that a run or checkpoint holds, of whichever task."""
    model: BertConfig = _build(BertConfig, _read_json(path)["model"], "model.")
    return model


def _read_json(path: epath.Path) -> dict[str, Any]:
    file = check_file(path)
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
        for name in RETIRED:
            section, _, field = name.partition(".")
            raw[section].pop(field, None)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not what a run wrote ({error}): use another one.") from error
    return raw


def _override(raw: dict[str, Any], name: str, text: str) -> None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"true": True, "false": False}.get(text.lower(), text)
    *sections, field = name.split(".")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise InputError(f"{name}: {section} is a value, not a section.")
    raw[field] = value


def _build(cls: type, raw: Mapping[str, Any], prefix: str) -> Any:
    """An instance of the dataclass from a mapping, nested dataclasses included."""
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in raw.items():
        if name not in hints:
            raise InputError(_unknown(prefix + name, _all_fields(Config)))
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise InputError(f"{prefix}{name}={value!r} must be a section with fields.")
            values[name] = _build(typing.cast(type, hint), value, f"{prefix}{name}.")
        else:
            values[name] = _coerce(prefix + name, value, hint)
    return cls(**values)


def _unknown(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"{name} is no field of the configuration: did you mean {nearest[0]}?"


def _all_fields(cls: type, prefix: str = "") -> list[str]:
    names = []
    for name, hint in typing.get_type_hints(cls).items():
        names.append(prefix + name)
        if dataclasses.is_dataclass(hint):
            names += _all_fields(typing.cast(type, hint), f"{prefix}{name}.")
    return names


def _type_of_default(default: Any) -> Any:
    return int | None if default is None else type(default)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """The value as the type that the field has; integers serve where floats are wanted."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in allowed and isinstance(value, float) and value.is_integer():
        return int(value)
    fits = any(type(value) is kind for kind in allowed)  # bool is no int here
    if not fits:
        kinds = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        raise InputError(f"{name}={value!r} is a {type(value).__name__}: it must be {kinds}.")
    return value
