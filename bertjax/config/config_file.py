"""Configuration files: Python with `get_config`, whose parameters are its options.

    def get_config(model: str = "base", phase: int = 1, smoke: bool = False) -> ConfigDict:

`FILE:model=tiny,smoke` runs it with `model="tiny", smoke=True`: a value has the type of the
parameter's default, bool, int, float or str, and a name alone is True. It returns an
`ml_collections.ConfigDict` or a dictionary, and refuses a value by a ValueError, whose message the
user reads. A file imports nothing of bertjax but `bertjax.config.presets`, and may lie in a bucket. In place of FILE stands the
name alone, such as `pretraining`, of one that comes with bertjax.
"""

import difflib
import inspect
import pathlib
import re
import types
from collections.abc import Mapping
from typing import Any

import ml_collections
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import check_file

_SPEC = re.compile(r"((?:\w+://)?[^:]*):?(.*)", re.DOTALL)  # gs:// ends no FILE
_TYPES = (bool, int, float, str)


def builtin_configs() -> dict[str, epath.Path]:
    """The configurations that come with bertjax, by their names."""
    package = pathlib.Path(__file__).parent.parent
    installed = package / "experiments"
    folder = installed if installed.is_dir() else package.parent / "experiments"  # of a clone
    return {file.stem: epath.Path(file) for file in sorted(folder.glob("*.py"))}


def find_config_file(path: str) -> epath.Path:
    """The file of a configuration, which a path names, or its name where it is one of `builtin_configs`.

    Raises:
      InputError: there is none.
    """
    own = builtin_configs()
    if path in own:
        return own[path]
    file = epath.Path(path)
    if re.fullmatch(r"[\w-]+", path) and not file.exists():
        nearest = difflib.get_close_matches(path, own, n=1, cutoff=0.0)[0]
        raise InputError(
            f"there is no configuration {path}: did you mean {nearest}? `bertjax config` lists all."
        )
    if file.stem in own and not file.exists():
        raise InputError(
            f"there is no file {path}: name one that exists, or write {file.stem} for the one that "
            "comes with bertjax."
        )
    if check_file(file).suffix != ".py":
        raise InputError(f"{path} is no Python file; a configuration ends in .py.")
    return file


def run_config_file(spec: str) -> dict[str, Any]:
    """What the `get_config` of `FILE[:OPTIONS]` returns, as nested dictionaries.

    Raises:
      InputError: there is no such file, it is no configuration, or it does not take the options.
    """
    path, text = _SPEC.fullmatch(spec).groups()  # type: ignore[union-attr] # anything matches
    file = find_config_file(path)
    module = types.ModuleType("bertjax_configuration")
    module.__file__ = str(file)
    try:
        # Python's own import knows local files alone.
        code = compile(file.read_bytes(), path, "exec")
    except SyntaxError as error:
        raise InputError(
            f"{path} is no Python (line {error.lineno}: {error.msg}); mend it."
        ) from error
    exec(code, module.__dict__)
    if not hasattr(module, "get_config"):
        raise InputError(f"{path} has no get_config; add one that returns a ConfigDict.")
    options = _parse_options(path, text, inspect.signature(module.get_config).parameters)
    try:
        config = module.get_config(**options)
    except ValueError as error:  # all that a file which imports nothing of ours can raise
        raise InputError(str(error)) from error
    return config.to_dict() if isinstance(config, ml_collections.ConfigDict) else dict(config)


def _parse_options(
    path: str, text: str, parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """`KEY=VALUE,KEY=VALUE,FLAG` for parameters of these names and types."""
    for name, parameter in parameters.items():
        if list(parameters) == ["arg"] or type(parameter.default) not in _TYPES:
            raise InputError(
                f"{path}: parameter {name!r} of get_config is no option: give each option one with "
                'a default, as in get_config(model="base", phase=1, smoke=False).'
            )
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if name not in parameters:
            nearest = difflib.get_close_matches(name, parameters, n=1, cutoff=0.0)
            fix = f"did you mean {nearest[0]}?" if nearest else "it has none."
            raise InputError(f"{item!r} is no option of {path}: {fix}")
        if name in options:
            raise InputError(f"{name} is given twice to {path}: give it once.")
        kind = type(parameters[name].default)
        options[name] = _read_option(item, value, kind) if equals else True
        if type(options[name]) is not kind:
            raise InputError(f"{name} has no value: write {name}=VALUE.")
    return options


def _read_option(item: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if kind is bool else kind.__name__
        raise InputError(f"{item!r} is of the wrong type: its value must be {wanted}.") from error
