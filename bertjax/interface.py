"""What `import bertjax` gives: a model to ask, and training and evaluation as functions."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

# Before tensorflow is imported, which serves data alone here and need not say more.
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
    """Opens a model: a workdir or checkpoint of ours, or a directory of Hugging Face, of TF1 or of
    sentence-transformers.

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
    """Trains in a workdir, or goes on training there, to the last step.

    Args:
      config: `NAME[:OPTIONS]` or `FILE[:OPTIONS]` as text, what its `get_config` gives, or a
        `bertjax.config.config.Config`.
      overrides: dotted field name -> value, such as {"optimizer.learning_rate": 1e-4}.
      on_metrics: called with each line that metrics.jsonl gets: {"step", "split", ...}, "split"
        being "train" or "heldout". What it raises ends the run, and goes on to the caller.
    Raises:
      InputError: the configuration, the data or the workdir do not fit; nothing was changed.
      bertjax.errors.RunError: the run ended before its end: its loss was not finite, a checkpoint
        could not be written, or SIGINT or SIGTERM arrived, for which its state was saved.
    """
    trackers = [CallbackTracker(lambda: on_metrics)] if on_metrics else []
    run_config = make_run_config(config, _quote_strings(overrides), workdir)
    make_trainer(run_config, workdir, trackers).train()


def evaluate(
    checkpoint: epath.PathLike | Sequence[epath.PathLike],
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """The scores of a model, ours or published, on held-out data.

    Args:
      checkpoint: its directory, or those of several, which are an ensemble.
      config: as in `train`; by default that of the run which made the checkpoint.
      overrides: as in `train`.
    Raises:
      InputError: the model is not one of the configuration, or there is no held-out data.
    """
    one = isinstance(checkpoint, str | os.PathLike)
    checkpoints: Sequence[epath.PathLike] = [checkpoint] if one else checkpoint
    found = make_run_config(config, _quote_strings(overrides), checkpoint=checkpoints[0])
    return dict(evaluation.evaluate(found, *checkpoints).scores)


def _quote_strings(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values are what they are: a text is no other value's."""
    given = dict(overrides or {})
    return {name: repr(value) if isinstance(value, str) else value for name, value in given.items()}
