"""Options of the server, which the command line reads before JAX is imported."""

import dataclasses
import math
import re
from collections.abc import Sequence

from data_pipelines.errors import InputError

DEFAULT_MODEL = "default"  # model of the routes without a name


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits that keep one request from taking the resources of others.

    Attributes:
      max_body_bytes: bytes of a request.
      max_inputs: inputs of a request, and of requests that are computed together.
      max_characters: characters of an input.
      max_queued_inputs: inputs of all requests that wait for a model.
      timeout_seconds: until a request has arrived, and until an idle connection is closed.
      max_connections: open connections.

    Raises:
      InputError: a limit is not positive, or the queue is shorter than a request.
    """

    max_body_bytes: int = 1 << 20
    max_inputs: int = 32
    max_characters: int = 20_000
    max_queued_inputs: int = 256
    timeout_seconds: float = 10.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 < value < math.inf:
                option = name.replace("_", "-")
                raise InputError(f"--{option}={value}: not positive. Give a positive number.")
        if self.max_queued_inputs < self.max_inputs:
            raise InputError(
                f"--max-queued-inputs={self.max_queued_inputs}: a request of --max-inputs="
                f"{self.max_inputs} never fits into the queue. Raise it."
            )


@dataclasses.dataclass(frozen=True)
class Access:
    """Web pages and host names that the server accepts requests from and for.

    Without hosts, a server on a loopback address accepts the names of this machine, and any other
    server all names. Pages of the server's own host are always accepted.

    Attributes:
      hosts: names in the header `Host`, without ports, besides those of this machine.
      origins: origins of pages, such as "https://example.org".

    Raises:
      InputError: a host or an origin is malformed.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def __post_init__(self) -> None:
        for host in self.hosts:
            if not re.fullmatch(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]", host):
                raise InputError(
                    f"--allowed-host={host}: no host name. Write it in lower case, without a port."
                )
        for origin in self.origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[a-z0-9_.:\[\]-]+", origin):
                raise InputError(
                    f"--allowed-origin={origin}: no origin. Write https://NAME or "
                    "https://NAME:PORT, in lower case, without a path."
                )
