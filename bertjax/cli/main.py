"""Entry point of the command line, `bertjax SUBCOMMAND ...`.

Exit status:
  0: done.
  1: any other failure. The error is one line if the machine or the run caused it; a fault of
    bertjax keeps its traceback.
  2: usage or input error, one line on standard error.
  3: the loss of a run is not finite (`EXIT_DIVERGED`).
  75: a signal, the loss of a process or the watchdog ended the run early: run the same command
    again (`EXIT_RESTART`).

A subcommand is a module of this package that defines `ORDER`, its place in the list. It also has a
docstring (the first line is its help text), `EXAMPLE` (a command that runs),
`add_arguments(parser)`, and `run(args)`. It may define `check(args)`, which rejects unusable
arguments and missing paths before `run`. Only `run` imports JAX, NumPy or tensorflow: help and
errors of arguments and paths take a fraction of a second. `tests/test_startup.py` checks it.
"""

import argparse
import difflib
import functools
import gc
import importlib
import io
import logging
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

import bertjax.cli
from bertjax.cli.config_args import reject_unknown_arguments
from bertjax.cli.distributed import run_in_child_if_distributed
from bertjax.cli.files import bucket_errors, check_buckets
from bertjax.cli.jax_setup import choose_platforms, has_device_files
from bertjax.cli.termination import (
    exit_stopped,
    handle_signals,
    keep_status,
    report_stopped,
)
from bertjax.errors import CommandError
from bertjax.mesh import child_process
from bertjax.mesh.allocator import keep_freed_memory
from bertjax.version import __version__
from data_pipelines.errors import InputError, one_line

_MEMORY_FIX = (
    "end other programs on this machine, or use a smaller model, a smaller batch or more devices."
)
_MAX_NUMBER = 10_000_000  # of an option; each would be allocated or started
_MAX_BYTES = 1 << 31  # of an option in bytes
_SIGPIPE_STATUS = 128 + 13  # a shell's exit status for a program that SIGPIPE ended
# A path that was used before it was checked is a fault of bertjax, not of the machine.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


class _OneLineFormatter(logging.Formatter):
    """Formatter that keeps warnings and errors, which may quote a file, to one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (of logging)
        """Return the message of a record."""
        message = super().formatMessage(record)
        return one_line(message) if record.levelno >= logging.WARNING else message


class _OnceFilter(logging.Filter):
    """Filter that drops repeated messages about data, whose files a task may read several times."""

    def __init__(self) -> None:
        super().__init__("data_pipelines")
        self._messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a message about data that was logged before."""
        if not super().filter(record):
            return True
        message = record.getMessage()
        is_new = message not in self._messages
        self._messages.add(message)
        return is_new


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    Args:
      argv: arguments; None for those of the process. After a signal, None exits the process with
        `EXIT_RESTART`; with explicit arguments that status is returned.
    """
    _open_streams()
    if not has_device_files():
        # Training on CPUs reuses freed pages (10 to 25% of a step). glibc must be set before
        # threads start.
        keep_freed_memory()
    handle_stop = exit_stopped if argv is None else report_stopped
    with handle_signals() as stopped:
        try:
            status = _parse_and_run(sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:
            return handle_stop()
        except Exception:  # a library may have converted the KeyboardInterrupt
            if not stopped.is_set():
                raise
            return handle_stop()
    if argv is None:
        keep_status(status)
    return status


def _parse_and_run(argv: Sequence[str]) -> int:
    # Imports and tracing create many long-lived objects. Collecting garbage at the default
    # threshold takes a tenth of a command's start-up time.
    gc.set_threshold(100_000)
    # Set before any import of tensorflow, which only reads data here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_OnceFilter())
    handler.setFormatter(_OneLineFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for ours in ("bertjax", "data_pipelines"):
        logging.getLogger(ours).setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # absl's errors arrive as exceptions
    if not argv:
        _parser().print_help(sys.stderr)
        return 2
    args, extra = _parser().parse_known_args(argv)
    args.argv = argv
    run = functools.partial(_run_subcommand, args, extra)
    # A child that fails must end at once: JAX's exit would wait for processes that wait for it.
    return child_process.run_as_child(run) if child_process.is_child() else run()


class _ClosedStdout(io.TextIOBase):
    """Stand-in for a closed standard output; writing raises instead of losing the result."""

    def write(self, text: str) -> int:
        raise OSError("standard output is closed: open it, or name a file by --output.")


def _open_streams() -> None:
    """Open os.devnull on each closed standard file descriptor (0 to 2).

    Otherwise a file opened later would get that descriptor and receive output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = _ClosedStdout() if sys.stdout is None else sys.stdout
    sys.stderr = open(os.devnull, "w") if sys.stderr is None else sys.stderr  # noqa: SIM115 (open to the end)


