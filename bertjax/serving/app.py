"""Routes of the server."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bertjax.errors import CommandError
from bertjax.serving.access import AccessCheck
from bertjax.serving.batching import Answers
from bertjax.serving.metrics import ServerMetrics
from bertjax.serving.models import ServedModel
from bertjax.serving.observation import RequestObserver, find_record
from bertjax.serving.options import DEFAULT_MODEL, Access, Limits
from bertjax.serving.requests import RequestRejectedError, parse_request, read_body
from bertjax.serving.responses import error_response, json_response
from data_pipelines.errors import InputError

# The page requests nothing from other servers, and no other page may show it in a frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'"
)
_CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs
_ROUTES = (
    "GET /, POST /predict, GET /models/NAME/, POST /models/NAME/predict, GET /ready, GET /metrics "
    "or GET /health"
)


def make_app(
    models: Mapping[str, ServedModel],
    limits: Limits,
    access: Access,
    metrics: ServerMetrics,
    is_closing: threading.Event,
    logs_requests: bool = False,
) -> ASGIApp:
    """Return the ASGI application.

    Args:
      models: models by name.
      limits: limits of requests.
      access: allowed hosts and origins.
      metrics: metrics of the server.
      is_closing: set while the server is stopping.
      logs_requests: whether to log a line in JSON for each request.
    """

    def find_model(request: Request) -> ServedModel:
        """Return the model of a route, and note it in the record of the request.

        Raises:
          RequestRejectedError: there is no such model.
        """
        name = request.path_params.get("name", DEFAULT_MODEL)
        if name not in models:
            raise RequestRejectedError(
                404, f"there is no model {name!r}. Use one of {', '.join(models)}."
            )
        find_record(request).model = name
        return models[name]

    async def show(request: Request) -> Response:
        version = find_model(request).version
        if version is None:
            raise RequestRejectedError(503, "the model is loading. Send this request later.")
        find_record(request).version = version.name
        return HTMLResponse(version.page, headers={"Content-Security-Policy": _POLICY})

    async def health(request: Request) -> Response:
        described = {name: describe(model) for name, model in models.items()}
        default = described.get(DEFAULT_MODEL, {})
        return json_response({"status": "ok"} | default | {"models": described})

    async def ready(request: Request) -> Response:
        if is_closing.is_set():
            raise RequestRejectedError(503, "the server is shutting down. Use another one.")
        if loading := [name for name, model in models.items() if model.version is None]:
            raise RequestRejectedError(503, f"loading {', '.join(loading)}. Ask again later.")
        return json_response({"status": "ready"})

    async def show_metrics(request: Request) -> Response:
        content = generate_latest(metrics.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def predict(request: Request) -> Response:
        model, record = find_model(request), find_record(request)
        try:
            predict_request = parse_request(await read_body(request, limits), limits)
            record.num_inputs = len(predict_request.inputs)
            version, future = model.submit(predict_request, record.request_id)
            record.version = version.name
            answers = await wait_for_answers(request, future)
        except InputError as error:
            return error_response(400, str(error))
        except CommandError as error:
            return error_response(500, str(error))
        except ClientDisconnect:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)  # nobody reads it
        except asyncio.CancelledError:  # uvicorn shuts down
            return error_response(503, "the server is shutting down. Send this request later.")
        except RequestRejectedError:
            raise
        except Exception:  # logged by the batcher
            return error_response(500, "the model failed at this request. See the server's log.")
        record.num_truncated = sum(answer.get("truncated") is True for answer in answers)
        content: dict[str, Any] = {"answers": answers}
        if predict_request.display:
            pipeline = version.predictor.pipeline
            pairs = zip(predict_request.inputs, answers, strict=True)
            content["display"] = [pipeline.display(item.content, answer) for item, answer in pairs]
        if predict_request.is_single:
            content = {name: values[0] for name, values in content.items()}
        try:
            return json_response(content)
        except ValueError:  # a number of the request that the answer repeats
            return error_response(400, "the request has a number that is not finite. Remove it.")

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: no such route. Use {_ROUTES}."
        return error_response(error.status_code, message, **(error.headers or {}))  # Allow

    async def reject(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestRejectedError)
        return error_response(error.status, str(error))

    routes = [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", show_metrics),
        Route("/", show),
        Route("/models/{name}/", show),
        Route("/predict", predict, methods=["POST"]),
        Route("/models/{name}/predict", predict, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: refuse, RequestRejectedError: reject}
    )
    # The routes of a model with a name have those of the default model as labels in the metrics.
    labels = {route.endpoint: route.path for route in reversed(routes)}
    return RequestObserver(AccessCheck(app, access), labels, metrics, logs_requests)


async def wait_for_answers(request: Request, future: Future[Answers]) -> Answers:
    """Return the answers to a request whose body has been read.

    Raises:
      ClientDisconnect: the client is gone; its inputs are not computed any more.
      Exception: the request failed.
    """
    answers = asyncio.wrap_future(future)  # if one is cancelled, so is the other
    is_gone = False

    async def cancel_if_gone() -> None:
        nonlocal is_gone
        if (await request.receive())["type"] == "http.disconnect":
            is_gone = answers.cancel()

    watcher = asyncio.create_task(cancel_if_gone())
    try:
        return await answers
    except asyncio.CancelledError:
        if is_gone:
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


def describe(model: ServedModel) -> dict[str, str]:
    """Return path, description and version of a model; the path alone until it is loaded."""
    if model.version is None:
        return {"model": str(model.path)}
    return {
        "model": str(model.version.predictor.path),
        "description": model.version.predictor.pipeline.description,
        "version": model.version.name,
    }
