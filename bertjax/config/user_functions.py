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


def import_function(option: str, name: str) -> Callable[..., Any]:
    """Import the module of a function that the user names, and return the function.

    Args:
      option: option or field that names it, with "=" for an option, for messages.
      name: MODULE:FUNCTION; the module may be in the current directory.

    Raises:
      InputError: the module or the function does not exist.
    """
    module_name, _, function = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), function)):
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
    return find_function(option, name)


def find_function(option: str, name: str) -> Callable[..., Any]:
    """Return a function whose module is imported already; the arguments are those of the import.

    Raises:
      InputError: the module is not imported, or has no such function.
    """
    module_name, _, function = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None:
        raise InputError(
            f"{option}={name!r}: not imported, because a file names it. If you trust the code, add "
            f"--config.{option}={name}; --config.{option}= does without it."
        )
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(
            f"{option}={name}: {module_name} has no function {function}. Name another."
        )
    return found


def add_current_directory() -> None:
    """Let Python import modules of the current directory, as `python -m` does, after others."""
    if (directory := os.getcwd()) not in sys.path:
        sys.path.append(directory)
