"""Pretrained models: the parameters of a checkpoint or of a published model, to load and check."""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.checkpointing.lookup import has_checkpoint, read_checkpoint
from bertjax.checkpointing.parameters import (
    check_finite_params,
    check_params,
    load_params,
    read_param_shapes,
)
from bertjax.config.compound_values import parse_init_layers
from bertjax.config.config import Config
from bertjax.config.loading import MODEL_FIELDS, read_config, read_model_config
from bertjax.formats.detection import find_format
from bertjax.formats.loading import read_embedding_model, read_labels
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.feed import to_devices
from bertjax.mesh.sharding import map_named, named_leaves, sharded_shapes
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.encoders import PAIR
from bertjax.model.heads import HEADS
from bertjax.model.initialization import check_extension, extend_positions
from bertjax.tasks import registry
from bertjax.tasks.task import Task
from bertjax.workdir.model_history import read_history
from bertjax.workdir.model_records import RECORD_FILES
from bertjax.workdir.run_record import read_calibration
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.schema import read_json_object
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

_log = logging.getLogger("bertjax")
T = TypeVar("T")

# Fields that change what the same parameters compute, and that no parameter's shape reveals.
_ARCHITECTURE_FIELDS = (
    "num_attention_heads",
    "hidden_act",
    "layer_norm_eps",
    "encoder",
    "direction",
)
_INIT_ONLY_FIELDS = ("num_labels", "label_counts", "initializer_range", "attention_init")
_UNPUBLISHED_FIELDS = (
    "dtype",
    "scan_layers",
    "remat",
    "decoder",
)  # published models do not record them


def check_architecture(path: epath.Path, saved: BertConfig, model: BertConfig) -> None:
    """Check that the parameters at `path` mean the same in a configuration as in the saved one.

    Raises:
      InputError: a field differs.
    """
    for name in _ARCHITECTURE_FIELDS:
        saved_value, value = getattr(saved, name), getattr(model, name)
        if saved_value != value:
            raise InputError(
                f"model.{name}={value!r}: the model at {path} has {name}={saved_value!r}. Set "
                f"model.{name}={saved_value!r}."
            )


