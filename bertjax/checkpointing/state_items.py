"""Training states as Orbax items: `params`, `training`, and the metric sums as JSON."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bertjax.checkpointing.integrity import PARAMS_DIR, TRAINING_DIR
from bertjax.checkpointing.parameters import damage_as_input_error
from bertjax.mesh.feed import to_devices
from bertjax.model.losses import Sums
from bertjax.steps.train_step import TrainState
from data_pipelines.paths import atomic_write_text
from data_pipelines.schema import read_json_object

_METRIC_SUMS_FILE = "window.json"


def save_args(state: TrainState) -> ocp.args.Composite:
    """Return Orbax's arguments to save the arrays of a state."""
    params, training = map(ocp.args.StandardSave, (state.params, _training_tree(state)))
    return ocp.args.Composite(**{PARAMS_DIR: params, TRAINING_DIR: training})


def write_metric_sums(path: epath.Path, metric_sums: Sums) -> None:
    """Write sums on the host into a checkpoint."""
    numbers = {name: [np.asarray(n).tolist() for n in pair] for name, pair in metric_sums.items()}
    atomic_write_text(path / TRAINING_DIR / _METRIC_SUMS_FILE, json.dumps(numbers))


def restore_state(path: epath.Path, target: TrainState) -> TrainState:
    """Return the state in a checkpoint.

    Args:
      path: the checkpoint.
      target: `jax.ShapeDtypeStruct` with shardings. Names of its metric sums that the checkpoint
        does not have start at 0.

    Raises:
      InputError: files of the checkpoint are damaged.
    """
    params = _restore(path / PARAMS_DIR, target.params)
    training = _restore(path / TRAINING_DIR, _training_tree(target))
    sums_file = path / TRAINING_DIR / _METRIC_SUMS_FILE
    saved = read_json_object(sums_file, {str: [object]}, "Use another checkpoint.")
    # Pairs of numbers, or of lists for several runs; a metric that is new has no sum yet.
    pairs = {name: saved.get(name, (0.0, 0.0)) for name in target.metric_sums}
    numbers = {name: tuple(map(np.asarray, pair)) for name, pair in pairs.items()}
    metric_sums = jax.tree.map(to_devices, numbers, target.metric_sums)
    return TrainState(training["step"], params, training["opt_state"], metric_sums)


def copy_if_on_cpu(state: TrainState) -> TrainState:
    """Return the state in memory that no train step donates.

    Orbax copies arrays of all devices but CPUs. Without a copy the next step could not reuse their
    memory: it would copy them itself, one after the other.
    """
    (platform,) = {device.platform for device in state.step.devices()}
    return _copy(state) if platform == "cpu" else state


@jax.jit
def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _training_tree(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "opt_state": state.opt_state}


def _restore(path: epath.Path, target: Any) -> Any:
    with damage_as_input_error(path), ocp.Checkpointer(ocp.StandardCheckpointHandler()) as reader:
        return reader.restore(path, args=ocp.args.StandardRestore(target))
