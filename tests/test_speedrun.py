"""The speedrun: trials on a small corpus, and the rules that a run cannot change."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import LONG, process_environment

TINY = "pretraining:model=1-64,recipe=modern,smoke=True"


def run(directory: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["--data", str(directory), "--output", str(directory / "run"), *arguments]
    return subprocess.run(
        [sys.executable, "-m", "experiments.speedrun", *command],
        capture_output=True,
        text=True,
        env=process_environment(),
        timeout=LONG,
    )


@pytest.mark.minutes
def test_speedrun_records_stages_score_and_that_other_text_is_a_trial(corpus, tmp_path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    stages = ["--stage", "50", f"{TINY},objective=clm", "--stage", "50", TINY]
    flags = ["--config.model.max_position_embeddings=128", "--config.log_every=1"]
    process = run(tmp_path, "--minutes", "0.02", *stages, *flags)
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert 0 < record["mlm_loss"] < 10
    assert record["is_trial"]
    assert [stage["steps"] > 0 for stage in record["stages"]] == [True, True]
    assert f"init={tmp_path}/run/stage-0" in process.stdout


@pytest.mark.slow
def test_speedrun_without_text_names_the_option(tmp_path) -> None:
    process = run(tmp_path)
    assert process.returncode == 1
    assert "--text" in process.stderr and "Traceback" not in process.stderr


@pytest.mark.slow
def test_speedrun_rejects_shares_that_do_not_add_up(tmp_path) -> None:
    process = run(tmp_path, "--stage", "50", TINY)
    assert process.returncode == 2
    assert "100 percent" in process.stderr
