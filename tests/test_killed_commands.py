"""Every command killed at its operations on files, then run again: the result is the same.

A command that had finished its output leaves it as it is and says so, with status 2. Evenly spaced
operations are tested; `BERTJAX_KILLS=1000` tests all, which takes more than an hour.
"""

import functools
import json
import os
import pathlib
import shutil
import signal
from collections.abc import Callable

import file_kills
import pytest
import toy_tasks
from conftest import sample_text, sample_vocabulary
from processes import run
from run_outputs import metrics, params_of

pytestmark = pytest.mark.minutes

TOYS = {"steps": 4, "log_every": 2, "eval_every": 2, "checkpoint_every": 2, "max_to_keep": 1}
TOYS |= {"optimizer.warmup": 1}
CACHE_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # one process at a time
MAX_KILLS = int(os.environ.get("BERTJAX_KILLS", "6"))  # of a command
VOLATILE = ("tensorboard", "metrics.jsonl", "params", "training", "files.json")
VOLATILE += ("_CHECKPOINT_METADATA", "goodput.json")  # times


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> pathlib.Path:
    """Data, a text, a vocabulary and a trained run, which the commands only read."""
    folder = tmp_path_factory.mktemp("inputs")
    toy_tasks.write_data(folder)
    (folder / "text.txt").write_text(sample_text(seed=1, documents=60))
    (folder / "lines.txt").write_text("ba do\nki lu\n")
    (folder / "vocabulary.txt").write_text("\n".join(sample_vocabulary()) + "\n")
    done = run("train", *toy_arguments(folder, **TOYS), "--workdir", folder / "run", **CACHE_ALL)
    assert done.returncode == 0, done.stderr
    return folder


def toy_arguments(folder: pathlib.Path, **fields: object) -> list[str]:
    return toy_tasks.arguments("single_label", folder, **fields)


def commands(inputs: pathlib.Path, root: pathlib.Path) -> dict[str, list[object]]:
    """Return a command of each kind that writes below the root."""
    text, run_dir, out = ["--input", inputs / "text.txt"], inputs / "run", root / "out"
    used, toys = ["--checkpoint", run_dir], toy_arguments(inputs, **TOYS)
    vocabulary = ["--vocab", inputs / "vocabulary.txt"]
    shards = ["--eval-fraction", "0.1", "--num-shards", "2", "--workers", "0"]
    rates = "optimizer.learning_rate=1e-3,4e-3"
    return {
        "train": ["train", *toys, "--workdir", out / "run"],
        "predict": ["predict", *used, "--save-logits", root / "logits", *toys],
        "embed": ["embed", *used, "--input", inputs / "lines.txt", "--output", root / "e.npz"],
        "prepare": ["prepare", *text, *vocabulary, *shards, "--output", out / "corpus"],
        "vocab": ["vocab", *text, "--vocab-size", 60, "--workers", 0, "--output", out / "v.txt"],
        "convert-hf": ["convert", "--to", "hf", run_dir, out / "model"],
        "convert-bertjax": ["convert", "--to", "bertjax", run_dir, out / "model"],
        "evaluate": ["evaluate", *used, "--output", out / "scores"],
        "report": ["report", root / "run"],
        "sweep": ["sweep", *toys, "--seeds", 2, "--grid", rates, "--workdir", out / "sweep"],
    }


def contents(root: pathlib.Path) -> dict[str, object]:
    """Return what a command left below the root, without times and formats of arrays."""
    left: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        assert not name.endswith((".partial", "lock.json", ".lock", ".start")), name
        if path.name == "metrics.jsonl":
            left[name] = metrics(path.parent)
        elif path.is_dir() and (path / "files.json").exists():
            left[name] = params_of(path)
        elif path.is_file() and not {*path.relative_to(root).parts} & {*VOLATILE}:
            left[name] = path.read_bytes()
    return left


@pytest.mark.parametrize("name", [*commands(pathlib.Path(), pathlib.Path())])
def test_command_killed_at_each_operation_has_the_same_result(name, inputs, tmp_path) -> None:
    def start(folder: str) -> pathlib.Path:
        root = tmp_path / folder
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        if name == "report":
            shutil.copytree(inputs / "run", root / "run")
        return root

    def execute(root: pathlib.Path, begin: Callable[[], None] | None = None) -> tuple[int, str]:
        done = run(*commands(inputs, root)[name], begin=begin, **CACHE_ALL)
        return done.returncode, done.stderr

    root, log = start("root"), tmp_path / "log"
    status, error = execute(root, functools.partial(file_kills.record, root, log))
    assert status == 0, error
    whole, operations = contents(root), file_kills.distinct_operations(log)
    assert operations
    for operation in operations[:: -(-len(operations) // MAX_KILLS)]:
        root = start("root")
        status, error = execute(root, functools.partial(file_kills.kill_at, root, operation))
        assert status == -signal.SIGKILL, (operation, status, error)
        status, error = execute(root)
        finished = (status == 2 and "exists" in error) or "already contains" in error
        assert status == 0 or finished, (operation, error)
        assert contents(root) == whole, operation
    print(json.dumps({name: operations}))
