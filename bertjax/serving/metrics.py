"""Metrics of a server in the format of Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

_BATCH_SIZES = tuple(2.0**i for i in range(10))
# From a small model on a GPU to a queue of long texts on a CPU.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServerMetrics:
    """Metrics of one server, and of its process.

    Attributes:
      registry: what `GET /metrics` returns.
      requests: answered requests by route, model, method and status.
      seconds: time from the head of a request to the end of its answer, by route and model.
      batch_inputs: inputs that were computed together, by model.
      queued_inputs: inputs that wait, by model.
      truncated_inputs: answered inputs that lost tokens, by model.
      model_info: 1 for the version that answers requests, by model, version and path.
      reloads: reloads by model and outcome: "replaced", "unchanged" or "failed".
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "bertjax_http_requests",
            "Answered requests.",
            ("route", "model", "method", "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "bertjax_http_request_duration_seconds",
            "Time from the head of a request to the end of its answer.",
            ("route", "model"),
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_inputs = Histogram(
            "bertjax_batch_inputs",
            "Inputs that were computed together.",
            ("model",),
            buckets=_BATCH_SIZES,
            registry=registry,
        )
        self.queued_inputs = Gauge(
            "bertjax_queued_inputs",
            "Inputs that wait for their batch.",
            ("model",),
            registry=registry,
        )
        self.truncated_inputs = Counter(
            "bertjax_truncated_inputs",
            "Answered inputs that lost tokens, because they were longer than the model takes.",
            ("model",),
            registry=registry,
        )
        self.model_info = Gauge(
            "bertjax_model_info",
            "Version that answers requests.",
            ("model", "version", "path"),
            registry=registry,
        )
        self.reloads = Counter(
            "bertjax_model_reloads",
            "Reloads that replaced the model, left it unchanged or failed.",
            ("model", "outcome"),
            registry=registry,
        )
