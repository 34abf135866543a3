"""HTTP server of a model: `GET /`, `GET /health` and `POST /predict`."""

import asyncio
import importlib.util
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
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertjax.errors import CommandError
from bertjax.html.page import render_template
from bertjax.inference.predictor import Predictor
from bertjax.serving.batching import RequestBatcher
from bertjax.serving.requests import Limits, RequestRejectedError, parse_request, read_body
from bertjax.serving.warmup import compile_ahead
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

# The page requests nothing from other servers, and no other page may show it in a frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'"
)
_NO_PAGE = "This server answers POST /predict. To try it on this page, run pip install jinja2."
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SHUTDOWN_SECONDS = 8  # for accepted requests, within the grace period of a command


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a bound socket that does not listen yet.

    Raises:
      InputError: the address is invalid or in use.
    """
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(kind)
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

    Args:
      listener: a bound socket.
      predictor: used by the server alone; compiled for requests before the constructor returns.
      limits: limits of requests.
    """

    def __init__(
        self, listener: socket.socket, predictor: Predictor, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        compile_ahead(predictor, limits.max_inputs)
        self._batches = RequestBatcher(predictor, limits)
        config = uvicorn.Config(
            make_app(predictor, self._batches, limits),
            http=_idle_timeout_protocol(limits.timeout_seconds),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # without errors of clients
        self._server = uvicorn.Server(config)
        listener.listen()  # connections wait until the thread accepts them
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when the server has stopped, which it does only if it is closed or fails."""
        self._stopped.wait()

    def close(self) -> None:
        """Refuse new requests, and return when accepted ones have been answered, or are late."""
        self._server.should_exit = True
        self._thread.join()
        self._batches.close()

    def _run(self, listener: socket.socket) -> None:
        try:
            self._server.run(sockets=[listener])
        finally:
            self._stopped.set()


def make_app(predictor: Predictor, batches: RequestBatcher, limits: Limits) -> Starlette:
    """Return the ASGI application."""
    page = render_page(predictor)

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def health(request: Request) -> Response:
        description = predictor.pipeline.description
        return _json_response(
            {"status": "ok", "model": str(predictor.path), "description": description}
        )

    async def predict(request: Request) -> Response:
        try:
            predict_request = parse_request(await read_body(request, limits), limits)
            answers = await asyncio.wrap_future(batches.submit(predict_request))
        except InputError as error:
            return _error_response(400, str(error))
        except CommandError as error:
            return _error_response(500, str(error))
        except RequestRejectedError as refusal:
            return _error_response(refusal.status, str(refusal))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except asyncio.CancelledError:  # uvicorn shuts down
            return _error_response(503, "the server is shutting down. Send this request later.")
        except Exception:  # logged by the batcher
            return _error_response(500, "the model failed at this request. See the server's log.")
        content: dict[str, Any] = {"answers": answers}
        if predict_request.display:
            pairs = zip(predict_request.inputs, answers, strict=True)
            content["display"] = [
                predictor.pipeline.display(item.content, answer) for item, answer in pairs
            ]
        if predict_request.is_single:
            content = {name: values[0] for name, values in content.items()}
        try:
            return _json_response(content)
        except ValueError:  # a number of the request that the answer repeats
            return _error_response(400, "the request has a number that is not finite. Remove it.")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: no such route. "
        return _error_response(
            error.status_code, f"{message}Use GET /, GET /health or POST /predict."
        )

    routes = [
        Route("/", show),
        Route("/health", health),
        Route("/predict", predict, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: refuse})
    app.add_middleware(_SameOrigin)
    return app


class _SameOrigin:
    """Middleware that refuses each request that the page of another server sends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not _is_same_origin(Request(scope)):
            app = _error_response(
                403,
                "the request comes from a page of another server. Send it from this server's page.",
            )
        await app(scope, receive, send)


def render_page(predictor: Predictor) -> str:
    """Return the web page of a model: a form for an input, and the model's answer.

    Without Jinja2 the page is a sentence.
    """
    if importlib.util.find_spec("jinja2") is None:
        _log.info("%s", _NO_PAGE)
        return _NO_PAGE
    path, fields = predictor.path, predictor.pipeline.form_fields()
    return render_template(
        "server.html.j2",
        title=path.parent.parent.name if path.name.isdigit() else path.name,
        path=str(path),
        description=predictor.pipeline.description,
        fields=fields,
        formats=[field.format for field in fields],
    )


def _is_same_origin(request: Request) -> bool:
    """Return False if the page of another server sends the request.

    A browser sends requests of any page, with the page's `Origin`. The check of `Host` rejects DNS
    rebinding: names of other servers that resolve to this machine.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    scope = request.scope.get("server")
    if scope and ip_address(scope[0]).is_loopback and name not in (*_LOOPBACK, scope[0]):
        return False
    return origin is None or origin.partition("://")[2] == host


def _json_response(content: Any, status: int = 200, **headers: str) -> Response:
    # ASCII, because UTF-8 cannot encode unpaired surrogates.
    return Response(json.dumps(content, allow_nan=False), status, headers, "application/json")


def _error_response(status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else {}
    if status in (408, 413):  # the remaining body is not read
        headers["Connection"] = "close"
    return _json_response({"error": message}, status, **headers)


def _idle_timeout_protocol(seconds: float) -> type[H11Protocol]:
    """Return a protocol that closes connections which are idle for this long.

    Uvicorn alone waits without limit for the head of a request.
    """

    class Connection(H11Protocol):
        _idle_timer: asyncio.TimerHandle | None = None
        _unread = 0  # bytes that the client had not read at the last check

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
            if 0 < self._unread != before:  # the client is still reading
                self._wait()
            elif self.cycle is None or self.cycle.response_complete:
                self.transport.abort()  # closing would wait for a client that does not read

    return Connection
