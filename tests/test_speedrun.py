"""The speedrun: trials on a small corpus, and the rules that a run cannot change."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from conftest import LONG, process_environment

from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingObjective
from data_pipelines.errors import InputError
from data_pipelines.pretraining.options import PretrainingOptions
from experiments.speedrun import __main__ as speedrun
from experiments.speedrun import eval_split, machine

TINY = "pretraining:model=1-64,recipe=modern,smoke=True"
POSITIONS = "model.max_position_embeddings=128"


def command(directory: pathlib.Path, *arguments: str) -> list[str]:
    target = ["--data", str(directory), "--output", str(directory / "run")]
    return [sys.executable, "-m", "experiments.speedrun", *target, *arguments]


def parse(*arguments: str) -> list[speedrun.Stage]:
    """Return the stages of a command line."""
    target = ["--data", "data", "--output", "run"]
    args, flags = speedrun.make_parser().parse_known_args([*target, *arguments])
    args.device_class = speedrun.DEVICE_CLASSES[args.device_class]
    args.minutes = args.minutes or args.device_class.minutes
    return speedrun.parse_stages(args, flags)


@pytest.mark.minutes
def test_speedrun_resumes_and_records_stages_and_score(corpus, tmp_path) -> None:
    shutil.copytree(corpus, tmp_path / "corpus")
    stages = ["--stage", "50", f"{TINY},objective=clm", "log_every=1", "--stage", "50", TINY]
    arguments = command(
        tmp_path,
        "--minutes",
        "0.1",
        *stages,
        f"--config.{POSITIONS}",
        "--config.checkpoint_every=2",
    )
    with subprocess.Popen(arguments, env=process_environment()) as process:
        checkpoints = tmp_path / "run" / "stage-0" / "checkpoints"
        deadline = time.monotonic() + LONG
        while not checkpoints.is_dir() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
    assert process.returncode and not (tmp_path / "run" / "record.json").exists()
    done = subprocess.run(
        arguments, capture_output=True, text=True, env=process_environment(), timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert 0 < record["mlm_loss"] < 10
    assert record["is_trial"]
    first, second = record["stages"]
    assert first["steps"] > 0 < second["steps"]
    # A step and a save may exceed the time.
    assert 3 <= first["counted_seconds"] < 13 and 3 <= second["counted_seconds"] < 13
    assert first["resolved"]["log_every"] == 1 != second["resolved"]["log_every"]
    assert first["resolved"]["data_seed"] != second["resolved"]["data_seed"]
    assert f"init={tmp_path}/run/stage-0" in done.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


@pytest.mark.slow
def test_speedrun_without_text_names_the_option(tmp_path) -> None:
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, env=process_environment(), timeout=LONG
    )
    assert done.returncode == 1
    assert "--text" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", speedrun.DEVICE_CLASSES)
def test_reference_is_a_run_of_clm_and_then_of_masked_lm(name: str) -> None:
    first, second = parse("--device-class", name)
    assert (first.percent, second.percent) == (20, 80)
    objectives = [stage.resolved.data["objective"] for stage in (first, second)]
    assert objectives == ["clm", "mlm_nsp"]
    assert first.fields["init"] == "" and second.fields["init"] == "run/stage-0"
    assert first.fields["data_seed"] != second.fields["data_seed"]


def test_fields_change_one_stage_and_flags_all_stages() -> None:
    fields = ["batch_size=24", "data.mlm_probability=0.4"]
    stages = ["--stage", "10", f"{TINY},objective=clm", "--stage", "90", TINY, *fields]
    first, second = parse(*stages, "--config.optimizer.learning_rate=1e-2", f"--config.{POSITIONS}")
    assert first.resolved.batch_size != second.resolved.batch_size == 24
    assert second.resolved.data["mlm_probability"] in (0.4, "0.4")
    assert first.resolved.optimizer.learning_rate == second.resolved.optimizer.learning_rate == 1e-2


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        *(([p, TINY], f"--stage {p}.*not of the form 80") for p in ("x", "nan", "1e2", "")),
        (["100"], "--stage 100: not of the form 80"),
        (["50", TINY, POSITIONS], "do not add up to 100 percent"),
        (["100", TINY, "batch_size"], "batch_size: not of the form FIELD=VALUE"),
        (["100", TINY, "steps=9"], "steps=9: the rules exclude it"),
        (["100", TINY, "data_seed=9"], "data_seed=9: the rules exclude it"),
        (["100", TINY, "best_metric=loss"], "best_metric=loss: the rules exclude it"),
        (["100", TINY, "distill.teacher=x"], "distill.teacher=x: the rules exclude it"),
        (["100", f"{TINY},objective=clm", POSITIONS], "does not fit it"),
        (["100", TINY, "model.max_position_embeddings=64", "max_seq_length=64"], "128"),
        (["100", "glue:task=mrpc,data=x"], "(?i)pretraining|data.dir"),
        (["100", TINY, "data.mlm_probability=0.4..0.2", POSITIONS], "is a time"),
    ],
)
def test_invalid_stages_are_rejected_before_any_of_them_runs(stages, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse("--stage", *stages)


def test_time_of_a_slice_is_estimated(tmp_path, monkeypatch) -> None:
    def preflight(subcommand: str, *words: str) -> None:
        assert subcommand == "preflight" and "v5e:2x2" in words
        report: dict[str, Any] = {"train": {"estimated_step_seconds": 0.25}}
        pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps(report))

    monkeypatch.setattr(speedrun, "run_bertjax", preflight)
    (stage,) = parse("--stage", "100", TINY, POSITIONS)
    assert speedrun.estimated_steps(tmp_path / "stage-0", stage, 2.0, "v5e:2x2") == 480


def test_other_machines_make_no_record(monkeypatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    assert "64 cores, not 2" in machine.reject_machine("cpu")
    assert not machine.reject_machine("gpu")
    assert machine.is_one_gpu("1 NVIDIA H200")
    assert not any(map(machine.is_one_gpu, ("2 cpu", "1 cpu", "8 NVIDIA H200")))


def test_record_describes_the_start_of_a_run(tmp_path, monkeypatch) -> None:
    described = {"processor": "A", "commit": "a"}
    monkeypatch.setattr(machine, "describe_machine", lambda: described)
    start, changed = machine.read_start(tmp_path / "run")
    assert start == {"date": start["date"], "processor": "A", "commit": "a"} and not changed
    described["commit"] = "b"
    assert machine.read_start(tmp_path / "run") == (start, ["commit"])


def test_training_options_do_not_change_the_eval_split(tmp_path, monkeypatch) -> None:
    commands = []
    monkeypatch.setattr(eval_split, "run_bertjax", lambda *words: commands.append(words))
    (tmp_path / "scores.json").write_text('{"mlm_loss": 1.0}')
    assert eval_split.evaluate(tmp_path / "stage-1", tmp_path, tmp_path / "corpus") == {
        "mlm_loss": 1.0
    }
    flags = [word.partition("=") for word in commands[0] if word.startswith("--config.")]
    rules = {flag.removeprefix("--config."): value for flag, _, value in flags}
    assert rules.pop("data.dir") == str(tmp_path / "corpus")
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
        size, length = eval_split.EVAL_BATCH_SIZE, eval_split.MAX_SEQ_LENGTH
        assert options == PretrainingOptions(length, size, objective="mlm")
