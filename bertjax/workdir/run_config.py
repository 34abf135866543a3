"""The configuration of a run or of an evaluation, from a name, a file or a checkpoint."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import ml_collections
from etils import epath

from bertjax.checkpointing.lookup import has_checkpoint
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.config.user_functions import USER_FUNCTIONS, find_function, import_function
from bertjax.formats.loading import find_bert_config, read_run_config
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from bertjax.workdir.model_records import pin_recorded_commits

ConfigSource: TypeAlias = str | Mapping[str, Any] | ml_collections.ConfigDict | Config


def make_run_config(
    source: ConfigSource | None,
    overrides: Mapping[str, Any],
    workdir: epath.PathLike | None = None,
    checkpoint: epath.PathLike | None = None,
) -> Config:
    """Return the configuration of a run or of an evaluation, with some fields replaced.

    The model comes from the checkpoint, or from `init` for a new run. `init` may be gone once the
    run has a checkpoint of its own.

    Args:
      source: `NAME[:OPTIONS]`, `FILE[:OPTIONS]`, or what `get_config` of such a file returns. None
        stands for the configuration of the checkpoint's run.
      overrides: dotted field name -> new value, or its text; see `load_config`.
      workdir: directory of a run that may have started.
      checkpoint: checkpoint to evaluate.

    Raises:
      InputError: see `load_config`; or the file or the model does not exist.
    """

    def load_model_config(init: str) -> BertConfig:
        return find_bert_config(workdir if workdir and has_checkpoint(workdir) else init)

    if workdir:
        pin_recorded_commits(workdir)
    # What a checkpoint alone names is not imported: whoever wrote it would choose the code.
    has_source = source is not None
    imports_task = has_source or "task" in overrides
    if checkpoint is not None:
        overrides = {"init": repr(str(checkpoint)), **overrides}
        source = read_run_config(checkpoint) if source is None else source
    assert source is not None
    if isinstance(source, Config | ml_collections.ConfigDict):
        source = source.to_dict()
    fields = registry.data_fields(imports_task)
    config = load_config(source, overrides, fields, load_model_config)
    for name in USER_FUNCTIONS:
        if function := getattr(config, name):
            is_trusted = has_source or name in overrides
            (import_function if is_trusted else find_function)(name, function)
    return config
