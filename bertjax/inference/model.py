"""Python interface to a model."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jax import Array

from bertjax.formats.loading import find_tokenizer
from bertjax.formats.sentence_transformers import find_encoder
from bertjax.inference.feature_extraction import Embedder, find_embedding_options
from bertjax.inference.predictor import (
    Predictor,
    check_argument,
    check_inputs,
    make_inputs,
    open_model,
)
from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.heads import HEADS, check_modules_known
from bertjax.tasks import registry
from bertjax.tasks.embeddings.encoder_embeddings import apply_encoder
from bertjax.tasks.fill_mask import encode_with_masks
from bertjax.tasks.pipeline import Pipeline
from bertjax.tasks.task import bucket_size, check_type_vocab_size
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset

_MAX_EMBEDDERS = 4  # each may hold parameters in a layout of its own

_MIN_SEQ_LENGTH = 16  # tokens


class Model:
    """Model on all devices of this process.

    `predict` answers inputs of the model's task. The same is a method with the name of the task's
    pipeline, such as `fill_mask` or `classify`, whose documentation is that of the pipeline's
    `parse_arguments`. A method takes one input or several, and returns one answer or a list. An
    answer is a dictionary of plain values, like a line of `bertjax predict`. The first call
    compiles; later calls of a similar size do not.

    Args:
      directory: a workdir, a checkpoint, or a model directory of Hugging Face, TF1 or
        sentence-transformers, or of an export to ONNX.

    Attributes:
      path: directory of the model.
      config: shape of the encoder.
      params: all parameters, float32 on the devices: "encoder" and the heads; None of an ONNX
        model.
      tokenizer: tokenizer with `encode`, from text to token ids, and `decode`.
      labels: names of a classifier's outputs; empty without one.

    Raises:
      InputError: there is no such model, or it has no vocabulary.
    """

    def __init__(self, directory: epath.PathLike) -> None:
        self._directory = directory
        self._pretrained = model = open_model(find_encoder(directory))
        self.path, self.config, self.labels = model.path, model.bert_config, model.labels
        self.tokenizer = model.tokenizer or find_tokenizer(model.path)
        self.params: Any = None
        if isinstance(model, PretrainedModel):
            self.params = model.load_all(make_mesh(-1, 1, 1))
        self._embedders: dict[Any, Embedder] = {}  # by the arguments of `encode`

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method of a task's pipeline; it fails if the model is of another task."""
        if not name.startswith("_"):
            for pipeline in registry.pipeline_classes():
                if pipeline.method == name:
                    return self._make_method(pipeline)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *(pipeline.method for pipeline in registry.pipeline_classes())]

    def predict(self, inputs: Any, return_all_scores: bool = False) -> Any:
        """Return the answer to an input of the model's task, or a list of answers.

        Args:
          inputs: a text or a dictionary with the keys that the task reads, or several.
          return_all_scores: add the scores of all labels or choices.

        Raises:
          InputError: an input is invalid for the task.
        """
        parsed, is_single = make_inputs(inputs)
        answers = list(self._predictor.predict(parsed, return_all_scores=return_all_scores))
        return answers[0] if is_single else answers

    def encode(
        self,
        texts: str | Iterable[str],
        layers: Sequence[int] = (-1,),
        pooling: str | None = None,
        normalize: bool = False,
    ) -> np.ndarray:
        """Return the embedding of a text, float32 [H], or of several, [N, H].

        Texts that are longer than the model's maximum are truncated with a warning.

        Args:
          texts: a text, or several.
          layers: layers whose mean is taken: -1 is the last, 0 the embedding layer.
          pooling: "mean", "cls" or "max" of a text's tokens; by default that of a
            sentence-transformers model, else the mean.
          normalize: scale embeddings to length 1.

        Raises:
          InputError: there is no such layer or pooling, or an input is no text.
        """
        if not isinstance(layers, Iterable) or isinstance(layers, str):
            raise InputError(f"layers={layers!r}: no list of layers. Give one, such as (-1,).")
        key, listed = (tuple(layers), pooling, normalize), _as_texts(texts)
        embedder = self._embedders.pop(key, None)
        if embedder is None:
            _, options = find_embedding_options(self._directory, layers, "text", pooling, normalize)
            embedder = Embedder(self._pretrained, options)
        self._embedders[key] = embedder  # the last one
        if len(self._embedders) > _MAX_EMBEDDERS:
            del self._embedders[next(iter(self._embedders))]
        if not listed:
            size = embedder.options.projection_size or self.config.output_size
            return np.zeros((0, size), np.float32)
        encoded = embedder.encode(listed)
        embedder.warn_truncated(encoded.num_truncated, len(listed))
        return encoded.embeddings[0] if isinstance(texts, str) else encoded.embeddings

    def batch(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the input of `apply`, int32 arrays [B, T].

        They are `input_ids`, `token_type_ids`, `example_ids` and `position_ids`. T is a power of
        two, so that few shapes are compiled. `example_ids` is 1 for tokens and 0 for padding.
        "[MASK]" in a text is the mask token, as for `fill_mask`.

        Args:
          texts: texts.
          pairs: second texts.

        Raises:
          InputError: there are no texts, not as many pairs, a text has more tokens than the model
            takes, or there are pairs and the model has one token type.
        """
        first, second = _as_texts(texts), None if pairs is None else _as_texts(pairs)
        if not first or (second is not None and len(first) != len(second)):
            raise InputError(
                f"{len(first)} texts and {len(second or ())} pairs: no batch. Give some texts, and "
                "a pair for each or none."
            )
        if second is not None:
            check_type_vocab_size(self.config, "the texts of a pair")
        limit = self.config.max_position_embeddings
        dataset = SequenceClassificationDataset("", [], first, second)
        encode = functools.partial(encode_with_masks, self.tokenizer)
        encoded = encode_texts(dataset, self.tokenizer, limit, "head", encode)
        if encoded.truncated:
            raise InputError(
                f"{encoded.num_truncated} of {len(first)} texts have more than the {limit} tokens "
                "that the model takes. Shorten them."
            )
        examples = encoded.examples
        length = bucket_size(examples.lengths.max(), _MIN_SEQ_LENGTH, limit)
        positions = np.arange(length)
        is_token = positions < examples.lengths[:, None]
        ids = np.zeros(is_token.shape, np.int32)
        ids[is_token] = examples.ids
        is_second = is_token & (positions >= examples.prefix_lengths[:, None])
        return {
            "input_ids": ids,
            "token_type_ids": is_second.astype(np.int32),
            "example_ids": is_token.astype(np.int32),
            "position_ids": np.where(is_token, positions, 0).astype(np.int32),
        }

    def apply(
        self,
        params: Any,
        batch: Mapping[str, Any],
        key: Array | None = None,
        layers: Sequence[int] | None = None,
    ) -> Array:
        """Apply the encoder; a pure function that can be compiled and differentiated.

        Args:
          params: `Model.params`, or a tree of the same shapes; only "encoder" is read.
          batch: see `batch`. Several texts may share a sequence, each with its own number in
            `example_ids` and positions from 0.
          key: random key that turns dropout on.
          layers: see `encode`; the last one by default.

        Returns:
          The tokens' embeddings [B, T, H], or of each layer [len(layers), B, T, H], in the dtype of
          the computation, `config.dtype`.
        """
        return apply_encoder(self.config, params, batch, key, layers)

    @functools.cached_property
    def _predictor(self) -> Predictor:
        check_modules_known(self._pretrained.parts, self.path)
        has_head = any(part in HEADS for part in self._pretrained.parts)
        if not has_head and registry.make_objective(self._pretrained.config()).heads:
            raise InputError(f"{self.path}: the model has no head. Call encode for embeddings.")
        return Predictor(self._pretrained)

    def _make_method(self, pipeline: type[Pipeline[Any]]) -> Callable[..., Any]:
        signature = inspect.signature(pipeline.parse_arguments)

        @functools.wraps(pipeline.parse_arguments)
        def method(*args: Any, return_all_scores: bool = False, **kwargs: Any) -> Any:
            trained = self._predictor.pipeline
            if trained.method != pipeline.method:
                raise InputError(
                    f"{self.path}: the model {trained.description}. Call {trained.method}, or "
                    f"encode for embeddings, or load a model that {pipeline.description}."
                )
            for name, value in signature.bind(*args, **kwargs).arguments.items():
                if signature.parameters[name].default is inspect.Parameter.empty:
                    check_argument(name, value)
            return self.predict(pipeline.parse_arguments(*args, **kwargs), return_all_scores)

        method.__name__ = pipeline.method
        return method


def _as_texts(texts: str | Iterable[str]) -> list[str]:
    check_inputs("texts", texts)
    listed: list[Any] = [texts] if isinstance(texts, str | Mapping) else list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"input {number}: {text!r} is no text. Give a text.")
    return listed
