"""Configuration files: Python with `get_config`, whose parameters are its options, JSON or YAML.

    def get_config(model: str = "base", phase: int = 1, smoke: bool = False) -> ConfigDict:

`FILE:model=tiny,smoke` calls it with `model="tiny", smoke=True`. An option has the type of the
parameter's default: bool, int, float or str. A name alone stands for True. The function returns an
`ml_collections.ConfigDict` or a dictionary. It rejects a value by a ValueError, whose message is
printed. The file may be remote. The name of a built-in configuration, such as `pretraining`,
stands for its file. A file in JSON, such as the config.json of a run, or in YAML has the fields
themselves and no options.
"""

import copy
import difflib
import functools
import inspect
import json
import pathlib
import re
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from etils import epath

from bertjax.config.fields import parse_literal, spelled
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

_SPEC = re.compile(r"((?:\w+://)?[^:]*):?(.*)", re.DOTALL)  # the colon of gs:// is part of FILE
_FIELD_FILES = (".json", ".yaml", ".yml")
_CONFIGS_OF_TASKS = {"question_answering": "squad"}  # of other names
_TYPES = (bool, int, float, str)


def builtin_configs() -> dict[str, epath.Path]:
    """Return the built-in configuration files by name."""
    package = pathlib.Path(__file__).parent.parent
    installed = package / "experiments"
    folder = installed if installed.is_dir() else package.parent / "experiments"  # of a clone
    return {file.stem: epath.Path(file) for file in sorted(folder.glob("*.py"))}


def find_config_file(path: str) -> epath.Path:
    """Return the file that a path or the name of a built-in configuration stands for.

    Raises:
      InputError: there is no such file.
    """
    builtin = builtin_configs()
    if path in builtin:
        return builtin[path]
    file = epath.Path(path)
    if re.fullmatch(r"[\w-]+", path) and not file.exists():
        nearest = difflib.get_close_matches(path, builtin, n=1, cutoff=0.0)[0]
        nearest = _CONFIGS_OF_TASKS.get(path, nearest)
        raise InputError(
            f"--config={path}: there is no such configuration. Did you mean {nearest}? "
            "`bertjax config` lists all."
        )
    if file.stem in builtin and not file.exists():
        raise InputError(
            f"{path}: there is no such file. Name one that exists, or write {file.stem} for the "
            "built-in configuration."
        )
    if check_file(file).suffix not in (".py", *_FIELD_FILES):
        raise InputError(
            f"{path}: is no configuration. Name a file that ends in .py, {', '.join(_FIELD_FILES)}."
        )
    return file


def run_config_file(spec: str) -> dict[str, Any]:
    """Return the result of `get_config` of `FILE[:OPTIONS]`, as nested dictionaries.

    The fields of a file in JSON or YAML are returned as they are.

    Raises:
      InputError: the file does not exist or is not a configuration, or an option is invalid.
    """
    path, text = _SPEC.fullmatch(spec).groups()  # type: ignore[union-attr] # anything matches
    file = find_config_file(path)
    if file.suffix in _FIELD_FILES:
        if text:
            raise InputError(
                f"{spec}: only Python files have options. Set a field by --config.FIELD=VALUE."
            )
        return _read_fields(file)
    module = types.ModuleType("bertjax_configuration")
    module.__file__ = str(file)
    try:
        # Not imported: Python's import reads local files only.
        code = compile(file.read_bytes(), path, "exec")
    except SyntaxError as error:
        raise InputError(f"{path}:{error.lineno}: is not Python ({error.msg}). Fix it.") from error
    exec(code, module.__dict__)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path}: has no get_config. Add one that returns a ConfigDict.")
    options = _parse_options(path, text, inspect.signature(module.get_config).parameters)
    try:
        config = module.get_config(**options)
    except ValueError as error:  # the error for invalid options, see the module docstring
        raise InputError(str(error)) from error
    return config.to_dict() if isinstance(config, ml_collections.ConfigDict) else dict(config)


