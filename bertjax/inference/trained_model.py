"""A checkpoint as a model for other programs, with what its task knows."""

import dataclasses

from etils import epath

from bertjax.config.loading import read_config, read_config_dict
from bertjax.formats.loading import read_model
from bertjax.formats.sentence_transformers import checkpoint_pooling_config
from bertjax.formats.tensors import NumpyModel
from bertjax.formats.tokenizer_json import read_max_length
from bertjax.tasks import registry
from bertjax.tasks.inference_settings import make_settings
from bertjax.workdir.model_history import read_history
from bertjax.workdir.run_record import read_calibration
from data_pipelines.errors import InputError


def read_trained_model(checkpoint: epath.Path) -> NumpyModel:
    """Return the model of a checkpoint, with what its task and its run add.

    That is the heads, the text length, the pooling, the history and the settings for
    `bertjax_inference`.

    Raises:
      InputError: the checkpoint is damaged; see `bertjax.formats.loading.read_model`.
    """
    registry.register_heads(checkpoint)
    model = read_model(checkpoint, "bertjax")
    length = read_config_dict(checkpoint / "config.json").get("max_seq_length")
    calibration, settings = read_calibration(checkpoint), None
    try:
        config = read_config(checkpoint / "config.json", registry.data_fields())
        task = registry.find_task(config.task)
    except InputError:  # without its task a checkpoint is still an encoder
        pass
    else:
        length = task.max_text_length(config)
        settings = make_settings(task, config, calibration)
        if stated := read_max_length(checkpoint):  # by `convert`, of a model without a run
            length, settings = stated, None
    return dataclasses.replace(
        model,
        max_seq_length=length,
        pooling=checkpoint_pooling_config(checkpoint),
        history=read_history(checkpoint),
        inference=settings,
    )


def read_published_model(directory: epath.PathLike, format_name: str | None = None) -> NumpyModel:
    """Return a model of another format, to be written in a format.

    Args:
      directory: its directory.
      format_name: see `bertjax.formats.loading.read_model`.

    Raises:
      InputError: the directory is no model; see `read_model`.
    """
    registry.register_heads()
    return registry.with_applied_settings(read_model(directory, format_name))
