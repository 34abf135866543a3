"""Served models, whose versions may be replaced while requests are answered."""

import gc
import hashlib
import logging
import os
import threading
import urllib.parse
from concurrent.futures import Future

from etils import epath

from bertjax.errors import CommandError
from bertjax.formats.detection import find_format, is_onnx
from bertjax.inference.predictor import AnyModel, Predictor, open_model
from bertjax.serving.batching import Answers, ComputeThread, RequestBatcher
from bertjax.serving.metrics import ServerMetrics
from bertjax.serving.options import Limits
from bertjax.serving.page import render_page
from bertjax.serving.requests import PredictRequest, RequestRejectedError
from bertjax.serving.warmup import compile_ahead, predict_sample
from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

_log = logging.getLogger("bertjax")

_DIGEST_CHARS = 12  # of a version
_MAX_SETTINGS_BYTES = 64 << 20  # of a file beside the parameters, such as a vocabulary


class ModelVersion:
    """A loaded and compiled model with its queue.

    Args:
      model: the parameters.
      name: name of the version.
      limits: limits of requests.
      thread: computes on the devices.
      metrics: metrics of the server.
      model_name: name of the model in the metrics.

    Attributes:
      name: name of the version.
      predictor: the model.
      batches: queue of its requests.
      page: web page of the model.

    Raises:
      InputError: the model lacks the head of its task.
      CommandError: it computes numbers that are not finite.
    """

    def __init__(
        self,
        model: AnyModel,
        limits: Limits,
        thread: ComputeThread,
        metrics: ServerMetrics,
        model_name: str,
    ) -> None:
        self.predictor = Predictor(model)  # may open another checkpoint of the run
        self.name = find_version(model)
        compile_ahead(self.predictor, limits)
        thread.submit(lambda: predict_sample(self.predictor)).result()
        observe = metrics.batch_inputs.labels(model_name).observe
        self.batches = RequestBatcher(self.predictor, limits, thread, observe)
        self.page = render_page(self.predictor)


class ServedModel:
    """Model with a name, of which one version answers requests.

    Args:
      name: name of the model.
      path: a workdir, a checkpoint or a published model; see `bertjax.inference.predictor`.
      limits: limits of requests.
      thread: computes on the devices.
      metrics: metrics of the server.

    Attributes:
      name: name of the model.
      path: the path.
      version: what answers requests; None until it is loaded.
    """

    def __init__(
        self,
        name: str,
        path: epath.PathLike,
        limits: Limits,
        thread: ComputeThread,
        metrics: ServerMetrics,
    ) -> None:
        self.name, self.path, self.version = name, path, None
        self._limits, self._thread, self._metrics = limits, thread, metrics
        self._lock = threading.Lock()
        metrics.queued_inputs.labels(name).set_function(lambda: self.num_queued)

    version: ModelVersion | None

    @property
    def num_queued(self) -> int:
        """Inputs that wait for the current version."""
        return self.version.batches.num_queued if self.version else 0

    def submit(
        self, request: PredictRequest, request_id: str
    ) -> tuple[ModelVersion, Future[Answers]]:
        """Return the version that answers a request, and its future answers.

        Raises:
          RequestRejectedError: the model is not loaded yet, or too many inputs are queued.
        """
        with self._lock:  # a version that is drained gets no more requests
            if self.version is None:
                raise RequestRejectedError(503, "the model is loading. Send this request later.")
            return self.version, self.version.batches.submit(request, request_id)

    def load(self) -> bool:
        """Load the newest version beside the current one, replace it, and answer its last requests.

        Returns:
          Whether the version is new; nothing is loaded otherwise.

        Raises:
          InputError: there is no such model.
          CommandError: it computes numbers that are not finite.
        """
        # A link, such as `current`, may name another directory before all files are read.
        path = self.path if is_remote(self.path) else os.path.realpath(self.path)
        model, old = open_model(path), self.version
        if old and find_version(model) == old.name:
            return False
        new = ModelVersion(model, self._limits, self._thread, self._metrics, self.name)
        with self._lock:
            self.version = new
        if old:
            self._metrics.model_info.remove(self.name, old.name, str(old.predictor.path))
        self._metrics.model_info.labels(self.name, new.name, str(new.predictor.path)).set(1)
        if old:
            old.batches.drain()
            old = None
            gc.collect()  # of the old parameters: commands collect garbage rarely
        return True

    def reload(self) -> None:
        """Load a new version, if there is one; if it fails, the current one remains."""
        assert self.version
        before = self.version.name
        try:
            outcome = "replaced" if self.load() else "unchanged"
            _log.info("reload of %s: %s, version %s.", self.name, outcome, self.version.name)
        except Exception as error:  # a damaged or unfinished model must not stop the server
            outcome = "failed"
            is_expected = isinstance(error, InputError | CommandError | OSError)
            _log.warning(
                "reload of %s failed, version %s remains: %s",
                self.name,
                before,
                str(error),  # a record would hold the traceback
                exc_info=None if is_expected else error,
            )
        gc.collect()  # of parameters that a traceback has held
        self._metrics.reloads.labels(self.name, outcome).inc()

    def drain(self, timeout: float) -> None:
        """Return when all requests have been answered, or after a time in seconds."""
        if self.version:
            self.version.batches.drain(timeout)


def find_version(model: AnyModel) -> str:
    """Return the name of a model's directory with the beginning of a digest of its files.

    The name of a checkpoint's directory is its step. HTTP's headers are ASCII, so other characters
    are escaped as in addresses.
    """
    digest, path = model.digest, model.path
    # A checkpoint's digest is one of all its files.
    if is_onnx(path) or find_format(path) != "bertjax":
        content = hashlib.sha256(digest.encode())
        directory = path if path.is_dir() else path.parent  # of a prefix of TF1
        # Folders hold modules of sentence-transformers.
        for file in sorted([*directory.glob("*"), *directory.glob("*/*.json")]):
            if file.is_file() and file.stat().length <= _MAX_SETTINGS_BYTES:
                content.update(f"{file.relative_to(directory)}\n".encode() + file.read_bytes())
        digest = content.hexdigest()
    return f"{urllib.parse.quote(path.name)}-{digest[:_DIGEST_CHARS]}"
