"""Small training states, and damage to their checkpoints."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import sharded_shapes
from bertjax.steps.train_step import TrainState


def make_state(step: int) -> TrainState:
    draw = np.random.Generator(np.random.Philox(key=step))
    params = {
        "encoder": {"embeddings": {"word": jnp.asarray(draw.normal(size=(16, 8)), jnp.float32)}},
        "bias": jnp.asarray(draw.normal(size=5), jnp.float32),
    }
    metric_sums = {"loss": (jnp.float32(step), jnp.float32(1))}
    return TrainState(jnp.int32(step), params, optax.adam(1e-3).init(params), metric_sums)


def write_metadata(path) -> None:
    (path / "vocab.txt").write_text("[PAD]\n")


def save(checkpoints: Checkpointer, *steps: int) -> None:
    """Save states at some steps and wait until all are finished."""
    for step in steps:
        checkpoints.save(make_state(step), write_metadata)
    checkpoints.wait_until_finished()


def equal(a: TrainState, b: TrainState) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)


def state_target() -> TrainState:
    """Return the shapes of a state on one device, to restore it into."""
    return sharded_shapes(make_mesh(1, 1, 1, jax.devices()[:1]), make_state(0))


def arrays_of(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(f for f in pathlib.Path(path).rglob("*") if f.is_file() and f.parent.name == "d")


def truncate(path: pathlib.Path) -> None:
    largest = max(arrays_of(path), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])


def flip_bit(path: pathlib.Path) -> None:
    largest = max(arrays_of(path), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
