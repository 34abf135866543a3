"""Request ids, metrics and log lines of requests."""

import dataclasses
import datetime
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertjax.serving.metrics import ServerMetrics

_log = logging.getLogger("bertjax.requests")

REQUEST_ID, MODEL_VERSION = "X-Request-ID", "X-Model-Version"
_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")  # safe in logs and headers
# Whatever clients ask for, the metrics have few series.
_OTHER = "other"
_METHODS = ("GET", "HEAD", "POST")


@dataclasses.dataclass
class RequestRecord:
    """Properties of a request for headers, metrics and the log; the handler of a route sets some.

    Attributes:
      request_id: id that the client sent, or a new one.
      model: name of the model, "" for other routes.
      version: version of the model that gave the answer.
      num_inputs: inputs of the request.
      num_truncated: inputs that lost tokens.
      status: HTTP status of the answer.
    """

    request_id: str
    model: str = ""
    version: str = ""
    num_inputs: int = 0
    num_truncated: int = 0
    status: int = 500  # if the application fails before it answers


class RequestObserver:
    """Application that adds the headers of ids and versions, counts requests and logs them.

    Args:
      app: the application that answers.
      routes: route of each endpoint of the application, for the metrics.
      metrics: metrics of the server.
      logs_requests: whether to log a line in JSON for each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Mapping[Callable[..., Any], str],
        metrics: ServerMetrics,
        logs_requests: bool,
    ) -> None:
        self._app, self._routes = app, routes
        self._metrics, self._logs_requests = metrics, logs_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; the interface of ASGI."""
        began = time.perf_counter()
        sent_id = Headers(scope=scope).get(REQUEST_ID, "")
        record = RequestRecord(sent_id if _VALID_ID.fullmatch(sent_id) else uuid.uuid4().hex)
        scope.setdefault("state", {})["record"] = record

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = record.request_id
                if record.version:
                    headers[MODEL_VERSION] = record.version
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._observe(scope, record, time.perf_counter() - began)

    def _observe(self, scope: Scope, record: RequestRecord, seconds: float) -> None:
        route = self._routes.get(scope.get("endpoint"), _OTHER)  # type: ignore[arg-type]
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        metrics, model = self._metrics, record.model
        metrics.requests.labels(route, model, method, record.status).inc()
        metrics.seconds.labels(route, model).observe(seconds)
        if record.num_truncated:
            metrics.truncated_inputs.labels(model).inc(record.num_truncated)
        if self._logs_requests:
            now = datetime.datetime.now(datetime.UTC)
            client = scope.get("client")
            line = {
                "time": now.isoformat(timespec="milliseconds"),
                "request_id": record.request_id,
                "client": client[0] if client else "",
                "method": scope["method"],
                "path": scope["path"],
                "status": record.status,
                "seconds": round(seconds, 6),
                "model": model,
                "version": record.version,
                "inputs": record.num_inputs,
                "truncated": record.num_truncated,
            }
            _log.info("%s", json.dumps(line))


def find_record(request: Request) -> RequestRecord:
    """Return the record of a request."""
    record: RequestRecord = request.state.record
    return record
