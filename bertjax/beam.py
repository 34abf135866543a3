"""Embeddings and predictions in Apache Beam pipelines, on Dataflow, Flink, Spark or this machine.

Needs the extra `beam`: pip install 'bertjax[beam]'.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from data_pipelines.errors import InputError

try:
    from apache_beam.ml.inference.base import ModelHandler, PredictionResult
except ImportError as error:
    raise InputError(
        "apache_beam: not installed. Install it with pip install 'bertjax[beam]'."
    ) from error

_ARGUMENTS = {"encode": ("layers", "pooling", "normalize"), "predict": ("return_all_scores",)}
_MAX_BATCH_SIZE = 512  # elements, of similar length to share sequences


class SharedModel:
    """A model that threads, or processes through Beam's proxies, call one after the other.

    Args:
      checkpoint: see `bertjax.load`.
      method: method of `bertjax.Model`.
    """

    def __init__(self, checkpoint: epath.PathLike, method: str) -> None:
        from bertjax.interface import load  # starts JAX, in the worker alone

        self._method = getattr(load(checkpoint), method)
        self._lock = threading.Lock()  # programs on several devices must start in one order

    def compute(self, batch: Sequence[Any], arguments: Mapping[str, Any]) -> list[Any]:
        """Return the result for each input of a batch."""
        with self._lock:
            return list(self._method(batch, **arguments))


class BertjaxModelHandler(ModelHandler[Any, PredictionResult, SharedModel]):
    """Handler for `apache_beam.ml.inference.RunInference`.

    The inference of an element is its embedding, float32 [H], or its answer, a dictionary.

    Args:
      checkpoint: model that all workers can read, such as `gs://`; see `bertjax.load`.
      method: "encode" for embeddings, "predict" for answers of the model's task.
      arguments: arguments of the method: `layers`, `pooling` and `normalize` of `encode`, or
        `return_all_scores` of `predict`. `inference_args` of `RunInference` take precedence.
      max_batch_size: largest number of elements that are computed together.
      options: other options of `ModelHandler`: `large_model=True` has one copy of the model for all
        processes of a machine, which GPUs and TPUs need; `env_vars` sets variables of workers.

    Raises:
      InputError: there is no such method or argument. A worker raises it for an invalid model or
        element.
    """

    def __init__(
        self,
        checkpoint: epath.PathLike,
        method: str = "encode",
        arguments: Mapping[str, Any] | None = None,
        *,
        max_batch_size: int = _MAX_BATCH_SIZE,
        **options: Any,
    ) -> None:
        super().__init__(max_batch_size=max_batch_size, **options)
        if method not in _ARGUMENTS:
            raise InputError(f"method={method!r}: unknown. Use {' or '.join(_ARGUMENTS)}.")
        self._checkpoint, self._method = str(checkpoint), method
        self._arguments = dict(arguments or {})
        self.validate_inference_args(self._arguments)

    def load_model(self) -> SharedModel:
        """Return the model; called in a worker."""
        return SharedModel(self._checkpoint, self._method)

    def run_inference(
        self,
        batch: Sequence[Any],
        model: SharedModel,
        inference_args: dict[str, Any] | None = None,
    ) -> Iterable[PredictionResult]:
        """Return each element with its embedding or answer, and the path of the model.

        Args:
          batch: texts, or inputs of `predict`.
          model: result of `load_model`.
          inference_args: arguments in place of those of the constructor.
        """
        inferences = model.compute(list(batch), {**self._arguments, **(inference_args or {})})
        pairs = zip(batch, inferences, strict=True)
        return [PredictionResult(item, inference, self._checkpoint) for item, inference in pairs]

    def get_metrics_namespace(self) -> str:
        """Return the namespace of Beam's metrics."""
        return "BeamML_bertjax"

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Raise InputError for an argument that the method does not have."""
        known = _ARGUMENTS[self._method]
        for name, value in (inference_args or {}).items():
            if name not in known:
                raise InputError(
                    f"{name}={value!r}: {self._method} has no such argument. Use some of "
                    f"{', '.join(known)}."
                )

    def update_model_path(self, model_path: str | None = None) -> None:
        """Have workers load another model from now on; for the side input of `RunInference`."""
        self._checkpoint = model_path or self._checkpoint
