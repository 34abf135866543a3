"""Start-up of commands: help and errors of arguments and paths import no slow library."""

import json
import subprocess
import sys

import pytest

from bertjax.cli.main import find_subcommands

SLOW = {"flax", "jax", "ml_dtypes", "numpy", "optax", "orbax", "pyarrow", "scipy", "tensorflow",
        "tokenizers"}  # fmt: skip
# Subcommands and arguments that name missing paths, and the start of the error.
MISSING_PATHS = {
    "audit gone": "gone: does not exist.",
    "convert --to hf gone new": "gone: does not exist.",
    "embed --checkpoint gone --input - --output new.npz": "gone: does not exist.",
    "evaluate --checkpoint gone --output new": "gone: does not exist.",
    "export --checkpoint gone --to stablehlo --output new": "gone: does not exist.",
    "inspect --config pretraining:data=gone": "gone: does not exist.",
    "inspect --corpus gone": "gone: does not exist.",
    "predict --checkpoint gone --text a": "gone: does not exist.",
    "preflight --config pretraining:init=gone --topology cpu:1": "gone: does not exist.",
    "prepare --input gone --vocab builtin.txt --output new": "builtin.txt: does not exist.",
    "rerank --checkpoint gone --data gone --run gone --output new": "gone: does not exist.",
    "report gone": "gone: does not exist.",
    "score squad --data gone --predictions gone": "gone: no such file.",
    "serve --checkpoint gone": "gone: does not exist.",
    "submit --checkpoint gone --data gone --output new.zip": "gone: does not exist.",
    "sweep --config glue:task=mrpc,data=gone --workdir new": "gone: does not exist.",
    "train --config pretraining:data=gone --workdir new": "gone: does not exist.",
    "train --config gone.py --workdir new": "gone.py: no such file.",
    "vocab --input gone --output new": "gone: no such file.",
}


def imports_of(directory: object, *commands: str) -> list[tuple[str, set[str]]]:
    """Return what each command prints and the modules that are imported after it."""
    program = (
        "import contextlib, io, json, shlex, sys\n"
        "from bertjax.cli.main import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as error, "
        "contextlib.redirect_stdout(error), contextlib.suppress(SystemExit):\n"
        "        main(shlex.split(command))\n"
        "    print(json.dumps([error.getvalue(), sorted(sys.modules)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        capture_output=True, text=True, check=True, cwd=directory,
    )  # fmt: skip
    results = map(json.loads, done.stdout.splitlines())
    return [(error, set(modules)) for error, modules in results]


@pytest.mark.seconds
def test_help_imports_nothing_slow(tmp_path) -> None:
    commands = ["--help", "--version", "", *(f"{name} --help" for name in find_subcommands())]
    for command, (_, imported) in zip(commands, imports_of(tmp_path, *commands), strict=True):
        assert not imported & {*SLOW, "etils", "ml_collections"}, command


@pytest.mark.seconds
def test_errors_of_paths_import_nothing_slow(tmp_path) -> None:
    results = imports_of(tmp_path, *MISSING_PATHS)
    for (command, message), (error, imported) in zip(MISSING_PATHS.items(), results, strict=True):
        assert error.startswith(f"bertjax: {message}") and error.count("\n") == 1, command
        assert not imported & SLOW, command
    assert {command.split()[0] for command in MISSING_PATHS} == {*find_subcommands()} - {"config"}
    assert not list(tmp_path.iterdir())
