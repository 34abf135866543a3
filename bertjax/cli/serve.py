"""Serve models over HTTP, with a page to try them."""

import argparse
import dataclasses
import re
import signal
from typing import TYPE_CHECKING, Self

from bertjax.cli.files import add_checkpoint
from bertjax.cli.jax_setup import enable_compilation_cache
from bertjax.errors import CommandError
from bertjax.serving.options import DEFAULT_MODEL, Access, Limits
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

if TYPE_CHECKING:
    from bertjax.serving.server import ModelServer

ORDER = 72
EXAMPLE = "bertjax serve --checkpoint runs/smoke"
_LIMITS = {
    "max_body_bytes": "bytes of a request",
    "max_inputs": "inputs of a request, and of those that are computed together",
    "max_characters": "characters of an input, and of inputs computed together",
    "max_queued_inputs": "inputs that wait for a model; more are rejected with status 503",
    "timeout_seconds": "seconds until a request has arrived, or an idle connection is closed",
    "max_connections": "open connections",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser, required=False)
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="another model, for requests to /models/NAME/predict; may be repeated (none)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on, 0 for a free one (%(default)s)"
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that requests may be sent to; may be repeated (those of this machine; "
        "any for requests that arrive over an address that is no loopback one)",
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may send requests, such as https://example.org; may be "
        "repeated (the server's own)",
    )
    for field in dataclasses.fields(Limits):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            metavar="N",
            help=f"{_LIMITS[field.name]} (%(default)s)",
        )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="log a line in JSON for each request on standard error (no lines)",
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import check_predicts

    if not 0 <= args.port < 2**16:
        raise InputError(f"--port={args.port}: not a port. Name one from 0 to 65535.")
    _limits(args)
    _access(args)
    check_installed(
        "serve", "starlette", "uvicorn", "prometheus_client", install="'bertjax[serve]'"
    )
    for path in _models(args).values():
        check_predicts(path)


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Limits)})


def _access(args: argparse.Namespace) -> Access:
    return Access(args.allowed_host, args.allowed_origin)


def _models(args: argparse.Namespace) -> dict[str, str]:
    """Return the path of each model by its name.

    Raises:
      InputError: there is no model, or a name is malformed or repeated.
    """
    models = {DEFAULT_MODEL: args.checkpoint} if args.checkpoint else {}
    for text in args.model:
        name, _, path = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not path:
            raise InputError(
                f"--model={text}: not NAME=DIR. Write a name of letters, digits, '_', '-' and '.'."
            )
        if name in models:
            raise InputError(f"--model={text}: there is a model {name} already. Name it otherwise.")
        models[name] = path
    if not models:
        raise InputError("serve: no model. Give --checkpoint DIR or --model NAME=DIR.")
    return models


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    with _Hangups() as hangups:  # before the imports, as SIGHUP ends a process by default
        from bertjax.serving.server import ModelServer, bind_socket

        enable_compilation_cache()
        with bind_socket(args.host, args.port) as listener:
            server = ModelServer(
                listener, _models(args), _limits(args), _access(args), args.log_requests
            )
            try:
                hangups.reload(server)
                server.load()
                host, port = listener.getsockname()[:2]
                address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                for name, description in server.descriptions().items():
                    path = "" if name == DEFAULT_MODEL else f"models/{name}/"
                    print(f"http://{address}/{path} {description}: Ctrl-C ends it.", flush=True)
                server.wait()
                raise CommandError("the server ended unexpectedly: start it again.")
            finally:
                server.close()


class _Hangups:
    """Context in which SIGHUP reloads the models of a server, even where `nohup` has it ignored."""

    def __enter__(self) -> Self:
        self._is_early = False
        self._server: ModelServer | None = None
        self._previous = signal.signal(signal.SIGHUP, self._handle)
        return self

    def reload(self, server: "ModelServer") -> None:
        """Reload the models of this server at a signal, also at an earlier one."""
        self._server = server
        if self._is_early:
            server.request_reload()

    def _handle(self, *_: object) -> None:
        if self._server is None:
            self._is_early = True
        else:
            self._server.request_reload()

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGHUP, self._previous)
