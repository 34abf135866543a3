"""What a command begins with: the parameters of a run, or of a published model."""

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.checkpointing.parameters import check_params, load_params, read_param_shapes
from bertjax.config.config import Config
from bertjax.config.loading import MODEL_FIELDS, read_config, read_model_config
from bertjax.formats.loading import find_format, read_labels, read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh import distributed
from bertjax.mesh.sharding import named_leaves, sharded_shapes
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.heads import HEADS
from bertjax.tasks import registry
from bertjax.workdir.run_record import read_calibration
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

INIT_RECORD_FILE = "init.json"  # of a workdir: what its run began with
_log = logging.getLogger("bertjax")

# What no array shows, and what would change what the same arrays compute.
_ARCHITECTURE_FIELDS = ("num_attention_heads", "hidden_act", "layer_norm_eps", "causal")
_INIT_ONLY_FIELDS = (
    "num_labels",
    "initializer_range",
    "initialization",
)  # of no matter to parameters that are there
_UNPUBLISHED_FIELDS = ("dtype", "scan_layers", "remat")  # what no published model says of itself


def check_model(path: epath.Path, saved: BertConfig, model: BertConfig) -> None:
    """Refuses to compute the arrays at `path` otherwise than the model that they were saved of.

    Raises:
      InputError: naming what differs.
    """
    for name in _ARCHITECTURE_FIELDS:
        theirs, ours = getattr(saved, name), getattr(model, name)
        if theirs != ours:
            raise InputError(
                f"{path} was made with {name}={theirs!r} and this configuration has "
                f"{ours!r}: set model.{name}={theirs!r}."
            )


