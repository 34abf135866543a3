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

from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import named_leaves, tree_shardings
from bertjax.tasks import registry
from bertjax.tasks.contract import Task
from bertjax.training.checkpoint import Checkpoints
from bertjax.training.config import load_config
from bertjax.training.programs import Programs
from bertjax.training.step import means

pytestmark = pytest.mark.slow

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretrain.py"
STEPS = 4
# Devices along the axes data, fsdp and model.
MESHES = [
    *((1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8)),
    *((4, 2, 2), (64, 1, 1), (4, 4, 4)),
]


def program_on(mesh: tuple[int, int, int], corpus: pathlib.Path) -> tuple[Programs, Task]:
    fields = dict(zip(("mesh.data", "mesh.fsdp", "mesh.model"), mesh, strict=True))
    fields |= {"model.vocab_size": 128, "model.num_heads": 8, "model.dtype": "float32"}
    fields |= {"model.hidden_dropout": 0, "model.attention_dropout": 0}
    fields |= {"batch_size": 64, "seq_len": 32, "steps": STEPS, "log_every": 1}
    config = load_config(
        f"{PRETRAIN}:smoke,data={corpus}",
        {name: str(value) for name, value in fields.items()},
        registry.data_fields(),
    ).resolve()
    task = registry.find(config.task)(config)
    task.prepare(STEPS)
    return Programs(config, task.objective, jax.devices()[: math.prod(mesh)]), task


def train(mesh: tuple[int, int, int], corpus: pathlib.Path) -> tuple[list[float], list[str]]:
    """Losses of the first steps, and the parameters that are not stored as the table says."""
    program, task = program_on(mesh, corpus)
    step, state, losses = program.train(), program.init(), []
    for batch in task.train_batches(0, STEPS):
        state, window = step(state, to_global(batch, program.rows), {})
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
    return losses, wrong


def save(mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path) -> None:
    program, task = program_on(mesh, corpus)
    step, state = program.train(), program.init()
    for batch in task.train_batches(0, 2):  # so that moments are not 0
        state, _ = step(state, to_global(batch, program.rows), {})
    checkpoints = Checkpoints(directory)
    checkpoints.save(state, lambda path: None)
    checkpoints.wait()


def restore(
    mesh: tuple[int, int, int], corpus: pathlib.Path, directory: pathlib.Path
) -> list[np.ndarray]:
    program, _ = program_on(mesh, corpus)
    state = Checkpoints(directory).restore(program.state)
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


def test_the_mesh_changes_no_loss_and_every_parameter_is_stored_as_the_table_says(
    corpus, devices
) -> None:
    jobs = {mesh: devices.submit(train, mesh, corpus) for mesh in MESHES}
    alone, _ = jobs[1, 1, 1].result()
    assert len(alone) == STEPS and alone[-1] < alone[0]
    for mesh, job in jobs.items():
        losses, wrong = job.result()
        np.testing.assert_allclose(losses, alone, rtol=1e-5, err_msg=str(mesh))
        assert not wrong, mesh


def test_a_checkpoint_of_sixteen_devices_opens_on_any_number(corpus, devices, tmp_path) -> None:
    devices.submit(save, (4, 2, 2), corpus, tmp_path).result()
    same = devices.submit(restore, (4, 2, 2), corpus, tmp_path).result()
    for mesh in [(16, 4, 1), (2, 2, 2), (1, 1, 1)]:
        other = devices.submit(restore, mesh, corpus, tmp_path).result()
        for ours, theirs in zip(other, same, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(mesh))