def _read_fields(file: epath.Path) -> dict[str, Any]:
    """Return the fields in a file in JSON or YAML."""
    import yaml

    fix = "Write fields and sections, as in the config.json of a run."
    try:
        text = file.read_text()
        if file.suffix == ".json":
            fields = json.loads(text, object_pairs_hook=_unique)
        else:
            fields = yaml.load(text, _yaml_loader())
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8. {fix}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}: is not JSON ({error.msg}). {fix}") from error
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{file}: is not YAML ({problem}). {fix}") from error
    except _RepeatedKeyError as error:
        raise InputError(f"{file}{error} is there twice in a section. Remove one.") from error
    if not isinstance(fields, dict) or not _has_text_keys(fields):
        raise InputError(f"{file}: has no fields. {fix}")
    return fields


def _has_text_keys(value: Any) -> bool:
    """Return whether the keys of nested dictionaries are texts."""
    if not isinstance(value, dict):
        return True
    return all(isinstance(key, str) and _has_text_keys(item) for key, item in value.items())


class _RepeatedKeyError(Exception):
    """A key is twice in one object, of which parsers would keep the last value silently."""


def _unique(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the pairs of an object as a dictionary."""
    fields = dict(pairs)
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise _RepeatedKeyError(f": field {key}")
    return fields


@functools.cache
def _yaml_loader() -> Any:
    """Return a loader of plain data that reads numbers as YAML 1.2 does.

    1e-4 is a number. 10:15 and 2026-11-27 are texts, and 0100 is a hundred.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            names = set[str]()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if (name := str(key.value)) in names:
                    raise _RepeatedKeyError(f":{key.start_mark.line + 1}: field {name}")
                names.add(name)
            return node

    tags = [f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")]
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in tags]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    decimal = r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
    patterns = (r"[-+]?\d+(_\d+)*", rf"{decimal}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
    for tag, pattern in zip(tags, patterns, strict=False):
        Loader.add_implicit_resolver(tag, re.compile(rf"(?:{pattern})$"), list("-+.0123456789"))
    Loader.add_constructor(tags[0], lambda _, node: spelled(int(node.value), node.value))
    return Loader


def override_fields(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries of fields, some of which are replaced or added.

    Args:
      fields: as `run_config_file` returns them.
      overrides: dotted field name -> new value, or its text as a Python literal.

    Raises:
      InputError: a section of a field's name is a value.
    """
    result = copy.deepcopy(dict(fields))
    for path, value in overrides.items():
        *names, field = path.split(".")
        section = result
        for name in names:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InputError(f"{path}={value!r}: {name} is a value, not a section. Remove it.")
        section[field] = parse_literal(value) if isinstance(value, str) else value
    return result


def _parse_options(
    path: str, text: str, parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the options of `KEY=VALUE,KEY=VALUE,FLAG`, in the types of the defaults."""
    for name, parameter in parameters.items():
        if list(parameters) == ["arg"] or type(parameter.default) not in _TYPES:
            raise InputError(
                f"{path}: parameter {name!r} of get_config has no usable default. Give each option "
                'one, as in get_config(model="base", phase=1, smoke=False).'
            )
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if name not in parameters:
            nearest = difflib.get_close_matches(name, parameters, n=1, cutoff=0.0)
            fix = f"Did you mean {nearest[0]}?" if nearest else "Remove it."
            raise InputError(f"{item}: is not an option of {path}. {fix}")
        if name in options:
            raise InputError(f"{item}: {name} is set twice for {path}. Set it once.")
        kind = type(parameters[name].default)
        options[name] = _read_option(item, value, kind) if equals else True
        if type(options[name]) is not kind:
            raise InputError(f"{item}: has no value. Write {name}=VALUE.")
    return options


def _read_option(item: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        values = "true or false" if kind is bool else kind.__name__
        raise InputError(f"{item}: the value has the wrong type. Use {values}.") from error
