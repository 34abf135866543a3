"""Requests that wait together become one batch, computed by one thread that owns the model."""

import collections
import dataclasses
import itertools
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from bertjax.errors import CommandError
from bertjax.inference.predictor import Predictor
from bertjax.serving.requests import Limits, PredictRequest, RequestRejectedError, count_characters
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

CLOSE_SECONDS = 2.0  # for a computation; a slow one does not delay the end of the process
Answers = list[dict[str, Any]]


@dataclasses.dataclass
class _PendingRequest:
    request: PredictRequest
    future: Future[Answers]
    answers: Answers = dataclasses.field(default_factory=list)

    @property
    def remaining(self) -> Sequence[PredictInput]:
        """Inputs that have no answer yet."""
        return self.request.inputs[len(self.answers) :]


class RequestBatcher:
    """Queue of requests; inputs that arrive during a computation are computed together.

    A batch takes inputs of the waiting requests in turn, up to the size of one input of maximal
    length. A request of many long inputs is thus computed in parts, and delays others by one part.

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
            num_queued = sum(len(other.remaining) for other in self._queue)
            if num_queued + len(request.inputs) > self._limits.max_queued_inputs:
                raise RequestRejectedError(
                    503, f"{num_queued} inputs are queued already. Send this request later."
                )
            self._queue.append(pending)
            self._changed.notify()
        return pending.future

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Return when all queued requests have been answered, or after a time in seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run_batches(self) -> None:
        while batch := self._next_batch():
            self._predict(batch)

    def _next_batch(self) -> list[tuple[_PendingRequest, int]]:
        """Return the next requests with a number of inputs each; none if closed and empty."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            batch: list[tuple[_PendingRequest, int]] = []
            free, characters = self._limits.max_inputs, self._limits.max_characters
            for _ in range(len(self._queue)):
                pending = self._queue[0]
                options = pending.request.return_all_scores
                if batch and options != batch[0][0].request.return_all_scores:
                    break
                count = 0
                for location, content in pending.remaining[:free]:
                    size = count_characters(location, content)
                    if (batch or count) and size > characters:
                        break
                    count, characters = count + 1, characters - size
                if not count and pending.remaining:
                    break
                free -= count
                self._queue.popleft()
                batch.append((pending, count))
        return batch

    def _predict(self, batch: Sequence[tuple[_PendingRequest, int]]) -> None:
        """Answer a batch; if a request fails, answer the others nevertheless."""
        inputs = [item for pending, count in batch for item in pending.remaining[:count]]
        return_all_scores = batch[0][0].request.return_all_scores
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
            batch[0][0].future.set_exception(error)
            return
        remaining = iter(answers)
        for pending, count in batch:
            pending.answers += itertools.islice(remaining, count)
            if pending.remaining:
                with self._changed:
                    self._queue.append(pending)
            else:
                pending.future.set_result(pending.answers)