def _run_subcommand(args: argparse.Namespace, extra: Sequence[str]) -> int:
    """Run the subcommand of parsed arguments; report expected errors in one line."""
    try:
        check_buckets(args, extra)
        args.overrides = args.parse_extra_args(extra)
        args.check(args)
        choose_platforms(compiles_only=args.subcommand == "preflight")
        if "coordinator_address" in args:
            status = run_in_child_if_distributed(args)
            if status is not None:
                return status
        if vars(args).get("task"):
            from bertjax.tasks import registry

            registry.import_task(args.task)
        args.run(args)
        return 0
    except InputError as error:
        return _report_error(error, 2)
    except CommandError as error:
        return _report_error(error, error.status)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # receives what is flushed later
        return _SIGPIPE_STATUS
    except _PATH_ERRORS:
        raise
    except OSError as error:
        return _report_error(error, 1)
    except bucket_errors() as error:
        return _report_error(error, 1)
    except _memory_errors() as error:
        if (detail := _out_of_memory_detail(error)) is None:
            raise
        return _report_error(CommandError(f"out of memory{detail}: {_MEMORY_FIX}"), 1)


def _memory_errors() -> tuple[type[Exception], ...]:
    """Return the exception types that may mean out of memory.

    JaxRuntimeError has other causes too.
    """
    errors = getattr(sys.modules.get("jax"), "errors", None)
    return (MemoryError, errors.JaxRuntimeError) if errors else (MemoryError,)


def _out_of_memory_detail(error: BaseException) -> str | None:
    """Return a suffix for the message, such as ", allocating 3 GiB failed".

    It is "" without details, None if the error has another cause.
    """
    if isinstance(error, MemoryError):
        return f" ({error})" if str(error) else ""
    from bertjax.mesh.memory import failed_allocation_bytes, format_bytes

    size = failed_allocation_bytes(error)
    return None if size is None else f", allocating {format_bytes(size)} failed"


def _report_error(error: BaseException, status: int) -> int:
    print(f"bertjax: {one_line(str(error))}", file=sys.stderr)
    return status


def find_subcommands() -> dict[str, Any]:
    """Return the modules of the subcommands by name, sorted by `ORDER`."""
    names = [module.name for module in pkgutil.iter_modules(bertjax.cli.__path__)]
    modules = {name: importlib.import_module(f"bertjax.cli.{name}") for name in names}
    subcommands = {name: module for name, module in modules.items() if hasattr(module, "ORDER")}
    return dict(sorted(subcommands.items(), key=lambda item: item[1].ORDER))


class _Parser(argparse.ArgumentParser):
    """Parser whose usage errors are one line and suggest the nearest subcommand."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"bertjax: {one_line(message)}: see {self.prog} --help.", file=sys.stderr)
        sys.exit(2)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert an argument; an empty path would mean the current directory."""
        # A text has its own message, some defaults are "", and a subcommand has its own parser.
        is_checked = action.nargs != argparse.PARSER and action.dest != "text"
        if is_checked and not arg_string.strip() and action.default != arg_string:
            raise argparse.ArgumentError(action, "it is empty, give a value")
        value = super()._get_value(action, arg_string)
        limit = _MAX_BYTES if action.dest.endswith("_bytes") else _MAX_NUMBER
        if isinstance(value, int) and abs(value) > limit:
            raise argparse.ArgumentError(action, f"{arg_string[:20]} is above {limit:,}")
        return value

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            nearest = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]
            raise argparse.ArgumentError(action, f"{value!r} is unknown, did you mean {nearest}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bertjax", description="Pre-train, evaluate and use BERT with JAX.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"bertjax {__version__}")
    subparsers = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    for name, module in find_subcommands().items():
        description = (module.__doc__ or name).splitlines()[0].rstrip(".")
        command = subparsers.add_parser(
            name,
            help=description[0].lower() + description[1:],
            description=f"{description}.",
            epilog=f"example: {module.EXAMPLE}",
            allow_abbrev=False,
        )
        command.set_defaults(
            subcommand=name,
            check=getattr(module, "check", lambda args: None),
            run=module.run,
            parse_extra_args=reject_unknown_arguments,  # `add_config` replaces it
        )
        module.add_arguments(command)
    return parser
