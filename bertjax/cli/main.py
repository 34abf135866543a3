"""The command line: `bertjax VERB ...` parses, calls and says how it ended.

Exit status: 0 done; 2 a usage or input error, one sentence on standard error; 3 a run whose loss is
no number any more; 75 a run that a signal or the loss of another host ended early, to be run again;
1 anything else, in a sentence where the machine or the run is the cause, and with its traceback
where we are.

A verb is a file of this folder with a docstring, whose first line says what the verb does, its
place in the list of verbs, `ORDER`, a command that runs, `EXAMPLE`, `add_arguments(parser)`, and
`run(args)`, which does the work and may return an exit status. What is slow to import, JAX above
all, it imports in `run`, so that help and usage errors are quick.
"""

import argparse
import difflib
import functools
import gc
import glob
import importlib
import importlib.metadata
import io
import logging
import os
import pkgutil
import sys
import types
from collections.abc import Sequence
from typing import Any

import bertjax.cli
from bertjax.cli.config_args import reject_unknown_arguments
from bertjax.cli.files import bucket_errors, check_buckets
from bertjax.cli.termination import exit_stopped, handle_signals, report_stopped
from bertjax.errors import CHILD_ENV, RunError
from bertjax.mesh.allocator import keep_freed_memory
from bertjax.version import __version__
from data_pipelines.errors import InputError

_MEMORY_FIX = (
    "end what else runs on this machine, or take a smaller model, fewer rows or more devices."
)
_SIGPIPE_STATUS = 128 + 13  # as a shell says of a program that SIGPIPE ended
# Of a path that was not checked before it was used: our fault, not the machine's.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status. What is stopped ends the process, which is its own
    unless arguments are given.
    """
    _open_streams()
    if not _device_files():
        keep_freed_memory()  # what computes is this host, and there are no threads as yet
    end = exit_stopped if argv is None else report_stopped
    with handle_signals() as stopped:
        try:
            return _main(sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:
            return end()
        except Exception:  # libraries may make another one of it
            if not stopped.is_set():
                raise
            return end()


def _main(argv: Sequence[str]) -> int:
    # Imports and tracing make many objects that stay, and Python would look through them for
    # circles again and again: a tenth of the time that a command needs to start.
    gc.set_threshold(100_000)
    # Before anything imports tensorflow, which serves data alone here and need not say more.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for ours in ("bertjax", "data_pipelines"):
        logging.getLogger(ours).setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # its errors reach us as exceptions
    if not argv:
        _parser().print_help(sys.stderr)
        return 2
    args, rest = _parser().parse_known_args(argv)
    args.argv = argv
    if not _may_have_accelerators():
        _silence_plugins(compiles_for_them="preflight" in argv)
    if CHILD_ENV not in os.environ:
        return _run(args, rest)
    from bertjax.mesh import distributed

    return distributed.run_child(functools.partial(_run, args, rest))


class _ClosedStdout(io.TextIOBase):
    """Standard output that is closed: what goes there is lost, and is not to be so in silence."""

    def write(self, text: str) -> int:
        raise OSError("standard output is closed, and the result was to go there: open it.")


def _open_streams() -> None:
    """Lets no file take the number of a standard stream that is closed, and be written to as it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = _ClosedStdout() if sys.stdout is None else sys.stdout
    sys.stderr = open(os.devnull, "w") if sys.stderr is None else sys.stderr  # noqa: SIM115


def _may_have_accelerators() -> bool:
    """Whether a TPU or an NVIDIA GPU is here, or a plugin for other devices."""
    ours = {"xla_cuda12", "xla_cuda13"}
    others = {plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")} - ours
    return bool(others) or _device_files()


def _device_files() -> bool:
    """Whether the system has files of accelerators."""
    return any(glob.glob(f"/dev/{name}*") for name in ("accel", "vfio/", "nvidia", "dxg"))


def _silence_plugins(compiles_for_them: bool) -> None:
    """Keeps the plugins that JAX finds from complaining that their devices are not here."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if not compiles_for_them:  # the libraries themselves complain, as soon as they are loaded
        sys.modules.setdefault("jax_cuda12_plugin", None)  # type: ignore[arg-type]
        idle = types.ModuleType("jax_plugins.xla_cuda12")
        idle.initialize = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(idle.__name__, idle)


def _run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    try:
        check_buckets(args.argv)
        args.rest = args.parse_extra_args(rest)
        return args.run(args) or 0
    except InputError as error:
        return _report_error(error, 2)
    except RunError as error:
        return _report_error(error, error.status)
    except BrokenPipeError:  # whoever reads has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be flushed
        return _SIGPIPE_STATUS
    except _PATH_ERRORS:
        raise
    except OSError as error:
        return _report_error(error, 1)
    except bucket_errors() as error:
        return _report_error(error, 1)
    except _memory_errors() as error:
        if (wanted := _missing_memory(error)) is None:
            raise
        return _report_error(RunError(f"memory does not suffice{wanted}: {_MEMORY_FIX}"), 1)


def _memory_errors() -> tuple[type[Exception], ...]:
    """What is raised where memory is short; JAX raises the same where devices fail otherwise."""
    errors = getattr(sys.modules.get("jax"), "errors", None)
    return (MemoryError, errors.JaxRuntimeError) if errors else (MemoryError,)


def _missing_memory(error: BaseException) -> str | None:
    """What an error tells of memory that there was not; None for another error."""
    if isinstance(error, MemoryError):
        return f" ({error})" if str(error) else ""
    from bertjax.mesh.memory import failed_allocation_bytes, format_bytes

    wanted = failed_allocation_bytes(error)
    return None if wanted is None else f", {format_bytes(wanted)} could not be had"


def _report_error(error: BaseException, status: int) -> int:
    print(f"bertjax: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def find_subcommands() -> dict[str, Any]:
    """The files of this folder that are verbs by their names, in the order of a model's life."""
    names = [module.name for module in pkgutil.iter_modules(bertjax.cli.__path__)]
    files = {name: importlib.import_module(f"bertjax.cli.{name}") for name in names}
    verbs = {name: file for name, file in files.items() if hasattr(file, "ORDER")}
    return dict(sorted(verbs.items(), key=lambda verb: verb[1].ORDER))


class _Parser(argparse.ArgumentParser):
    """Usage errors in one sentence; the nearest verb for a misspelt one."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"bertjax: {message}: see {self.prog} --help.", file=sys.stderr)
        sys.exit(2)

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
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb in find_subcommands().items():
        said = (verb.__doc__ or name).splitlines()[0].rstrip(".")
        command = verbs.add_parser(
            name,
            help=said[0].lower() + said[1:],
            description=f"{said}.",
            epilog=f"example: {verb.EXAMPLE}",
            allow_abbrev=False,
        )
        command.set_defaults(run=verb.run, parse_extra_args=reject_unknown_arguments)
        verb.add_arguments(command)
    return parser