class PretrainedModel:
    """The parameters of a model, ours or published, and what opens it.

    Args:
      path: a workdir or checkpoint of ours, or a directory of Hugging Face or TF1.
      step: of a workdir the checkpoint of this step and no newer one.

    Attributes:
      path: where they lie.
      model: the shape of the encoder, and how it was computed.
      tokenizer: None where a published model came without a vocabulary.
      labels: names of the outputs of its classifier; empty without one.
      calibration: what was calibrated when it was saved; empty where nothing was.

    Raises:
      InputError: there is no such model; see `bertjax.formats.loading.read_model`.
    """

    def __init__(self, path: epath.PathLike, step: int | None = None) -> None:
        format_name = find_format(path)
        self._published: NumpyModel | None = None
        self._loaded_params: Any = None
        self.calibration: Mapping[str, float] = {}
        self.tokenizer: Tokenizer | None
        if format_name == "bertjax":
            self.path = find_checkpoint(path, step)
            self.model = read_model_config(self.path / "config.json")
            self.tokenizer, self.labels = load_tokenizer(self.path), read_labels(self.path)
            self.calibration = read_calibration(self.path)
            self._shapes = read_param_shapes(self.path)
        else:
            self.path = epath.Path(path)
            self._published = found = read_model(path, format_name)
            self.model, self.tokenizer, self.labels = found.config, found.tokenizer, found.labels
            self._shapes = found.params

    @functools.cached_property
    def digest(self) -> str:
        """A hex digest that changes with the parameters."""
        if self._published is None:
            return hashlib.sha256((self.path / MANIFEST_FILE).read_bytes()).hexdigest()
        return _digest(self._published.params)

    def config(self) -> Config:
        """Of the run that made it; of a published model one that could have.

        Raises:
          InputError: no task has its heads.
        """
        if self._published is None:
            return read_config(self.path / "config.json", registry.data_fields())
        return registry.infer_config(self._published)

    def training_config(self) -> Config | None:
        """The configuration of the run that made it; None of a published model."""
        return self.config() if self._published is None else None

    def init_record(self) -> dict[str, Any]:
        """What a workdir writes down of it: path, step (None for a published model), digest."""
        name = self.path.name
        step = int(name) if name.isdigit() and self._published is None else None
        return {"path": str(self.path), "step": step, "digest": self.digest}

    def check_compatible(self, model: BertConfig, shapes: Any, labels: Sequence[str]) -> None:
        """Refuses to begin a model of another kind, or with parameters of other shapes.

        Says which fields differ that may: those are the configuration's, never the start's. A
        head of other labels than these is left out. To learn to fill masks a model may begin as
        one that reads left to right.

        Raises:
          InputError: naming what differs.
        """
        begun = self.model
        if begun.causal and not model.causal and "mlm" in shapes:
            _log.info("%s reads left to right: from here on it sees both sides.", self.path)
            begun = dataclasses.replace(begun, causal=False)
        check_model(self.path, begun, model)
        if any(getattr(self.model, name) != getattr(model, name) for name in LAYER_MIX_FIELDS):
            # Heads that read something else are other heads.
            self._shapes = {"encoder": self._shapes["encoder"]}
        if tuple(labels) != self.labels:
            self._shapes = {
                name: part
                for name, part in self._shapes.items()
                if name not in HEADS or not HEADS[name].has_labels
            }
        check_params(
            self.path, {part: shapes[part] for part in self._available_parts(shapes)}, self._shapes
        )
        unknown = () if self._published is None else _UNPUBLISHED_FIELDS
        said = [
            f"{name}={ours!r} here, {theirs!r} where {self.path} was made"
            for name, theirs in dataclasses.asdict(self.model).items()
            if name not in (*MODEL_FIELDS, *_INIT_ONLY_FIELDS) and name not in unknown
            if (ours := getattr(model, name)) != theirs
        ]
        if said:
            _log.info("%s.", "; ".join(said))

    def check_complete(self, model: BertConfig, params: Any) -> None:
        """Refuses to stand for a model of another kind, or with parameters that it lacks.

        Args:
          params: a tree of arrays or shapes.
        Raises:
          InputError: naming what differs.
        """
        check_model(self.path, self.model, model)
        for name in params:
            if name in HEADS and name not in self._shapes:
                raise InputError(
                    f"{self.path} has no {HEADS[name].part}, only {', '.join(self._shapes)}: train "
                    "it with init, or take vectors with `bertjax embed`."
                )
        check_params(self.path, params, self._shapes)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the model is of: "encoder" and the names of heads."""
        return tuple(self._shapes)

    def load_all(self, mesh: Mesh) -> Any:
        """All parameters, on the devices of a mesh; from now on `load` gives these very arrays."""
        self._loaded_params = self._shapes = self.load(sharded_shapes(mesh, self._shapes))
        if self._published is not None:  # whose own would stay in memory
            self._published = dataclasses.replace(self._published, params=self._loaded_params)
        return self._loaded_params

    def load(self, targets: Any) -> Any:
        """Those of a tree of `jax.ShapeDtypeStruct` with shardings, all of which it has."""
        if self._loaded_params is not None:
            return {part: self._loaded_params[part] for part in targets}
        if self._published is None:
            return load_params(self.path, targets)
        arrays = {part: self._published.params[part] for part in targets}
        return jax.tree.map(_make_global_array, targets, arrays)

    def load_init_params(self, shapes: Any, reinit_layers: int = 0) -> Any:
        """What is begun with of a tree of `jax.ShapeDtypeStruct` with shardings; says so.

        Args:
          reinit_layers: highest layers that are to stay random, and with them the pooler.
        """
        kept = [
            part for part in self._available_parts(shapes) if part != "pooler" or not reinit_layers
        ]
        found = self.load({part: shapes[part] for part in kept})
        new = [part for part in shapes if part not in kept]
        if reinit_layers:
            layers = self.model.num_hidden_layers
            new.insert(0, f"layers above {layers - reinit_layers} of {layers}")
        _log.info(
            "beginning with the parameters of %s (%s)%s.",
            self.path,
            ", ".join(kept),
            f"; random: {', '.join(new)}" if new else "",
        )
        return found

    def _available_parts(self, tree: Any) -> list[str]:
        return [part for part in tree if part in self._shapes or part == "encoder"]


def open_init(path: epath.PathLike, workdir: epath.Path) -> PretrainedModel:
    """What a run in a workdir begins with: the very thing that it began with before, if it did.

    Raises:
      InputError: there is no such model, or it is no longer what it was.
    """
    record = workdir / INIT_RECORD_FILE
    if not record.exists():
        return PretrainedModel(path)
    before = json.loads(record.read_text())
    start = PretrainedModel(path, before["step"])
    if start.digest != before["digest"]:
        raise InputError(
            f"init={path} is not what the run in {workdir} began with (its digest is "
            f"{start.digest[:12]}, and was {before['digest'][:12]}): use another --workdir."
        )
    return start


def write_init_record(start: PretrainedModel, workdir: epath.Path) -> None:
    """Notes what a run begins with, beside its configuration."""
    if distributed.is_process_0() and not (workdir / INIT_RECORD_FILE).exists():
        atomic_write_text(workdir / INIT_RECORD_FILE, json.dumps(start.init_record(), indent=1))


def _make_global_array(target: jax.ShapeDtypeStruct, array: np.ndarray) -> jax.Array:
    """Each host gives its devices their pieces."""
    return jax.make_array_from_callback(target.shape, target.sharding, lambda index: array[index])


def _digest(params: Any) -> str:
    digest = hashlib.sha256()
    for name, array in named_leaves(params):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
