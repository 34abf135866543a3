"""Answer requests over HTTP with a model, and show a page to try it."""

import argparse
import importlib.util

from bertjax.cli.files import add_checkpoint
from bertjax.cli.jax_setup import enable_compilation_cache, skip_missing_tpu
from bertjax.errors import RunError
from data_pipelines.errors import InputError

ORDER = 72
EXAMPLE = "bertjax serve --checkpoint runs/smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="an address of this machine (%(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="a port that is free, 0 for any (%(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    if not 0 <= args.port < 2**16:
        raise InputError(f"--port {args.port} is no port: name one from 0 to 65535.")
    for library in ("starlette", "uvicorn"):
        if importlib.util.find_spec(library) is None:
            raise InputError(f"{library} is missing; pip install 'bertjax[serve]'.")
    skip_missing_tpu()
    enable_compilation_cache()
    from bertjax.inference.predictor import Predictor
    from bertjax.serving.server import Server, bind_socket

    with bind_socket(args.host, args.port) as listener:
        predictor = Predictor(args.checkpoint)
        server = Server(listener, predictor)
        host, port = listener.getsockname()[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"http://{place}/ {predictor.description}: Ctrl-C ends it.", flush=True)
        try:
            server.wait()
            raise RunError("the server has ended by itself: start it again.")
        finally:
            server.close()
