"""BERT pre-training, fine-tuning and evaluation in JAX, for TPU pods and GPUs."""

import importlib
from typing import TYPE_CHECKING, Any

from bertjax.version import __version__ as __version__

if TYPE_CHECKING:
    from bertjax.interface import InputError as InputError
    from bertjax.interface import Model as Model
    from bertjax.interface import evaluate as evaluate
    from bertjax.interface import load as load
    from bertjax.interface import train as train

__all__ = ["InputError", "Model", "__version__", "evaluate", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import the interface, and JAX with it, on first use, because this takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
    return getattr(importlib.import_module("bertjax.interface"), name)


def __dir__() -> list[str]:
    return __all__
