"""Requests that wait together become one batch, computed by one thread that owns the model."""

import collections
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from bertjax.errors import CommandError
from bertjax.inference.predictor import Predictor
from bertjax.serving.requests import Limits, PredictRequest, RequestRejectedError
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

Answers = list[dict[str, Any]]


class _PendingRequest(NamedTuple):
    request: PredictRequest
    future: Future[Answers]


class RequestBatcher:
    """Queue of requests; those that arrive during a computation are computed together.

    Args:
      predictor: used by the batcher's thread alone.
      limits: limits of the queue and of a batch.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self._predictor, self._limits = predictor, limits
        self._queue: collections.deque[_PendingRequest] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run_batches, daemon=True)
        self._thread.start()

    def submit(self, request: PredictRequest) -> Future[Answers]:
        """Return the future answers to a request; it may fail with an InputError or any exception.

        Raises:
          RequestRejectedError: too many inputs are queued.
        """
        pending = _PendingRequest(request, Future())
        pending.future.set_running_or_notify_cancel()  # so that nobody cancels it from here on
        with self._changed:
            num_queued = sum(len(other.request.inputs) for other in self._queue)
            if num_queued + len(request.inputs) > self._limits.max_queued_inputs:
                raise RequestRejectedError(
                    503, f"{num_queued} inputs are queued already. Send this request later."
                )
            self._queue.append(pending)
            self._changed.notify()
        return pending.future

    def close(self) -> None:
        """Return when all queued requests have been answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run_batches(self) -> None:
        while batch := self._next_batch():
            self._predict(batch)

    def _next_batch(self) -> list[_PendingRequest]:
        """Return the next requests of a batch; none if the queue is closed and empty."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            batch: list[_PendingRequest] = []
            room = self._limits.max_inputs
            while self._queue:
                request = self._queue[0].request
                if batch and len(request.inputs) > room:
                    break
                if batch and request.return_all_scores != batch[0].request.return_all_scores:
                    break
                batch.append(self._queue.popleft())
                room -= len(request.inputs)
        return batch

    def _predict(self, batch: Sequence[_PendingRequest]) -> None:
        """Answer a batch; if a request fails, answer the others nevertheless."""
        inputs = [item for pending in batch for item in pending.request.inputs]
        return_all_scores = batch[0].request.return_all_scores
        try:
            answers = list(self._predictor.predict(inputs, return_all_scores=return_all_scores))
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                self._predict(batch[:middle])
                self._predict(batch[middle:])
                return
            if not isinstance(error, InputError | CommandError):
                _log.exception("a request failed")
            batch[0].future.set_exception(error)
            return
        remaining = iter(answers)
        for pending in batch:
            pending.future.set_result([next(remaining) for _ in pending.request.inputs])
