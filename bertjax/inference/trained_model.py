"""A checkpoint as a model for other programs, with what its task knows."""

import contextlib
import dataclasses

from etils import epath

from bertjax.config.loading import read_config, read_config_dict
from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.tasks import registry
from bertjax.workdir.model_history import read_history
from data_pipelines.errors import InputError


def read_trained_model(checkpoint: epath.Path) -> NumpyModel:
    """Return the model of a checkpoint, with its task's heads and text length, and its history.

    Raises:
      InputError: the checkpoint is damaged; see `bertjax.formats.loading.read_model`.
    """
    registry.register_heads(checkpoint)
    model = read_model(checkpoint, "bertjax")
    length = read_config_dict(checkpoint / "config.json").get("max_seq_length")
    with contextlib.suppress(InputError):  # without its task a checkpoint is still an encoder
        config = read_config(checkpoint / "config.json", registry.data_fields())
        length = registry.find_task(config.task).max_text_length(config)
    return dataclasses.replace(model, max_seq_length=length, history=read_history(checkpoint))
