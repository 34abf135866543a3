"""Serve a model over HTTP, with a page to try it."""

import argparse

from bertjax.cli.files import add_checkpoint
from bertjax.cli.jax_setup import enable_compilation_cache
from bertjax.errors import CommandError
from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

ORDER = 72
EXAMPLE = "bertjax serve --checkpoint runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on, 0 for a free one (%(default)s)"
    )


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import find_format

    if not 0 <= args.port < 2**16:
        raise InputError(f"--port={args.port}: not a port. Name one from 0 to 65535.")
    check_installed("serve", "starlette", "uvicorn", install="'bertjax[serve]'")
    find_format(args.checkpoint)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.predictor import Predictor
    from bertjax.serving.server import ModelServer, bind_socket

    enable_compilation_cache()
    with bind_socket(args.host, args.port) as listener:
        predictor = Predictor(args.checkpoint)
        server = ModelServer(listener, predictor)
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"http://{address}/ {predictor.pipeline.description}: Ctrl-C ends it.", flush=True)
        try:
            server.wait()
            raise CommandError("the server ended unexpectedly: start it again.")
        finally:
            server.close()
