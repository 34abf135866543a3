"""Warnings that a process logs once."""

import logging
from collections.abc import Hashable

_log = logging.getLogger("data_pipelines")
_logged: set[Hashable] = set()


def warn_once(key: Hashable, message: str) -> None:
    """Log a warning, unless one with this key was logged before."""
    if key not in _logged:
        _logged.add(key)
        _log.warning("%s", message)
