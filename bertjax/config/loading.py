"""Loading of configurations: files with overrides, nested dictionaries, config.json.

`load_config` runs a configuration file (see `config_file`), applies overrides
(`--config.a.b=value`) and returns a frozen `Config`. An unknown field is an error.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from bertjax.config.compound_values import parse_init_layers
from bertjax.config.config import Config
from bertjax.config.config_file import override_fields, run_config_file
from bertjax.config.fields import build_dataclass, coerce, unknown_field_message
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from data_pipelines.errors import InputError
from data_pipelines.schedules import ScheduledFloat
from data_pipelines.schema import read_json_object

# Fields that define a model. A run that is initialized from it cannot change them; the other fields
# of BertConfig define how it is trained and computed.
MODEL_FIELDS = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
    "layer_norm_eps",
    "encoder",
    "direction",
    *LAYER_MIX_FIELDS,
    "freeze_features",
)

_SCHEMA = {"task?": str, "model?": {str: object}, "data?": {str: object}, "mesh?": {str: object}}
_SCHEMA |= {"optimizer?": {str: object}, "best_metric?": str}
_RUN_SCHEMA = {"step": int, "data_fingerprint": str, "corpus_descriptions?": {str: str}}
_RUN_SCHEMA |= {"logits_digest?": str}
_FIX = "Use a file that a run wrote."


def load_config(
    spec: str | Mapping[str, Any],
    overrides: Mapping[str, Any],
    data_fields: Mapping[str, Mapping[str, Any]],
    load_model_config: Callable[[str], BertConfig] | None = None,
) -> Config:
    """Load `NAME[:OPTIONS]` or `FILE[:OPTIONS]` and apply overrides.

    Args:
      spec: name or path of a configuration file with its options (see `config_file`), or the nested
        dictionaries of one.
      overrides: dotted field name -> new value, or its text as a Python literal.
      data_fields: task name -> its `data` fields with their defaults.
      load_model_config: returns the model of `init`. If the configuration has no
        `model.hidden_size`, it takes over that model's `MODEL_FIELDS`. Without `init`, a student
        takes over the vocabulary size of its teacher.

    Raises:
      InputError: an option, field or task is unknown, or a value has the wrong type.
    """
    raw = override_fields(run_config_file(spec) if isinstance(spec, str) else spec, overrides)
    model, init = raw.get("model", {}), raw.get("init")
    is_section = isinstance(model, Mapping)
    inherits = is_section and "hidden_size" not in model
    if load_model_config and inherits and init and isinstance(init, str):
        init_model = load_model_config(init)
        inherited = {name: getattr(init_model, name) for name in MODEL_FIELDS}
        if layers := coerce("init_layers", raw.get("init_layers", ""), str):
            inherited["num_hidden_layers"] = len(parse_init_layers(layers))
        raw["model"] = inherited | dict(model)
    distill = raw.get("distill")
    teacher = distill.get("teacher") if isinstance(distill, Mapping) else None
    if load_model_config and is_section and isinstance(teacher, str) and teacher and not init:
        raw["model"] = {"vocab_size": load_model_config(teacher).vocab_size} | dict(model)
    return parse_config(raw, data_fields)


def parse_config(raw: Mapping[str, Any], data_fields: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return a `Config` from nested dictionaries, as `Config.to_dict` returns them.

    Args:
      raw: field name -> value.
      data_fields: see `load_config`.

    Raises:
      InputError: see `load_config`.
    """
    raw = dict(raw)
    task = raw.get("task", Config.task)
    if not isinstance(task, str):
        raise InputError(f"task={task!r}: is of type {type(task).__name__}. Use str.")
    data = raw.pop("data", {})
    if not isinstance(data, Mapping):
        raise InputError(f"data={data!r}: is not a section. Set fields such as data.dir.")
    defaults = data_fields[task]
    values = {name: _plain(default) for name, default in defaults.items()}
    for name, value in data.items():
        if name not in defaults:
            known = [f"data.{field}" for field in defaults]
            raise InputError(unknown_field_message(f"data.{name}", value, known))
        values[name] = coerce(f"data.{name}", _plain(value), _kind(defaults[name]))
    config = build_dataclass(Config, raw)
    return dataclasses.replace(config, data=values)


def _plain(value: Any) -> Any:
    """Return a value of `data`, which may be a default, in its own type."""
    return float(value) if isinstance(value, ScheduledFloat) else value


def _kind(default: Any) -> Any:
    """Return the type of a field of `data`, which is that of its default."""
    if isinstance(default, ScheduledFloat):
        return float | str
    return int | None if default is None else type(default)


def read_config(path: epath.Path, data_fields: Mapping[str, Mapping[str, Any]]) -> Config:
    """Return the `Config` in the config.json of a run or checkpoint."""
    return parse_config(read_config_dict(path), data_fields)


def read_model_config(path: epath.Path) -> BertConfig:
    """Return the model in the config.json of a run or checkpoint of any task."""
    raw = read_config_dict(path)
    if not raw.get("model"):
        raise InputError(f"{path}: has no model. {_FIX}")
    model: BertConfig = build_dataclass(BertConfig, raw["model"], "model.", Config)
    return model


def read_config_dict(path: epath.Path) -> dict[str, Any]:
    """Return the config.json of a run or checkpoint, whose fields are not yet checked.

    Raises:
      InputError: the file is missing, or not what a run writes.
    """
    return read_json_object(path, _SCHEMA, _FIX)


def read_run_record(directory: epath.Path) -> dict[str, Any]:
    """Return the run.json of a workdir or checkpoint.

    Raises:
      InputError: the file is missing, or not what a run writes.
    """
    return read_json_object(directory / "run.json", _RUN_SCHEMA, _FIX)
