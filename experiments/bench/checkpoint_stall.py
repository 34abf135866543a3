"""Measure how long a checkpoint delays training, with asynchronous and with blocking saves.

    python -m experiments.bench.checkpoint_stall [--megabytes 500] [--directory DIR]

Each step changes the whole train state (parameters and two moments). After some steps the state is
saved. An asynchronous save blocks only while it copies the state. On a CPU the next step shares the
cores with the background write, so the extra time of that step counts too. The first save of a
process is slower, because the operating system has to clear the pages of the copy.
"""

import argparse
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.mesh.device_mesh import make_mesh
from bertjax.steps.train_step import TrainState

NUM_ARRAYS = 24
MEASUREMENTS = (
    "asynchronous save: call",
    "asynchronous save: next step slower by",
    "asynchronous save: delay of training",
    "asynchronous save: until written",
    "blocking save",
)


def make_state(megabytes: float) -> TrainState:
    """Return a train state of `megabytes` MB."""
    shape = (1000, round(megabytes * 1e6 / 3 / 4 / 1000 / NUM_ARRAYS))
    params, mean, variance = (
        {f"layer{i}": jnp.full(shape, value, jnp.float32) for i in range(NUM_ARRAYS)}
        for value in (0.0, 1.0, 2.0)
    )
    return TrainState(jnp.int32(0), params, (mean, variance), {})


@jax.jit(donate_argnums=0)
def update(state: TrainState) -> TrainState:
    """Return the next state, with every parameter and moment changed."""
    params, opt_state = jax.tree.map(
        lambda leaf: leaf * 0.999 + 0.001, (state.params, state.opt_state)
    )
    return TrainState(state.step + 1, params, opt_state, state.metric_sums)


def timed_update(state: TrainState) -> tuple[TrainState, float]:
    """Return the next state and the seconds of its computation."""
    began = time.perf_counter()
    state = jax.block_until_ready(update(state))
    return state, time.perf_counter() - began


def measure_round(
    state: TrainState, checkpointer: Checkpointer
) -> tuple[TrainState, tuple[float, ...]]:
    """Save asynchronously and blocking; return the state and the seconds of `MEASUREMENTS`."""
    usual_seconds = []
    for _ in range(7):
        state, seconds = timed_update(state)
        usual_seconds.append(seconds)
    began = time.perf_counter()
    checkpointer.save(state, _write_no_metadata)
    call_seconds = time.perf_counter() - began
    state, seconds = timed_update(state)
    slowdown = seconds - statistics.median(usual_seconds)
    checkpointer.wait_until_finished()
    written_seconds = time.perf_counter() - began
    began = time.perf_counter()
    checkpointer.save(state, _write_no_metadata)
    checkpointer.wait_until_finished()
    blocking_seconds = time.perf_counter() - began
    delay = call_seconds + slowdown
    return state, (call_seconds, slowdown, delay, written_seconds, blocking_seconds)


def _write_no_metadata(path: epath.Path) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=500, help="size of the state (500)")
    parser.add_argument(
        "--directory",
        default=None,
        help="parent of the temporary directory of the checkpoints (the system's)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds after the first (7)")
    args = parser.parse_args()
    # Called for its side effect: on CPUs freed memory stays with the process, as in training.
    make_mesh(1, 1, 1)
    state = make_state(args.megabytes)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
    rounds = []
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        checkpointer = Checkpointer(epath.Path(directory), max_to_keep=1)
        for _ in range(args.rounds + 1):
            state, seconds = measure_round(state, checkpointer)
            rounds.append(seconds)
    print(f"checkpoint of {size:.0f} MB, medians of {args.rounds} rounds (the first round)")
    for name, first, *rest in zip(MEASUREMENTS, *rounds, strict=True):
        print(f"  {name:40}{statistics.median(rest):6.2f} s ({first:.2f} s)")


if __name__ == "__main__":
    main()
