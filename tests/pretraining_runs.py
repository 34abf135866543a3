"""Configurations and results of small pre-training runs."""

import json
import pathlib
import signal

import jax
import numpy as np
from config_loading import load

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.checkpointing.parameters import load_params
from bertjax.config.config import Config
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import sharded_shapes
from bertjax.tasks import registry
from bertjax.training.throughput import Profiler

LOSSES = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "grad_norm")


def make_run_config(corpus: pathlib.Path, **overrides: object) -> Config:
    fields = {"model__vocab_size": 128, "mesh__data": 8, "steps": 12, "log_every": 3}
    fields |= {"checkpoint_every": 4, "eval_every": 6, "data__workers": 1}
    return load(f"smoke,data={corpus}", **fields | overrides)


def metrics(workdir: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def losses(workdir: pathlib.Path) -> list[tuple]:
    return [(m["step"], m["split"], *(m.get(name) for name in LOSSES)) for m in metrics(workdir)]


def params_of(workdir: pathlib.Path, config: Config) -> list[np.ndarray]:
    shapes = jax.eval_shape(registry.make_objective(config).init_params, jax.random.key(0))
    target = sharded_shapes(make_mesh(1, 1, 1, jax.devices()[:1]), shapes)
    params = load_params(find_checkpoint(workdir), target)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def stop_at(step: int, monkeypatch) -> None:
    """Let a stop signal arrive during a step."""
    plain = Profiler.before

    def before(self, current: int, state: object) -> None:
        plain(self, current, state)
        if current == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Profiler, "before", before)
