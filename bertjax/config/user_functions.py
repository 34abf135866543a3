"""Functions of a user that a configuration or an option names as MODULE:FUNCTION.

A function is imported only where a user names it. The name in a checkpoint alone runs no code.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from data_pipelines.errors import InputError

USER_FUNCTIONS = ("loss", "metrics")  # fields that name one
_imported: dict[str, Callable[..., Any]] = {}  # by name


def import_function(option: str, name: str) -> Callable[..., Any]:
    """Import the module of a function that the user names, and return the function.

    Args:
      option: option or field that names it, with "=" for an option, for messages.
      name: MODULE:FUNCTION; the module may be in the current directory.

    Raises:
      InputError: the module or the function does not exist.
    """
    module_name, _, function_name = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise InputError(f"{option}={name}: not a function. Write MODULE:FUNCTION.")
    add_current_directory()
    try:
        importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports is missing
        raise InputError(
            f"{option}={name}: there is no module {module_name}. Name a module that Python finds."
        ) from None
    function = getattr(sys.modules[module_name], function_name, None)
    if not callable(function):
        raise InputError(
            f"{option}={name}: {module_name} has no function {function_name}. Name another."
        )
    _imported[name] = function
    return function


def find_function(option: str, name: str) -> Callable[..., Any]:
    """Return a function that `import_function` has imported.

    Raises:
      InputError: no user has named it: a file must not choose among the functions of a process.
    """
    if name not in _imported:
        raise InputError(
            f"{option}={name!r}: not imported, because a file names it. If you trust the code, add "
            f"--config.{option}={name}; --config.{option}= does without it."
        )
    return _imported[name]


def add_current_directory() -> None:
    """Let Python import modules of the current directory, as `python -m` does, after others."""
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)