class PretrainedModel:
    """The parameters of a model, of bertjax or published, with its configuration and tokenizer.

    If the run of a workdir deletes the checkpoint before `load` has read it, another one is taken.

    Args:
      path: a workdir or checkpoint, or a Hugging Face or TF1 directory.
      step: step of the checkpoint to take from a workdir; by default the best or newest.

    Attributes:
      source: the path of the argument.
      path: directory of the parameters.
      bert_config: configuration of the encoder.
      tokenizer: None for a published model without a vocabulary.
      labels: label names of its classifier; empty without one.
      history: see `NumpyModel.history`.

    Raises:
      InputError: there is no such model; see `bertjax.formats.loading.read_model`.
    """

    def __init__(self, path: epath.PathLike, step: int | None = None) -> None:
        format_name = find_format(path)
        self.source = path
        self._published: NumpyModel | None = None
        self._loaded_params: Any = None
        self.tokenizer: Tokenizer | None
        if format_name == "bertjax":
            self._step = step
            self.bert_config, self._shapes = read_checkpoint(path, self._open_checkpoint, step)
        else:
            registry.register_heads()
            self.path = model_path(path)
            self._published = read_embedding_model(path, format_name)
            self.bert_config, self.tokenizer = self._published.config, self._published.tokenizer
            self.labels, self._shapes = self._published.labels, self._published.params
            self.history = self._published.history

    def _open_checkpoint(self, path: epath.Path) -> tuple[BertConfig, Any]:
        """Read everything but the parameters; return the model's configuration and shapes."""
        registry.register_heads(path)
        self.path = path
        self.tokenizer, self.labels = load_tokenizer(path), read_labels(path)
        self.calibration, self.history = read_calibration(path), read_history(path)
        self.digest = hashlib.sha256((path / MANIFEST_FILE).read_bytes()).hexdigest()
        return read_model_config(path / "config.json"), read_param_shapes(path)

    def _read(self, read: Callable[[epath.Path], T]) -> T:
        return read_checkpoint(self.source, read, self._step, first=self.path)

    @functools.cached_property
    def digest(self) -> str:
        """A hex digest that changes with the parameters."""
        assert self._published is not None
        return _digest(self._published.params)

    @functools.cached_property
    def calibration(self) -> Mapping[str, float]:
        """Calibration of the checkpoint, or of the one that was exported; may be empty."""
        assert self._published is not None
        return registry.infer_calibration(self._published)

    def config(self) -> Config:
        """Return the configuration of its run; for a published model one that could have made it.

        Raises:
          InputError: no task has its heads.
        """
        if self._published is None:
            fields = registry.data_fields()
            return self._read(lambda path: read_config(path / "config.json", fields))
        return registry.infer_config(self._published)

    def training_config(self) -> Config | None:
        """Return the configuration of its run; None for a published model."""
        return self.config() if self._published is None else None

    def check_compatible(self, model: BertConfig, shapes: Any, labels: Sequence[str]) -> None:
        """Check that a model of another configuration can be initialized from this one.

        Fields that may differ are logged. Heads that have other labels or read other layers are
        removed from this model, so that `load_init_params` does not load them. A masked language
        model may be initialized from one of one direction, and the other way around.

        Args:
          model: configuration of the new encoder.
          shapes: parameters of the new model as `jax.ShapeDtypeStruct`.
          labels: label names of the new model, of one head after the other.

        Raises:
          InputError: a field that must be equal, or the shape of a parameter, differs.
        """
        saved = self.bert_config
        changes_direction = (model.direction == "bidirectional" and saved.direction in PAIR) or (
            model.direction in PAIR and saved.direction == "bidirectional"
        )
        if changes_direction and saved.encoder == "transformer" and "mlm" in shapes:
            _log.info("%s: %s attention becomes %s.", self.path, saved.direction, model.direction)
            saved = dataclasses.replace(saved, direction=model.direction)
        check_architecture(self.path, saved, model)
        if any(getattr(saved, name) != getattr(model, name) for name in LAYER_MIX_FIELDS):
            # Heads that read another mix of layers are other heads.
            self._shapes = {"encoder": self._shapes["encoder"]}
        if saved.has_cross_attention and not model.has_cross_attention:
            # The masked LM head is the decoder's.
            self.keep_parts(part for part in self.parts if part not in ("decoder", "mlm"))
        self._shapes = {
            name: part
            for name, part in self._shapes.items()
            if name not in HEADS
            or not HEADS[name].has_label_names
            or saved.labels_of(name, self.labels) == model.labels_of(name, labels)
        }
        available = {part: shapes[part] for part in self._available_parts(shapes)}
        check_params(self.path, available, self._shapes)
        unknown = () if self._published is None else _UNPUBLISHED_FIELDS
        differences = [
            f"{name}={value!r} here, {saved_value!r} there"
            for name, saved_value in dataclasses.asdict(self.bert_config).items()
            if name not in (*MODEL_FIELDS, *_INIT_ONLY_FIELDS, *unknown)
            if (value := getattr(model, name)) != saved_value
        ]
        if differences:
            _log.info("other model fields than those of %s: %s.", self.path, "; ".join(differences))

    def has_labels_of(self, task: Task) -> bool:
        """Return whether its heads have the labels of a task's heads, in the same order."""
        saved, model = self.bert_config, task.config.model
        if not (saved.label_counts or model.label_counts):
            return self.labels == task.labels
        return saved.split_labels(self.labels) == model.split_labels(task.labels)

    def check_complete(self, model: BertConfig, params: Any) -> None:
        """Check that it has all parameters of a model, and computes the same.

        Args:
          model: configuration of the encoder.
          params: a tree of arrays or shapes.

        Raises:
          InputError: a field or the shape of a parameter differs, or a head is missing.
        """
        check_architecture(self.path, self.bert_config, model)
        saved = self.bert_config
        # With a mask alone a decoder has the parameters of a BERT without one.
        has_both = bool(saved.decoder and model.decoder)
        has_cross_attention = saved.has_cross_attention or model.has_cross_attention
        differs = saved.decoder != model.decoder and (has_both or has_cross_attention)
        if "mlm" in params and differs:
            raise InputError(
                f"model.decoder={model.decoder!r}: the model at {self.path} has "
                f"decoder={saved.decoder!r}. Set model.decoder={saved.decoder!r}."
            )
        for name in params:
            if name in HEADS and name not in self._shapes:
                raise InputError(
                    f"{self.path} has no {HEADS[name].display_name}, only {', '.join(self._shapes)}"
                    ". Train it with init, or compute embeddings with `bertjax embed`."
                )
        check_params(self.path, params, self._shapes)

    def host_params(self) -> Any:
        """Return its parameters as NumPy arrays."""
        if self._published is not None:
            return {part: self._published.params[part] for part in self._shapes}
        return self.load(self._shapes)

    def keep_parts(self, parts: Iterable[str]) -> None:
        """Remove the parts that are not named: `load` and `host_params` lack them then."""
        self._shapes = {name: self._shapes[name] for name in parts}

    def select_layers(self, spec: str) -> None:
        """Keep some of its blocks in their order in `init_layers`, or all if that is empty.

        Raises:
          InputError: it lacks one of them.
        """
        if not spec:
            return
        layers = parse_init_layers(spec)
        count = self.bert_config.num_hidden_layers
        if missing := [layer for layer in layers if layer >= count]:
            raise InputError(
                f"init_layers: {self.path} has {count} layers, no {missing[0]}. Use 0 to "
                f"{count - 1}."
            )
        self._change_params(
            lambda name, leaf: leaf[layers] if "/blocks/" in name else leaf,
            num_hidden_layers=len(layers),
        )

    def extend_positions(self, method: str, model: BertConfig) -> None:
        """Extend its position embeddings to those of a new model, and log it.

        Args:
          method: see `extend_positions`; "" if the numbers of positions must be equal.
          model: configuration of the new encoder.

        Raises:
          InputError: the new model has fewer, or has more without a method.
        """
        count, size = self.bert_config.max_position_embeddings, model.max_position_embeddings
        if size == count or self.bert_config.encoder == "lstm":
            return
        check_extension(str(self.path), count, size, method)

        def change(name: str, leaf: np.ndarray) -> np.ndarray:
            is_table = name.endswith("embeddings/position")
            return extend_positions(leaf, size, method) if is_table else leaf

        self._change_params(change, max_position_embeddings=size)
        _log.info("%s: %d positions become %d, init_positions=%s.", self.path, count, size, method)

    def _change_params(self, change: Callable[[str, Any], Any], **fields: Any) -> None:
        """Replace each array by `change(name, array)`, and fields of the configuration."""
        self.digest  # noqa: B018 (of the model at the path, not of what it becomes)
        params = map_named(change, dict(self.host_params()))
        self.bert_config = dataclasses.replace(self.bert_config, **fields)
        self._published = NumpyModel(self.bert_config, params, self.tokenizer, labels=self.labels)
        self._shapes = params

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts that it has: "encoder", "decoder" and heads."""
        return tuple(self._shapes)

    def load_all(self, mesh: Mesh) -> Any:
        """Load all parameters onto the devices of a mesh; later calls of `load` return them."""
        self._loaded_params = self._shapes = self.load(sharded_shapes(mesh, self._shapes))
        if self._published is not None:  # free the arrays on the host
            self._published = dataclasses.replace(self._published, params=self._loaded_params)
        return self._loaded_params

    def load(self, targets: Any) -> Any:
        """Load the parameters of a tree of `jax.ShapeDtypeStruct` with shardings."""
        if self._loaded_params is not None:
            return {part: self._loaded_params[part] for part in targets}
        if self._published is None:

            def load(path: epath.Path) -> Any:
                if path != self.path:  # the first one is gone
                    self._open_checkpoint(path)
                return load_params(path, targets)

            params = self._read(load)
            check_finite_params(self.path, params)
            return params
        arrays = {part: self._published.params[part] for part in targets}
        return jax.tree.map(to_devices, arrays, targets)

    def load_init_params(self, shapes: Any, reinit_layers: int = 0) -> Any:
        """Load the parameters that a new model shares with this one, and log which.

        Args:
          shapes: parameters of the new model, `jax.ShapeDtypeStruct` with shardings.
          reinit_layers: number of highest layers that stay random, and with them the pooler.
        """
        loaded = [
            part for part in self._available_parts(shapes) if part != "pooler" or not reinit_layers
        ]
        params = self.load({part: shapes[part] for part in loaded})
        random = [part for part in shapes if part not in loaded]
        copied = ""
        if "decoder" in random:  # see `merge_pretrained`
            copied = "; decoder: copied from the encoder"
            random[random.index("decoder")] = "cross-attention of the decoder"
        if reinit_layers:
            layers = self.bert_config.num_hidden_layers
            random.insert(0, f"layers above {layers - reinit_layers} of {layers}")
        others = f"; random: {', '.join(random)}" if random else ""
        _log.info("initializing from %s (%s)%s%s.", self.path, ", ".join(loaded), copied, others)
        return params

    def _available_parts(self, tree: Any) -> list[str]:
        return [part for part in tree if part in self._shapes or part == "encoder"]


def open_recorded(field: str, path: epath.PathLike, workdir: epath.Path) -> PretrainedModel:
    """Return the model that a field names: the recorded one if the workdir has a record.

    Args:
      field: "init" or "distill.teacher".
      path: its value.
      workdir: directory of the run, or of the sweep.

    Raises:
      InputError: there is no such model, or it has changed since it was recorded.
    """
    record = workdir / RECORD_FILES[field]
    if not record.exists():
        return PretrainedModel(path)
    recorded = read_json_object(record, {"step?": int, "digest": str}, "Use another --workdir.")
    step = recorded.get("step")
    is_checkpoint = (model_path(path) / MANIFEST_FILE).exists()
    if step is not None and not is_checkpoint and not has_checkpoint(path, step):
        raise InputError(
            f"{field}={path}: its checkpoint of step {step}, which the run in {workdir} began "
            "with, is gone. Use another --workdir."
        )
    model = PretrainedModel(path, step)
    if model.digest != recorded["digest"]:
        raise InputError(
            f"{field}={path}: not the model that the run in {workdir} began with (digest "
            f"{model.digest[:12]}, recorded {recorded['digest'][:12]}). Use another --workdir."
        )
    return model


def _digest(params: Any) -> str:
    digest = hashlib.sha256()
    for name, array in named_leaves(params):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
