"""The mesh changes neither the losses nor what the table of shardings says of a parameter."""

import concurrent.futures
import math
import multiprocessing
import os
import pathlib

import jax
import numpy as np
import pytest
from conftest import process_environment

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.config import load_config
from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import named_leaves, tree_shardings
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means
from bertjax.tasks import registry
from bertjax.tasks.task import Task

pytestmark = pytest.mark.slow

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
STEPS = 4
# Devices along the axes data, fsdp and model.
SIXTEEN = (4, 2, 2)
MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), SIXTEEN, (64, 1, 1), (4, 4, 4)]


def program_on(mesh: tuple[int, int, int], corpus: pathlib.Path) -> tuple[StepFunctions, Task]:
    fields = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
    fields |= {"model.vocab_size": 128, "model.num_attention_heads": 8, "model.dtype": "float32"}
    fields |= {"model.hidden_dropout_prob": 0, "model.attention_probs_dropout_prob": 0}
    fields |= {"batch_size": 64, "max_seq_length": 32, "steps": STEPS, "log_every": 1}
    config = load_config(
        f"{PRETRAIN}:smoke,data={corpus}",
        {name: str(value) for name, value in fields.items()},
        registry.data_fields(),
    ).resolve()
    task = registry.find(config.task)(config)
    task.prepare(STEPS)
    return StepFunctions(config, task.objective, jax.devices()[: math.prod(mesh)]), task


def train(
    mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path | None = None
) -> tuple[list[float], list[str]]:
    """Losses of the first steps, and the parameters that are not stored as the table says.

    The last state is saved to the directory.
    """
    program, task = program_on(mesh, corpus)
    step, state, losses = program.compile_train_step(), program.init(), []
    for batch in task.train_batches(0, STEPS):
        state, window = step(state, to_global(batch, program.batch_sharding), {})
        losses.append(means(jax.device_get(window))["loss"])
    stored = tree_shardings(program.mesh, state.params)
    wrong = [
        name
        for (name, leaf), (_, sharding) in zip(
            named_leaves(state.params), named_leaves(stored), strict=True
        )
        if {shard.data.shape for shard in leaf.addressable_shards}
        != {sharding.shard_shape(leaf.shape)}
    ]
    if directory is not None:
        checkpoints = Checkpointer(directory)
        checkpoints.save(state, lambda path: None)
        checkpoints.wait_until_finished()
    return losses, wrong


def restore(
    mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path
) -> list[np.ndarray]:
    program, _ = program_on(mesh, corpus)
    state = Checkpointer(directory).restore(program.state_shapes)
    assert state is not None
    return jax.tree.map(np.asarray, jax.tree.leaves((state.params, state.opt_state, state.step)))


@pytest.fixture(scope="module")
def devices():
    """A process with 64 devices, to which functions of this module can be given."""
    before = os.environ["XLA_FLAGS"]
    os.environ["XLA_FLAGS"] = process_environment(64)["XLA_FLAGS"]
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
        yield process
    os.environ["XLA_FLAGS"] = before


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> pathlib.Path:
    """Where sixteen devices save."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(corpus, devices, checkpoints):
    """What `train` gives on each mesh."""
    return {
        mesh: devices.submit(train, mesh, corpus, checkpoints if mesh == SIXTEEN else None)
        for mesh in MESHES
    }


def test_the_mesh_changes_no_loss_and_every_parameter_is_stored_as_the_table_says(trained) -> None:
    alone, _ = trained[1, 1, 1].result()
    assert len(alone) == STEPS and alone[-1] < alone[0]
    for mesh, job in trained.items():
        losses, wrong = job.result()
        np.testing.assert_allclose(losses, alone, rtol=1e-5, err_msg=str(mesh))
        assert not wrong, mesh


def test_a_checkpoint_of_sixteen_devices_opens_on_any_number(
    corpus, devices, checkpoints, trained
) -> None:
    trained[SIXTEEN].result()
    same = devices.submit(restore, SIXTEEN, corpus, checkpoints).result()
    for mesh in [(16, 4, 1), (2, 2, 2), (1, 1, 1)]:
        other = devices.submit(restore, mesh, corpus, checkpoints).result()
        for ours, theirs in zip(other, same, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(mesh))
