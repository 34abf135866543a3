"""HTTP server of models."""

import logging
import math
import queue
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from etils import epath

from bertjax.inference.predictor import Predictor, open_model
from bertjax.serving.app import make_app
from bertjax.serving.batching import ComputeThread
from bertjax.serving.connections import idle_timeout_protocol
from bertjax.serving.metrics import ServerMetrics
from bertjax.serving.models import ServedModel
from bertjax.serving.options import Access, Limits
from data_pipelines.errors import InputError

_SHUTDOWN_SECONDS = 8  # for accepted requests, within the grace period of a command
_CLOSE_SECONDS = 2.0  # for a computation; a slow one does not delay the end of the process


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a bound socket that does not listen yet.

    Raises:
      InputError: the address is invalid or in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        # asyncio sends small parts of an answer at once only if the protocol is named. Otherwise
        # the second part waits for 40 ms, until the client acknowledges the first.
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no host name"
        raise InputError(f"--host={host}: no address ({reason}). Fix it.") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise InputError(
                f"--host={host} --port={port}: {error.strerror}. Name another port."
            ) from error
        yield listener


class ModelServer:
    """Server that answers requests in its own threads from its creation until it is closed.

    Until `load` returns, it answers that it is alive and not ready.

    Args:
      listener: a bound socket.
      models: path of each model by its name.
      limits: limits of requests.
      access: allowed hosts and origins.
      logs_requests: whether to log a line in JSON for each request.

    Attributes:
      models: the models by name.
    """

    def __init__(
        self,
        listener: socket.socket,
        models: Mapping[str, epath.PathLike],
        limits: Limits | None = None,
        access: Access | None = None,
        logs_requests: bool = False,
    ) -> None:
        limits, access, metrics = limits or Limits(), access or Access(), ServerMetrics()
        self._compute_thread, self._is_closing = ComputeThread(), threading.Event()
        self.models = {
            name: ServedModel(name, path, limits, self._compute_thread, metrics)
            for name, path in models.items()
        }
        app = make_app(self.models, limits, access, metrics, self._is_closing, logs_requests)
        config = uvicorn.Config(
            app,
            http=idle_timeout_protocol(limits.timeout_seconds),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=math.ceil(limits.timeout_seconds),  # the protocol's is as long
            limit_concurrency=limits.max_connections + 1,  # which uvicorn does not reach
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # without errors of clients
        self._server = uvicorn.Server(config)
        listener.listen()  # connections wait until the thread accepts them
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        self._thread.start()
        # A signal handler may put into this queue, and must not acquire a lock.
        self._reloads: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def descriptions(self) -> dict[str, str]:
        """Return what each loaded model does, such as "predicts the class of texts", by name."""
        return {
            name: model.version.predictor.pipeline.description
            for name, model in self.models.items()
            if model.version
        }

    def load(self) -> None:
        """Load all models, and compile them for requests.

        Raises:
          InputError: there is no such model.
          CommandError: a model computes numbers that are not finite.
        """
        if len(self.models) > 1:  # an invalid one is found before the others are compiled
            for model in self.models.values():
                Predictor(open_model(model.path))
        for model in self.models.values():
            model.load()
        # Requests to reload that arrived until now have waited: files may have changed since.
        threading.Thread(target=self._reload_models, daemon=True).start()

    def request_reload(self) -> None:
        """Have new versions of all models loaded, while the current ones answer requests.

        Before `load` has returned, the request waits for it.
        """
        self._reloads.put(True)

    def wait(self) -> None:
        """Return when the server has stopped, which it does only if it is closed or fails."""
        self._stopped.wait()

    def close(self) -> None:
        """Refuse new requests, and return when accepted ones have been answered, or are late."""
        self._is_closing.set()
        self._reloads.put(False)
        self._server.should_exit = True
        self._thread.join()
        for model in self.models.values():
            model.drain(_CLOSE_SECONDS)
        self._compute_thread.close()

    def _run(self, listener: socket.socket) -> None:
        try:
            self._server.run(sockets=[listener])
        finally:
            self._stopped.set()

    def _reload_models(self) -> None:
        while self._reloads.get():
            for model in self.models.values():
                if not self._is_closing.is_set():
                    model.reload()
