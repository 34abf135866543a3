"""Clusters of processes: arguments, initialization and stop signals."""

import itertools
import os

import jax
import pytest

from bertjax.errors import CommandError
from bertjax.mesh import cluster, distributed, signals
from bertjax.mesh.cluster import Cluster, find_cluster


def test_initialize_distributed_allows_a_single_tpu_process(monkeypatch) -> None:
    def find_none(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", find_none)
    distributed.initialize_distributed(Cluster(allow_single_process=True), handles_preemption=True)
    with pytest.raises(CommandError, match="did not join"):
        distributed.initialize_distributed(Cluster(), handles_preemption=True)


def test_find_cluster_returns_none_for_a_single_process(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cluster, "on_tpu", lambda: False)
    assert find_cluster(None, None, None) is None


def test_find_cluster_uses_all_gpus_of_a_slurm_node(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x4)")
    assert find_cluster(None, None, None) == Cluster(local_device_ids=tuple(range(8)))
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8(x4)")
    assert find_cluster(None, None, None) == Cluster()


def test_find_cluster_takes_arguments() -> None:
    assert find_cluster("first:1234", 4, 3) == Cluster("first:1234", 4, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("first:1234", 4, None), "one is missing. Give all three"),
        ((None, 4, 0), "one is missing. Give all three"),
        (("first:1234", 4, 4), "--process-id=4: is not one of --num-processes=4"),
        (("first:1234", 4, -1), "--process-id=-1: is not one"),
        (("first", 4, 0), "has no port"),
    ],
)
def test_find_cluster_rejects_incomplete_arguments(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_cluster(*arguments)


def test_stop_signals_polls_with_increasing_numbers(monkeypatch) -> None:
    """A signal before the first poll, or between sweeps' runs, stops at the next poll."""
    polled: list[int] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(signals, "_sync_points", itertools.count(1))
    monkeypatch.setattr(
        signals.multihost_utils,
        "reached_preemption_sync_point",
        lambda n: polled.append(n) or n > 3,
    )
    for steps in ([28, 29], [1, 2]):
        with signals.stop_signals() as stop:
            stops = [stop(step) for step in steps]
    assert polled == [1, 2, 3, 4] and stops == [False, True]
