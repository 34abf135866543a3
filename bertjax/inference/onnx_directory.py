"""A directory of `bertjax export --to onnx` as a model to predict with."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import Array

from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.detection import ONNX_FILE
from bertjax.formats.loading import with_pooling
from bertjax.formats.sentence_transformers import read_projection
from bertjax.inference.onnx_runner import OnnxRunner
from bertjax.model.decoder.options import Decoding
from bertjax.model.heads import HEADS
from bertjax.model.pooling import l2_normalize, pool, project
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
      calibration: empty; an export has none.
      parts: "encoder" and the heads.

    Raises:
      InputError: a file is missing or damaged, or onnxruntime is not installed.
    """

    calibration: Mapping[str, float] = MappingProxyType({})

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
        if projection is not None:
            projection = jax.tree.map(jnp.asarray, projection)
        return functools.partial(_embed, self._run, _make_pooling(options, projection))


def _make_pooling(options: EmbeddingOptions, projection: Any) -> Callable[..., Array]:
    """Return the compiled function from vectors [B, T, H] to the embeddings [B, K, H] of texts.

    Its other arguments are `example_ids` and K.
    """

    @functools.partial(jax.jit, static_argnums=2)
    def embed(vectors: Array, example_ids: Array, num_texts: int) -> Array:
        embeddings = pool(vectors, example_ids, num_texts, options.pooling)
        if projection is not None:
            embeddings = project(embeddings, projection)
        return l2_normalize(embeddings) if options.normalize else embeddings

    return embed


def _embed(
    run: OnnxRunner,
    embed: Callable[..., Array],
    batches: Iterable[HostBatch],
    decoding: Decoding | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the embeddings [B, K, H] of each batch."""
    for batch in batches:
        (outputs,) = run([batch], decoding)
        num_texts = batch["cls_positions"].shape[1]
        embeddings = embed(outputs[_HIDDEN_STATE], batch["example_ids"], num_texts)
        yield {"embeddings": np.asarray(embeddings)}
