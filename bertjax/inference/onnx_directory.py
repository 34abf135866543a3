"""A directory of `bertjax export --to onnx` as a model to predict with."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.detection import ONNX_FILE
from bertjax.formats.loading import with_pooling
from bertjax.formats.sentence_transformers import read_projection
from bertjax.inference.onnx_runner import OnnxRunner, TextGroup
from bertjax.mesh.finite import check_finite
from bertjax.model.decoder.options import Decoding
from bertjax.model.heads import HEADS
from bertjax.steps.objective import Objective
from bertjax.tasks import registry
from bertjax.tasks.embeddings.encoder_embeddings import EmbeddingOptions, EmbeddingsObjective
from bertjax.tasks.embeddings.objective import TrainedEmbeddingsObjective
from bertjax.tasks.pipeline import HostBatch, RunFunction
from data_pipelines.errors import InputError
from data_pipelines.hub import model_path
from data_pipelines.libraries import check_installed

_HIDDEN_STATE = "last_hidden_state"


class OnnxModel:
    """A model that onnxruntime computes; it has no parameters that could be loaded.

    Args:
      path: directory with model.onnx, config.json and the tokenizer.

    Attributes:
      path: the directory.
      bert_config: configuration of the encoder.
      tokenizer: its tokenizer.
      labels: label names of its classifier; empty without one.
      parts: "encoder" and the heads.

    Raises:
      InputError: a file is missing or damaged, or onnxruntime is not installed.
    """

    def __init__(self, path: epath.PathLike) -> None:
        check_installed(f"{path}: an ONNX model", "onnxruntime", install="'bertjax[onnx]'")
        registry.register_heads()
        self.path = model_path(path)
        content = (self.path / ONNX_FILE).read_bytes()  # the path may be remote
        self.digest = hashlib.sha256(content).hexdigest()
        self._run = OnnxRunner(content, self.path / ONNX_FILE)
        self._check_outputs()
        config_dict = huggingface.read_config_dict(self.path)
        bert_config = huggingface.parse_bert_config(config_dict, self.path)
        # The sizes of outputs are those of biases.
        params: dict[str, Any] = {
            name.removesuffix("_logits"): {"bias": np.zeros(size)}
            for name, size in self._run.output_sizes.items()
            if name.removesuffix("_logits") in HEADS
        }
        params = {"encoder": {}, **params}
        model = huggingface.finish_model(self.path, bert_config, config_dict, params)
        self._model = with_pooling(model, self.path)
        self.bert_config, self.labels = self._model.config, self._model.labels
        self.tokenizer, self.parts = self._model.tokenizer, tuple(params)

    @functools.cached_property
    def calibration(self) -> Mapping[str, float]:
        """Calibration of the checkpoint that was exported; may be empty."""
        return registry.infer_calibration(self._model)

    def config(self) -> Config:
        """Return a configuration that could have made the model.

        Raises:
          InputError: no task has its heads.
        """
        return registry.infer_config(self._model)

    def _check_outputs(self) -> None:
        for name in self._run.output_sizes:
            if name != _HIDDEN_STATE and name.removesuffix("_logits") not in HEADS:
                raise InputError(
                    f"{self.path / ONNX_FILE}: no known head has the output {name!r}. Add --task "
                    "of its task, or give the model from which it was exported."
                )

    def run_function(self, objective: Objective) -> RunFunction:
        """Return the function that computes what an objective's `apply` does.

        Raises:
          InputError: the graph has not got its outputs.
        """
        is_encoder = _HIDDEN_STATE in self._run.output_sizes
        if isinstance(objective, TrainedEmbeddingsObjective):
            names = ("pooling", "normalize", "projection_size")
            options = EmbeddingOptions(**{name: objective.config.data[name] for name in names})
        elif isinstance(objective, EmbeddingsObjective):
            options = objective.options
        else:
            if missing := [HEADS[name] for name in objective.heads if name not in self.parts]:
                raise InputError(f"{self.path}: has no {missing[0].display_name}. Export a model.")
            return self._run
        if not is_encoder or options.level != "text" or set(options.layers) != {-1}:
            raise InputError(
                f"{self.path}: an ONNX model has embeddings of texts, from its last layer, if it "
                "has no heads. Give the model from which it was exported."
            )
        projection = read_projection(self.path) if options.projection_size else None
        return functools.partial(_embed, self._run, options, projection)


def _embed(
    run: OnnxRunner,
    options: EmbeddingOptions,
    projection: Mapping[str, np.ndarray] | None,
    batches: Iterable[HostBatch],
    decoding: Decoding | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the embeddings [B, K, H] of each batch."""
    assert decoding is None  # embeddings have no targets
    size = run.output_sizes[_HIDDEN_STATE] if projection is None else len(projection["bias"])
    for batch in batches:
        embeddings = np.zeros((*batch["cls_positions"].shape, size), np.float32)
        for group in run.run_groups(batch):
            pooled = _pool(group, options.pooling)
            if projection is not None:
                pooled = pooled @ projection["kernel"] + projection["bias"]
            if options.normalize:
                squares = np.sum(np.square(pooled), axis=-1, keepdims=True)
                pooled = pooled / np.sqrt(np.maximum(squares, 1e-24))
            embeddings[group.texts.rows, group.texts.slots] = pooled
        check_finite(embeddings, "embeddings")
        yield {"embeddings": embeddings}


def _pool(group: TextGroup, mode: str) -> np.ndarray:
    """Return one vector for each text, float32 [N, H], as `bertjax.model.pooling.pool` does.

    That function pools packed sequences on a device; to call it takes long beside a short text.
    """
    vectors = group.outputs[_HIDDEN_STATE]
    if mode == "cls":
        return vectors[:, 0]
    if mode == "mean":
        weights = group.is_token / group.texts.lengths[:, None].astype(np.float32)
        return np.einsum("nl,nlh->nh", weights, vectors)
    return np.max(vectors, axis=1, where=group.is_token[..., None], initial=-np.inf)
