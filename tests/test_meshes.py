"""Losses and checkpoints do not depend on the mesh, and parameters are sharded by the table."""

import concurrent.futures
import math
import multiprocessing
import os
import pathlib

import jax
import numpy as np
import pytest
from config_loading import load
from conftest import process_environment

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import named_leaves, tree_shardings
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import TrainState, means
from bertjax.tasks import registry
from bertjax.tasks.task import Task

pytestmark = pytest.mark.minutes

STEPS = 4
# Devices along the axes data, fsdp and tensor.
SIXTEEN = (4, 2, 2)
MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), SIXTEEN, (64, 1, 1), (4, 4, 4)]


def step_functions_on(
    mesh: tuple[int, int, int], corpus: pathlib.Path
) -> tuple[StepFunctions, Task]:
    fields = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
    fields |= {"model.vocab_size": 128, "model.num_attention_heads": 8, "model.dtype": "float32"}
    fields |= {"model.hidden_dropout_prob": 0, "model.attention_probs_dropout_prob": 0}
    fields |= {"batch_size": 64, "max_seq_length": 32, "steps": STEPS, "log_every": 1}
    config = load(f"smoke,data={corpus}", **fields).resolve()
    task = registry.find_task(config.task)(config)
    task.prepare(STEPS)
    return StepFunctions(config, task.objective, jax.devices()[: math.prod(mesh)]), task


def train(
    mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path | None = None
) -> tuple[list[float], list[str], list[np.ndarray]]:
    """Return the losses of the first steps, parameters with a misplaced sharding, and arrays.

    The last state is saved to the directory.
    """
    step_functions, task = step_functions_on(mesh, corpus)
    step, state, losses = step_functions.compile_train_step(), step_functions.init(), []
    for batch in task.train_batches(0, STEPS):
        state, metric_sums = step(state, to_global(batch, step_functions.batch_sharding), {})
        losses.append(means(jax.device_get(metric_sums))["loss"])
    shardings = dict(named_leaves(tree_shardings(step_functions.mesh, state.params)))
    misplaced = [
        name
        for name, leaf in named_leaves(state.params)
        if {shard.data.shape for shard in leaf.addressable_shards}
        != {shardings[name].shard_shape(leaf.shape)}
    ]
    if directory is not None:
        checkpoints = Checkpointer(directory)
        checkpoints.save(state, lambda path: None)
        checkpoints.wait_until_finished()
    return losses, misplaced, arrays_of(state)


def arrays_of(state: TrainState) -> list[np.ndarray]:
    return jax.tree.map(np.asarray, jax.tree.leaves((state.params, state.opt_state, state.step)))


def restore(
    mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path
) -> list[np.ndarray]:
    step_functions, _ = step_functions_on(mesh, corpus)
    state = Checkpointer(directory).restore(step_functions.state_shapes)
    assert state is not None
    return arrays_of(state)


@pytest.fixture(scope="module")
def devices():
    """A process with 64 devices that runs functions of this module."""
    flags = os.environ["XLA_FLAGS"]
    os.environ["XLA_FLAGS"] = process_environment(64)["XLA_FLAGS"]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
        yield process
    os.environ["XLA_FLAGS"] = flags


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> pathlib.Path:
    """Checkpoints of sixteen devices."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(corpus, devices, checkpoints):
    """Results of `train` on each mesh."""
    return {
        mesh: devices.submit(train, mesh, corpus, checkpoints if mesh == SIXTEEN else None)
        for mesh in MESHES
    }


def test_losses_do_not_depend_on_the_mesh_and_parameters_are_sharded_by_the_table(trained) -> None:
    one_device, *_ = trained[1, 1, 1].result()
    assert len(one_device) == STEPS and one_device[-1] < one_device[0]
    for mesh, job in trained.items():
        losses, misplaced, _ = job.result()
        np.testing.assert_allclose(losses, one_device, rtol=1e-5, err_msg=str(mesh))
        assert not misplaced, mesh


def test_checkpoint_of_sixteen_devices_restores_on_any_mesh(
    corpus, devices, checkpoints, trained
) -> None:
    *_, saved = trained[SIXTEEN].result()
    for mesh in [SIXTEEN, (16, 4, 1), (2, 2, 2), (1, 1, 1)]:
        restored = devices.submit(restore, mesh, corpus, checkpoints).result()
        for ours, theirs in zip(restored, saved, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(mesh))
