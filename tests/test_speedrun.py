"""The speedrun: trials on a small corpus, and the rules that a run cannot change."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import LONG, process_environment

from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingObjective
from data_pipelines.pretraining.options import PretrainingOptions
from experiments.speedrun import __main__ as speedrun

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


@pytest.mark.parametrize("percent", ["x", "nan", "1e2", ""])
def test_speedrun_rejects_a_share_that_is_no_number(tmp_path, monkeypatch, capsys, percent) -> None:
    stages = ["--stage", percent, TINY, "--stage", "100", TINY]
    command = ["--data", str(tmp_path), "--output", str(tmp_path / "run"), *stages]
    monkeypatch.setattr(sys, "argv", ["speedrun", *command])
    with pytest.raises(SystemExit):
        speedrun.main()
    assert f"{percent!r} is no percentage" in capsys.readouterr().err


def test_training_options_do_not_change_the_eval_split(tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(speedrun, "run_bertjax", lambda *words: commands.append(words))
    (tmp_path / "scores.json").write_text('{"mlm_loss": 1.0}')
    assert speedrun.evaluate(tmp_path / "stage-1", tmp_path) == {"mlm_loss": 1.0}
    flags = [word.partition("=") for word in commands[0] if word.startswith("--config.")]
    rules = {flag.removeprefix("--config."): value for flag, _, value in flags}
    assert "data.dir" not in rules
    training = {
        "max_seq_length": 64,
        "packing": True,
        "eval_batches": 3,
        "data.objective": "mlm",
        "data.full_sentences": True,
        "data.masking": "span",
        "data.max_predictions_per_seq": 5,
        "data.short_seq_prob": 0.5,
        "data.random_tokens": "all",
        "data.max_examples_per_seq": 2,
        "data.dupe_factor": 3,
        "data.mask_replace_prob": 0.5,
        "data.mixture_weights": "1+2",
    }
    spec = "pretraining:model=mini,recipe=modern,data=corpus"
    pairs = {**training, "data.objective": "mlm_nsp", "data.full_sentences": False}
    for fields in (training, pairs | {"loss_weights": "mlm=1,nsp=0.5"}):
        config = load_config(spec, fields, registry.data_fields())
        overridden = load_config(config.to_dict(), rules, registry.data_fields())
        assert overridden.data["dir"] == "corpus" and overridden.eval_batches == 0
        options = PretrainingObjective(overridden).eval_options
        size, length = speedrun.EVAL_BATCH_SIZE, speedrun.MAX_SEQ_LENGTH
        assert options == PretrainingOptions(length, size, objective="mlm")
