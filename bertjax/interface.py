"""Public functions of `import bertjax`: load, train and evaluate."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

# Set before tensorflow is imported, which only reads data here, to silence its log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from bertjax.inference.model import Model
from bertjax.training import evaluator as evaluation
from bertjax.training.setup import make_trainer
from bertjax.training.trackers import CallbackTracker
from bertjax.workdir.run_config import ConfigSource, make_run_config
from data_pipelines.errors import InputError

__all__ = ["InputError", "Model", "evaluate", "load", "train"]


def load(directory: epath.PathLike) -> Model:
    """Load a model: a workdir, a checkpoint, or a directory of another library.

    Args:
      directory: of bertjax, Hugging Face, TF1 or sentence-transformers.

    Raises:
      InputError: there is no such model, or it has no vocabulary.
    """
    return Model(directory)


def train(
    config: ConfigSource,
    workdir: epath.PathLike,
    overrides: Mapping[str, Any] | None = None,
    on_metrics: Callable[[dict[str, Any]], object] | None = None,
) -> None:
    """Train in a workdir to the last step, or resume there.

    Args:
      config: `NAME[:OPTIONS]` or `FILE[:OPTIONS]` as text, the result of a `get_config`, or a
        `bertjax.config.config.Config`.
      workdir: directory of the run.
      overrides: dotted field name -> value, such as {"optimizer.learning_rate": 1e-4}.
      on_metrics: metrics callback, called with each line of metrics.jsonl: {"step", "split", ...},
        where "split" is "train" or "eval". An exception that it raises ends the run and propagates.

    Raises:
      InputError: the configuration, the data or the workdir is invalid; nothing was changed.
      bertjax.errors.CommandError: the run stopped early. Its loss was not finite, a checkpoint
        could not be written, or SIGINT or SIGTERM arrived, after which its state was saved.
    """
    trackers = [CallbackTracker(lambda: on_metrics)] if on_metrics else []
    run_config = make_run_config(config, _quote_strings(overrides), workdir)
    make_trainer(run_config, workdir, trackers).train()


def evaluate(
    checkpoint: epath.PathLike | Sequence[epath.PathLike],
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Return the metrics of a model on the eval sets.

    Args:
      checkpoint: directory of a model, its own or published, or of several, as an ensemble.
      config: see `train`; by default the configuration of the checkpoint's run.
      overrides: see `train`.

    Raises:
      InputError: the model does not fit the configuration, or there is no eval set.
    """
    is_single = isinstance(checkpoint, str | os.PathLike)
    checkpoints: Sequence[epath.PathLike] = [checkpoint] if is_single else checkpoint
    if not checkpoints:
        raise InputError(f"checkpoint={checkpoint!r}: no model. Name one or several.")
    run_config = make_run_config(config, _quote_strings(overrides), checkpoint=checkpoints[0])
    return dict(evaluation.evaluate(run_config, *checkpoints).scores)


def _quote_strings(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return overrides whose strings are Python literals, so that "32" stays a string."""
    return {
        name: repr(value) if isinstance(value, str) else value
        for name, value in (overrides or {}).items()
    }
