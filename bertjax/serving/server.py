"""The HTTP of a served model: its page, its health, and `POST /predict`."""

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertjax.inference.predictor import Predictor
from bertjax.serving.batching import RequestBatcher
from bertjax.serving.page import render_page
from bertjax.serving.requests import Limits, RequestRejected, parse_request, read_body
from bertjax.serving.warmup import warm
from data_pipelines.errors import InputError

# The page asks nothing but this server, and no other page may show it in a frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'"
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SHUTDOWN_SECONDS = 8  # seconds for what was accepted, of those in which a command is to end


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A socket at an address, to which nothing connects yet.

    Raises:
      InputError: the address cannot be had.
    """
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(kind)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise InputError(f"--host {host} is no address ({why}): mend it.") from error
    with found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind(address)
        except OSError as error:
            raise InputError(
                f"--host {host} --port {port} cannot be had ({error.strerror}): name another port."
            ) from error
        yield found


class Server:
    """Answers requests from when it is made, in threads of its own, until it is closed.

    Args:
      listener: a socket that is bound.
      opened: compiled for what will be asked before this returns; nobody else may use it.
    """

    def __init__(
        self, listener: socket.socket, predictor: Predictor, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        warm(predictor, limits.inputs)
        self._batches = RequestBatcher(predictor, limits)
        config = uvicorn.Config(
            make_app(predictor, self._batches, limits),
            http=_idle_timeout_protocol(limits.seconds),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # what clients do is none of ours
        self._server = uvicorn.Server(config)
        listener.listen()  # who connects before the thread is at work waits for it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Returns when it has ended by itself, which it does not."""
        self._stopped.wait()

    def close(self) -> None:
        """Takes no more requests, and returns when those that there are have been answered."""
        self._server.should_exit = True
        self._thread.join()
        self._batches.close()

    def _run(self, listener: socket.socket) -> None:
        try:
            self._server.run(sockets=[listener])
        finally:
            self._stopped.set()


def make_app(predictor: Predictor, batches: RequestBatcher, limits: Limits) -> Starlette:
    """What answers requests, whatever carries them."""
    page = render_page(predictor)

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def health(request: Request) -> Response:
        description = predictor.description
        return _json_response(
            {"status": "ok", "model": str(predictor.path), "description": description}
        )

    async def predict(request: Request) -> Response:
        if not _is_same_origin(request):
            return _error_response(
                403, "the request comes from a page of another server: ask from here."
            )
        try:
            predict_request = parse_request(await read_body(request, limits), limits)
            answers = await asyncio.wrap_future(batches.ask(predict_request))
        except InputError as error:
            return _error_response(400, str(error))
        except RequestRejected as refusal:
            return _error_response(refusal.status, str(refusal))
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads
        except asyncio.CancelledError:  # by uvicorn, which waits no longer for an answer
            return _error_response(503, "the server is ending: send this request later.")
        except Exception:  # which has been logged
            return _error_response(500, "the model failed at this request: its log says where.")
        return _json_response({"answers": answers[0] if predict_request.alone else answers})

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = f"{request.method} {request.url.path} is none of GET /, GET /health, "
        return _error_response(error.status_code, f"{sentence}POST /predict: ask one of these.")

    routes = [
        Route("/", show),
        Route("/health", health),
        Route("/predict", predict, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


def _is_same_origin(request: Request) -> bool:
    """Whether no page of another server asks: a browser would ask for any page that is open in it,
    and say so, but for a name that has been made to point to this machine.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    scope = request.scope.get("server")
    if scope and ip_address(scope[0]).is_loopback and name not in (*_LOOPBACK, scope[0]):
        return False
    return origin is None or origin.partition("://")[2] == host


def _json_response(content: Any, status: int = 200, **headers: str) -> Response:
    # In ASCII, so that half of a surrogate pair, which UTF-8 cannot hold, is text like any other.
    return Response(json.dumps(content), status, headers, "application/json")


def _error_response(status: int, sentence: str) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else {}
    if status in (408, 413):  # the rest of the request is not waited for
        headers["Connection"] = "close"
    return _json_response({"error": sentence}, status, **headers)


def _idle_timeout_protocol(seconds: float) -> type[H11Protocol]:
    """A connection that is closed when it has asked nothing for so long: uvicorn waits for the
    first line of a request, and for the rest of its head, for as long as it takes.
    """

    class Connection(H11Protocol):
        _idle_timer: asyncio.TimerHandle | None = None
        _unread = 0  # bytes that the client had not read at the last look

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._idle_timer:
                self._idle_timer.cancel()

        def _wait(self) -> None:
            if self._idle_timer:
                self._idle_timer.cancel()
            self._idle_timer = self.loop.call_later(seconds, self._close_if_idle)

        def _close_if_idle(self) -> None:
            before, self._unread = self._unread, self.transport.get_write_buffer_size()
            if 0 < self._unread != before:  # it is still reading
                self._wait()
            elif self.cycle is None or self.cycle.response_complete:
                self.transport.abort()  # to close would wait for one who does not read

    return Connection
