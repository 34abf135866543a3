"""Requests that wait together become one batch, by one thread that has the model for itself."""

import collections
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from bertjax.inference.predictor import Predictor
from bertjax.serving.requests import Asked, Limits, Refusal
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

Answers = list[dict[str, Any]]


class _Waiting(NamedTuple):
    asked: Asked
    answers: Future[Answers]


class Batches:
    """Answers requests, those that have come while others were computed all at once.

    Args:
      opened: nobody else may use it.
    """

    def __init__(self, opened: Predictor, limits: Limits) -> None:
        self._opened, self._limits = opened, limits
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> Future[Answers]:
        """The answers to a request, once there are some; what it raises is an InputError, or ours.

        Raises:
          Refusal: too many inputs wait already.
        """
        waiting = _Waiting(asked, Future())
        waiting.answers.set_running_or_notify_cancel()  # from here on nobody takes it back
        with self._changed:
            wait = sum(len(other.asked.inputs) for other in self._waiting)
            if wait + len(asked.inputs) > self._limits.waiting:
                raise Refusal(503, f"{wait} inputs wait already: send this request later.")
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.answers

    def close(self) -> None:
        """Returns when all that wait have their answers."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while taken := self._take():
            self._answer(taken)

    def _take(self) -> list[_Waiting]:
        """The next requests that make a batch; none when it was closed and nothing waits."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken: list[_Waiting] = []
            room = self._limits.inputs
            while self._waiting:
                asked = self._waiting[0].asked
                if taken and len(asked.inputs) > room:
                    break
                if taken and asked.everything != taken[0].asked.everything:
                    break
                taken.append(self._waiting.popleft())
                room -= len(asked.inputs)
        return taken

    def _answer(self, taken: Sequence[_Waiting]) -> None:
        """Of several requests of which one cannot be answered the others are all the same."""
        inputs = [each for request in taken for each in request.asked.inputs]
        try:
            answers = iter(list(self._opened.answers(inputs, everything=taken[0].asked.everything)))
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
            request.answers.set_result([next(answers) for _ in request.asked.inputs])
