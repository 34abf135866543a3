"""Libraries that only some functions need."""

import importlib.metadata
import importlib.util

from data_pipelines.errors import InputError


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None without it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_installed(user: str, *libraries: str, install: str) -> None:
    """Check that libraries can be imported, without importing them.

    Args:
      user: the path, option or command that needs them.
      libraries: names of modules.
      install: arguments of `pip install`.

    Raises:
      InputError: one of them is not installed.
    """
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise InputError(
                f"{user}: needs {library}, which is not installed. Run pip install {install}."
            )
