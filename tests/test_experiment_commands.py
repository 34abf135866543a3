"""Commands that experiments run, and arguments that they share."""

import argparse
import os
import pathlib
import re

import pytest

from experiments.ablations.commands import check_seeds, local_path

ROOT = pathlib.Path(__file__).parents[1]


def test_local_path_returns_the_path() -> None:
    assert local_path("runs/one") == pathlib.Path("runs/one")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gs://bucket/runs", "gs://bucket/runs: not local. Name one that is mounted here"),
        ("~/runs", f"~/runs: the shell has not expanded ~. Write {os.path.expanduser('~')}/runs"),
    ],
)
def test_local_path_rejects_what_would_become_a_directory_of_that_name(text, message) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(message)):
        local_path(text)


def test_experiments_take_paths_as_local_paths() -> None:
    files = (ROOT / "experiments").rglob("*.py")
    assert not [path for path in files if re.search(r"type=(pathlib\.)?Path\b", path.read_text())]


def test_check_seeds_asks_for_a_run() -> None:
    check_seeds(1)
    with pytest.raises(SystemExit, match="--seeds 0: no run"):
        check_seeds(0)
