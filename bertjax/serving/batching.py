"""Requests that wait together become one batch, by one thread that has the model for itself."""

import collections
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from bertjax.inference.predictor import Predictor
from bertjax.serving.requests import Limits, PredictRequest, RequestRejected
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

Answers = list[dict[str, Any]]


class _PendingRequest(NamedTuple):
    predict_request: PredictRequest
    answers: Future[Answers]


class RequestBatcher:
    """Answers requests, those that have come while others were computed all at once.

    Args:
      opened: nobody else may use it.
    """

    def __init__(self, predictor: Predictor, limits: Limits) -> None:
        self._predictor, self._limits = predictor, limits
        self._queue: collections.deque[_PendingRequest] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run_batches, daemon=True)
        self._thread.start()

    def ask(self, predict_request: PredictRequest) -> Future[Answers]:
        """The answers to a request, once there are some; what it raises is an InputError, or ours.

        Raises:
          Refusal: too many inputs wait already.
        """
        waiting = _PendingRequest(predict_request, Future())
        waiting.answers.set_running_or_notify_cancel()  # from here on nobody takes it back
        with self._changed:
            wait = sum(len(other.predict_request.inputs) for other in self._queue)
            if wait + len(predict_request.inputs) > self._limits.waiting:
                raise RequestRejected(503, f"{wait} inputs wait already: send this request later.")
            self._queue.append(waiting)
            self._changed.notify()
        return waiting.answers

    def close(self) -> None:
        """Returns when all that wait have their answers."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run_batches(self) -> None:
        while taken := self._next_batch():
            self._answer(taken)

    def _next_batch(self) -> list[_PendingRequest]:
        """The next requests that make a batch; none when it was closed and nothing waits."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            taken: list[_PendingRequest] = []
            room = self._limits.inputs
            while self._queue:
                predict_request = self._queue[0].predict_request
                if taken and len(predict_request.inputs) > room:
                    break
                if (
                    taken
                    and predict_request.return_all_scores
                    != taken[0].predict_request.return_all_scores
                ):
                    break
                taken.append(self._queue.popleft())
                room -= len(predict_request.inputs)
        return taken

    def _answer(self, taken: Sequence[_PendingRequest]) -> None:
        """Of several requests of which one cannot be answered the others are all the same."""
        inputs = [each for request in taken for each in request.predict_request.inputs]
        try:
            answers = iter(
                list(
                    self._predictor.answers(
                        inputs, return_all_scores=taken[0].predict_request.return_all_scores
                    )
                )
            )
        except Exception as error:
            if len(taken) > 1:
                middle = len(taken) // 2
                self._answer(taken[:middle])
                self._answer(taken[middle:])
                return
            if not isinstance(error, InputError):
                _log.exception("a request could not be answered")
            taken[0].answers.set_exception(error)
            return
        for request in taken:
            request.answers.set_result([next(answers) for _ in request.predict_request.inputs])
