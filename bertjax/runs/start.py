"""What a run begins with: the parameters of another run, or of a published model."""

import dataclasses
import functools
import hashlib
import json
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.formats.opening import find_format, read_model
from bertjax.mesh import hosts
from bertjax.mesh.sharding import named_leaves
from bertjax.model.encoder import BertConfig
from bertjax.training.checkpoint import (
    FILES,
    check_params,
    find_checkpoint,
    load_params,
    saved_params,
)
from bertjax.training.config import MODEL_FIELDS, read_model_config
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

RECORD_FILE = "init.json"  # of a workdir: what its run began with
_log = logging.getLogger("bertjax")

# What no array shows, and what would change what the same arrays compute.
_COMPUTED = ("num_heads", "activation", "layer_norm_eps", "causal")
_UNPUBLISHED = ("dtype", "scan_layers", "remat")  # what no published model says of itself


def check_model(path: epath.Path, saved: BertConfig, model: BertConfig) -> None:
    """Refuses to compute the arrays at `path` otherwise than the model that they were saved of.

    Raises:
      InputError: naming what differs.
    """
    for name in _COMPUTED:
        theirs, ours = getattr(saved, name), getattr(model, name)
        if theirs != ours:
            raise InputError(
                f"{path} was made with {name}={theirs!r} and this configuration has "
                f"{ours!r}: set model.{name}={theirs!r}."
            )


class Start:
    """Parameters to begin with; heads that they lack stay random, those left over are left out.

    Args:
      path: a workdir or checkpoint of ours, or a directory of Hugging Face or TF1.
      step: of a workdir the checkpoint of this step and no newer one.

    Attributes:
      path: where they lie.
      model: the shape of the encoder, and how it was computed.
      tokenizer: None where a published model came without a vocabulary.
      digest: hex digest that changes with them.

    Raises:
      InputError: there is no such model; see `bertjax.formats.opening.read_model`.
    """

    def __init__(self, path: epath.PathLike, step: int | None = None) -> None:
        style = find_format(path)
        self._arrays: Any = None
        self.tokenizer: Tokenizer | None
        if style == "bertjax":
            self.path = find_checkpoint(path, step)
            self.model = read_model_config(self.path / "config.json")
            self.tokenizer = load_tokenizer(self.path)
            self._shapes = saved_params(self.path)
            self.digest = hashlib.sha256((self.path / FILES).read_bytes()).hexdigest()
        else:
            self.path = epath.Path(path)
            found = read_model(path, style)
            self.model, self.tokenizer = found.config, found.tokenizer
            self._arrays = self._shapes = found.params
            self.digest = _digest(found.params)

    def record(self) -> dict[str, Any]:
        """What a workdir writes down of it: path, step (None for a published model), digest."""
        name = self.path.name
        step = int(name) if name.isdigit() and self._arrays is None else None
        return {"path": str(self.path), "step": step, "digest": self.digest}

    def check(self, model: BertConfig, shapes: Any) -> None:
        """Refuses to begin a model of another kind, or with parameters of other shapes.

        Says which fields differ that may: those are the configuration's, never the start's.

        Raises:
          InputError: naming what differs.
        """
        check_model(self.path, self.model, model)
        check_params(self.path, {part: shapes[part] for part in self._kept(shapes)}, self._shapes)
        unknown = () if self._arrays is None else _UNPUBLISHED
        said = [
            f"{name}={ours!r} here, {theirs!r} where {self.path} was made"
            for name, theirs in dataclasses.asdict(self.model).items()
            if name not in MODEL_FIELDS and name not in unknown
            if (ours := getattr(model, name)) != theirs
        ]
        if said:
            _log.info("%s.", "; ".join(said))

    def fill(self, params: Any, reinit_layers: int = 0) -> Any:
        """A tree of random parameters with those that there are in their place.

        Args:
          reinit_layers: highest layers that stay random, and with them the pooler.
        """
        kept = [part for part in self._kept(params) if part != "pooler" or not reinit_layers]
        targets = {
            part: jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
                params[part],
            )
            for part in kept
        }
        if self._arrays is None:
            found = load_params(self.path, targets)
        else:
            arrays = {part: self._arrays[part] for part in kept}
            found = jax.tree.map(_place, targets, arrays)
        new = [part for part in params if part not in kept]
        if reinit_layers:
            layers = self.model.num_layers
            new.insert(0, f"layers above {layers - reinit_layers} of {layers}")
            blocks = found["encoder"]["blocks"], params["encoder"]["blocks"]
            found["encoder"]["blocks"] = jax.tree.map(
                functools.partial(_with_highest, reinit_layers), *blocks
            )
        _log.info(
            "beginning with the parameters of %s (%s)%s.",
            self.path,
            ", ".join(kept),
            f"; random: {', '.join(new)}" if new else "",
        )
        return dict(params) | found

    def _kept(self, tree: Any) -> list[str]:
        return [part for part in tree if part in self._shapes or part == "encoder"]


def begin(path: epath.PathLike, workdir: epath.Path) -> Start:
    """What a run in a workdir begins with: the very thing that it began with before, if it did.

    Raises:
      InputError: there is no such model, or it is no longer what it was.
    """
    record = workdir / RECORD_FILE
    if not record.exists():
        return Start(path)
    before = json.loads(record.read_text())
    start = Start(path, before["step"])
    if start.digest != before["digest"]:
        raise InputError(
            f"init={path} is not what the run in {workdir} began with (its digest is "
            f"{start.digest[:12]}, and was {before['digest'][:12]}): use another --workdir."
        )
    return start


def write_record(start: Start, workdir: epath.Path) -> None:
    """Notes what a run begins with, beside its configuration."""
    if hosts.is_first() and not (workdir / RECORD_FILE).exists():
        (workdir / RECORD_FILE).write_text(json.dumps(start.record(), indent=1))


def _place(target: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    """Each host gives its devices their pieces."""
    return jax.make_array_from_callback(target.shape, target.sharding, lambda index: array[index])


def _with_highest(count: int, array: jax.Array, other: jax.Array) -> jax.Array:
    """A stacked parameter with the highest layers of another one."""

    def joined(array: jax.Array, other: jax.Array) -> jax.Array:
        return jnp.concatenate([array[: len(array) - count], other[len(array) - count :]])

    return jax.jit(joined, out_shardings=array.sharding)(array, other)


def _digest(params: Any) -> str:
    digest = hashlib.sha256()
    for name, array in named_leaves(params):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
