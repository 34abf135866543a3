"""Several processes: same losses, own shards only, and none outlives the others."""

import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import LONG, free_port, process_environment
from program import Program
from run_outputs import metrics, params_of

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.loading import read_config
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry

# Restore a run's state on a mesh over all processes and save it elsewhere.
COPY = """
import dataclasses, pathlib, sys
from bertjax.tasks import registry
from bertjax.steps import step_functions
from bertjax.mesh import distributed
from bertjax.mesh.cluster import Cluster
from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.loading import read_config
number, port, run, copy = sys.argv[1:]
cluster = Cluster(f"localhost:{port}", 4, int(number))
distributed.initialize_distributed(cluster, handles_preemption=False)
config = read_config(pathlib.Path(run, "config.json"), registry.data_fields())
config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, fsdp=2))
target = step_functions.StepFunctions(config, registry.make_objective(config)).state_shapes
assert len(target.params["nsp"]["kernel"].sharding.device_set) == 8
state = Checkpointer(f"{run}/checkpoints").restore(target)
copies = Checkpointer(copy)
copies.save(state, lambda path: None)
copies.wait_until_finished()
"""


def assert_close(ours: pathlib.Path, theirs: pathlib.Path, tolerance: float) -> None:
    """Assert that two runs logged the same steps with the same numbers."""
    for a, b in zip(metrics(ours), metrics(theirs), strict=True):
        assert a.keys() == b.keys() and a["split"] == b["split"]
        for name in a.keys() - {"split"}:
            assert a[name] == pytest.approx(b[name], rel=tolerance), (a["step"], name)


def state_of(checkpoints: pathlib.Path, run: pathlib.Path) -> list[np.ndarray]:
    """Return all arrays of the newest checkpoint, on one device; `run` has the configuration."""
    config = read_config(run / "config.json", registry.data_fields())
    objective = registry.make_objective(config)
    target = StepFunctions(config, objective, jax.devices()[:1]).state_shapes
    state = Checkpointer(checkpoints).restore(target)
    return jax.tree.map(np.asarray, jax.tree.leaves(state))


def end_late() -> None:
    end = os._exit

    def end_after_others(status: int) -> None:
        time.sleep(5)
        end(status)

    os._exit = end_after_others  # type: ignore[assignment]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def one_process(corpus, runs) -> pathlib.Path:
    """A run of one process, without interruption."""
    program = Program(corpus, runs / "one", 1)
    assert program.wait() == [0], program.sentence(0)
    return runs / "one"


@pytest.fixture(scope="module")
def two(corpus, runs) -> pathlib.Path:
    """A run of two processes, without interruption; the last one is slow to end.

    JAX aborts a process that is connected when process 0 ends.
    """
    program = Program(corpus, runs / "two", 2, begin_last=end_late)
    assert program.wait() == [0, 0], program.sentence(0)
    return runs / "two"


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(one_process, two) -> None:
    assert_close(two, one_process, 1e-6)


@pytest.mark.slow
def test_process_opens_only_its_own_shards(one_process, two) -> None:
    def opened(workdir: pathlib.Path, process_id: int) -> set[str]:
        names = (workdir.parent / f"{workdir.name}.opened.{process_id}").read_text().split()
        return {name for name in names if "train" in name}

    first, second = opened(two, 0), opened(two, 1)
    assert len(first) == len(second) == 4
    assert not first & second
    assert first | second == opened(one_process, 0)


@pytest.mark.minutes
def test_loss_of_a_process_ends_the_others_and_the_same_command_resumes(corpus, runs, two) -> None:
    program = Program(corpus, runs / "killed", 2, supervised=True, slow=True)
    program.wait_for_step(14)
    while not Checkpointer(
        runs / "killed" / "checkpoints"
    ).all_steps():  # written in the background
        time.sleep(0.05)
    program.processes[1].kill()
    assert program.wait_for(0) == 75
    assert program.sentence(0).startswith("bertjax: ")
    assert "Run the same command in all processes" in program.sentence(0)
    again = Program(corpus, runs / "killed", 2, checkpoint_every="0.02 minutes")
    assert again.wait() == [0, 0], again.sentence(0)
    assert "resuming from step 12" in again.stderr[1]
    assert metrics(runs / "killed") == metrics(two)
    assert params_of(runs / "killed") == params_of(two)


@pytest.mark.minutes
def test_stop_signal_to_one_process_stops_all_and_another_number_resumes(
    corpus, runs, one_process
) -> None:
    program = Program(corpus, runs / "stopped", 4, slow=True)
    program.wait_for_step(14)
    program.processes[2].terminate()
    assert program.wait() == [75] * 4, program.stderr
    (step,) = {re.search(r"stopped at step (\d+)", program.sentence(i))[1] for i in range(4)}
    assert Checkpointer(runs / "stopped" / "checkpoints").all_steps()[-1] == int(step)
    again = Program(corpus, runs / "stopped", 1)
    assert again.wait() == [0], again.sentence(0)
    assert f"resuming from step {step}" in again.stderr[0]
    assert_close(runs / "stopped", one_process, 1e-6)


@pytest.mark.minutes
def test_checkpoint_of_one_process_is_bit_identical_on_four(one_process, tmp_path) -> None:
    port = free_port()
    environment = process_environment(2) | {"JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COPY, str(number), str(port), one_process, tmp_path / "copy"],
            env=environment,
        )
        for number in range(4)
    ]
    assert [process.wait(LONG) for process in processes] == [0] * 4
    ours = state_of(tmp_path / "copy", one_process)
    theirs = state_of(one_process / "checkpoints", one_process)
    assert len(ours) > 3 * 20  # parameters and two moments of each
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.minutes
def test_process_with_an_error_ends_with_its_own_status(corpus, runs) -> None:
    (empty := runs / "empty").mkdir()
    program = Program(
        corpus, runs / "wrong", 2, supervised=True, last_arguments=[f"--config.data.dir={empty}"]
    )
    assert program.wait_for(1) == 2
    assert str(empty) in program.sentence(1)
    assert program.wait_for(0) == 75
    assert "another process was lost" in program.sentence(0)


@pytest.mark.slow
def test_processes_without_a_common_workdir_fail_before_compilation(corpus, runs) -> None:
    program = Program(corpus, runs / "mine", 2, last_arguments=["--workdir", str(runs / "yours")])
    assert program.wait() == [2, 2]
    for process_id in range(2):
        assert "process 1 does not see what process 0 wrote" in program.sentence(process_id)
        assert "compiling" not in program.stderr[process_id]
    assert not (runs / "mine" / "lock.json").exists()
