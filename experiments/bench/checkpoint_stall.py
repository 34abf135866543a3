"""Time that training waits for a checkpoint, and would wait without asynchronous writing.

    python -m experiments.bench.checkpoint_stall [--megabytes 500] [--directory DIR]

A loop of steps, each of which changes the whole state (parameters and two moments), saves it now
and then. The loop waits while `save` copies the state. On a CPU the next step shares the cores with
the write, so its extra time counts too. The first copies of a process also wait until the operating
system has cleared memory for them.
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
MEASURES = (
    "save returns after",
    "the next step takes longer by",
    "both together",
    "the write ends after",
    "if training waited for the write",
)


def make_state(megabytes: float) -> TrainState:
    """Return a state of that size."""
    shape = (1000, round(megabytes * 1e6 / 3 / 4 / 1000 / NUM_ARRAYS))
    params, mean, variance = (
        {f"layer{i}": jnp.full(shape, value, jnp.float32) for i in range(NUM_ARRAYS)}
        for value in (0.0, 1.0, 2.0)
    )
    return TrainState(jnp.int32(0), params, (mean, variance), {})


@jax.jit(donate_argnums=0)
def update(state: TrainState) -> TrainState:
    """Return a state that differs everywhere."""
    new = jax.tree.map(lambda leaf: leaf * 0.999 + 0.001, (state.params, state.opt_state))
    return TrainState(state.step + 1, new[0], new[1], state.window)


def timed_update(state: TrainState) -> tuple[TrainState, float]:
    """Return the next state and the seconds that it took."""
    began = time.perf_counter()
    state = jax.block_until_ready(update(state))
    return state, time.perf_counter() - began


def measure_round(
    state: TrainState, checkpointer: Checkpointer
) -> tuple[TrainState, tuple[float, ...]]:
    """Save twice, asynchronously and waiting, and return the seconds of `MEASURES`."""
    usual = []
    for _ in range(7):
        state, seconds = timed_update(state)
        usual.append(seconds)
    began = time.perf_counter()
    checkpointer.save(state, lambda path: None)
    saved = time.perf_counter() - began
    state, seconds = timed_update(state)
    longer = seconds - statistics.median(usual)
    checkpointer.wait_until_finished()
    written = time.perf_counter() - began
    began = time.perf_counter()
    checkpointer.save(state, lambda path: None)
    checkpointer.wait_until_finished()
    return state, (saved, longer, saved + longer, written, time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--directory", default=None, help="where to write; a temporary directory")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    make_mesh(1, 1, 1)  # sets how the allocator treats freed memory
    state = make_state(args.megabytes)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
    rounds = []
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        checkpointer = Checkpointer(epath.Path(directory), max_to_keep=1)
        for _ in range(args.rounds + 1):
            state, seconds = measure_round(state, checkpointer)
            rounds.append(seconds)
    print(f"checkpoint of {size:.0f} MB, medians; the first of the process in brackets")
    for name, first, *rest in zip(MEASURES, *rounds, strict=True):
        print(f"  {name:36}{statistics.median(rest):6.2f} s ({first:.2f} s)")


if __name__ == "__main__":
    main()
