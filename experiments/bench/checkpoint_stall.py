"""How long training stands still for a checkpoint, and for how long it would if it waited for it.

    python -m experiments.bench.checkpoint_stall [--megabytes 500] [--directory DIR]

A loop of steps, each of which changes the whole state (parameters and two moments of them), saves
it every now and then. It stands still while `save` copies the state, and on a CPU the step after it
has to share the cores with the writing, so what it takes longer than others is counted too. The
first copies of a process also wait until the system has cleared pages for them.
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

ARRAYS = 24


def make_state(megabytes: float) -> TrainState:
    shape = (1000, round(megabytes * 1e6 / 3 / 4 / 1000 / ARRAYS))
    params, mean, square = (
        {f"layer{i}": jnp.full(shape, value, jnp.float32) for i in range(ARRAYS)}
        for value in (0.0, 1.0, 2.0)
    )
    return TrainState(jnp.int32(0), params, (mean, square), {})


@jax.jit(donate_argnums=0)
def step(state: TrainState) -> TrainState:
    new = jax.tree.map(lambda leaf: leaf * 0.999 + 0.001, (state.params, state.opt_state))
    return TrainState(state.step + 1, new[0], new[1], state.window)


def timed_step(state: TrainState) -> tuple[TrainState, float]:
    began = time.perf_counter()
    state = jax.block_until_ready(step(state))
    return state, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=500)
    parser.add_argument("--directory", default=None, help="where to write; a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    make_mesh(1, 1, 1)  # which settles what becomes of freed memory
    state = make_state(args.megabytes)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        checkpoints = Checkpointer(epath.Path(directory), max_to_keep=1)
        found = []
        for number in range(args.rounds + 1):  # the first one warms up
            usual = []
            for _ in range(7):
                state, seconds = timed_step(state)
                usual.append(seconds)
            began = time.perf_counter()
            checkpoints.save(state, lambda path: None)
            saved = time.perf_counter() - began
            state, seconds = timed_step(state)
            longer = seconds - statistics.median(usual)
            checkpoints.wait_until_finished()
            written = time.perf_counter() - began
            began = time.perf_counter()
            checkpoints.save(state, lambda path: None)
            checkpoints.wait_until_finished()
            found.append((saved, longer, saved + longer, written, time.perf_counter() - began))
            if number:
                print(f"round {number} of {args.rounds}: {saved:.2f} + {longer:.2f} s", flush=True)
    names = ["save returns after", "the next step is longer by", "together"]
    names += ["in the background, finished after", "if training waited for it"]
    print(f"\na checkpoint of {size:.0f} MB, medians; the first of the process in brackets")
    for name, first, *rest in zip(names, *found, strict=True):
        print(f"  {name:36}{statistics.median(rest):6.2f} s ({first:.2f} s)")


if __name__ == "__main__":
    main()
