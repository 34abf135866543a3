"""Requests that wait together become one batch; one thread computes those of all models in turn."""

import collections
import dataclasses
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from bertjax.errors import CommandError
from bertjax.inference.predictor import Predictor
from bertjax.serving.options import Limits
from bertjax.serving.requests import PredictRequest, RequestRejectedError, count_characters
from bertjax.tasks.pipeline import PredictInput
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

Answers = list[dict[str, Any]]
T = TypeVar("T")


class ComputeThread:
    """Thread that runs jobs in the order in which they were submitted.

    All computations on devices are its jobs. Programs of several threads would compete for memory,
    and could wait for each other for ever, if each had started on some of the devices.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a slow computation does not delay the end of the process.
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Return the future result of a job."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def close(self) -> None:
        """End the thread after its jobs."""
        self._jobs.put(None)

    def _run(self) -> None:
        while job := self._jobs.get():
            job()
            job = None  # else parameters that it refers to live until the next one


@dataclasses.dataclass
class _PendingRequest:
    request: PredictRequest
    request_id: str
    future: Future[Answers]
    answers: Answers = dataclasses.field(default_factory=list)

    @property
    def remaining(self) -> Sequence[PredictInput]:
        """Inputs that have no answer yet."""
        return self.request.inputs[len(self.answers) :]

    @property
    def is_cancelled(self) -> bool:
        """True if nobody waits for the answers any more."""
        return self.future.cancelled()

    def finish(self, error: Exception | None = None) -> None:
        """Return the answers or the error, unless the request is cancelled."""
        if not self.future.set_running_or_notify_cancel():  # from here on nobody cancels it
            return
        if error:
            self.future.set_exception(error)
        else:
            self.future.set_result(self.answers)


class RequestBatcher:
    """Queue of the requests of a model; inputs that wait together are computed together.

    A batch takes inputs of the waiting requests in turn, up to the size of one input of maximal
    length. A request of many long inputs is thus computed in parts, and delays others by one part.

    Args:
      predictor: used by the thread alone.
      limits: limits of the queue and of a batch.
      thread: computes the batches.
      observe: called with the number of inputs of each batch.
    """

    def __init__(
        self,
        predictor: Predictor,
        limits: Limits,
        thread: ComputeThread,
        observe: Callable[[int], object] = lambda num_inputs: None,
    ) -> None:
        self._predictor, self._limits = predictor, limits
        self._thread, self._observe = thread, observe
        self._queue: collections.deque[_PendingRequest] = collections.deque()
        self._changed = threading.Condition()
        self._is_computing = False  # or will be: the thread has a job for the next batch

    def submit(self, request: PredictRequest, request_id: str = "") -> Future[Answers]:
        """Return the future answers to a request; it may fail with an InputError or any exception.

        If it is cancelled, the inputs that have no answer yet are not computed.

        Args:
          request: the request.
          request_id: names it in the log.

        Raises:
          RequestRejectedError: too many inputs are queued.
        """
        pending = _PendingRequest(request, request_id, Future())
        with self._changed:
            self._queue = collections.deque(p for p in self._queue if not p.is_cancelled)
            num_queued = self._count_queued()
            if num_queued + len(request.inputs) > self._limits.max_queued_inputs:
                raise RequestRejectedError(
                    503, f"{num_queued} inputs are queued already. Send this request later."
                )
            self._queue.append(pending)
            if not self._is_computing:
                self._is_computing = True
                self._thread.submit(self._run_batch)
        return pending.future

    @property
    def num_queued(self) -> int:
        """Inputs that wait for their batch."""
        with self._changed:
            return self._count_queued()

    def drain(self, timeout: float | None = None) -> None:
        """Return when all requests have been answered, or after a time in seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_computing, timeout)

    def _count_queued(self) -> int:
        return sum(len(pending.remaining) for pending in self._queue if not pending.is_cancelled)

    def _run_batch(self) -> None:
        """Answer the next batch; the one after it waits for the batches of other models."""
        batch = self._next_batch()
        if num_inputs := sum(count for _, count in batch):
            self._observe(num_inputs)
        self._predict(batch)
        with self._changed:
            self._is_computing = bool(self._queue)
            if self._is_computing:
                self._thread.submit(self._run_batch)
            self._changed.notify_all()

    def _next_batch(self) -> list[tuple[_PendingRequest, int]]:
        """Return the next requests with a number of inputs each."""
        with self._changed:
            batch: list[tuple[_PendingRequest, int]] = []
            free, characters = self._limits.max_inputs, self._limits.max_characters
            for _ in range(len(self._queue)):
                pending = self._queue[0]
                if pending.is_cancelled:
                    self._queue.popleft()
                    continue
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
        batch = [(pending, count) for pending, count in batch if not pending.is_cancelled]
        if not batch:
            return
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
                _log.exception("request %s failed", batch[0][0].request_id)
            batch[0][0].finish(error)
            return
        remaining = iter(answers)
        for pending, count in batch:
            pending.answers += itertools.islice(remaining, count)
            if pending.remaining:
                with self._changed:
                    self._queue.append(pending)
            else:
                pending.finish()
