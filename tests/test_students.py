"""Comparison of students: commands of the stages, scores of failed runs, the table."""

import json
import pathlib
import sys
from collections.abc import Sequence

import pytest

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.tasks import registry
from data_pipelines.errors import InputError
from experiments.students import __main__ as students

CONFIG = "sequence_classification:data=texts,label=label"
SCORES = {"loss": 0.5, "accuracy": 0.5, "majority_accuracy": 0.25}


def make_run(scores: dict[str, float | None], failed: bool = False, seed: int = 0) -> dict:
    return {"seed": seed, "scores": scores, "failed": failed}


@pytest.fixture
def configs(monkeypatch, tmp_path) -> dict[str, list[Config]]:
    """Stub of the commands that writes results; configurations by name of the workdir."""
    trained: dict[str, list[Config]] = {}

    def run_once(record: pathlib.Path, commands: Sequence[Sequence[str]]) -> None:
        for command in commands:
            flags = [word.partition("=") for word in command if word.startswith("--config.")]
            fields = {flag.removeprefix("--config."): value for flag, _, value in flags}
            if command[0] == "evaluate":
                path = pathlib.Path(command[command.index("--output") + 1])
                path.mkdir(parents=True)
                (path / "scores.json").write_text(json.dumps(SCORES | {"accuracy": 0.75}))
                continue
            workdir = pathlib.Path(command[command.index("--workdir") + 1])
            config = load_config(CONFIG, fields, registry.data_fields())
            trained.setdefault(workdir.name, []).append(config)
            (workdir / "best").mkdir(parents=True)
            run_record = {"step": int(config.steps), "data_fingerprint": "a"}
            (workdir / "best" / "run.json").write_text(json.dumps(run_record))
            metrics = {"step": int(config.steps), "split": "train"}
            (workdir / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
            (workdir / "sweep.json").write_text(json.dumps({"runs": [make_run(SCORES)]}))

    def measure(name, scores, num_failed, steps, path) -> students.Row:
        return students.Row(name, scores, num_failed, steps, 1000, 1.0, 2.0)

    monkeypatch.setattr(students, "run_once", run_once)
    monkeypatch.setattr(students, "measure", measure)
    return trained


def compare(monkeypatch, output: pathlib.Path, *options: str) -> str:
    arguments = ["--output", str(output), "--config", CONFIG, "--teacher", "teacher", "--init", "a"]
    monkeypatch.setattr(sys, "argv", ["students", *arguments, *options])
    students.main()
    return (output / "students.md").read_text()


def test_options_of_hidden_states_are_those_of_their_stage(configs, monkeypatch, tmp_path) -> None:
    options = ["layer_map=0:0,1:2", "hidden_loss=cosine", "teacher_dtype=bfloat16"]
    options += ["logits=teacher.logits", "temperature=2"]
    flags = [word for option in options for word in ("--distill", option)]
    table = compare(monkeypatch, tmp_path / "out", "--two-stage", "--set", "steps=7", *flags)
    (hidden,) = configs["hidden-0"]
    distill = hidden.distill
    assert (distill.layer_map, distill.hidden_loss) == ("0:0,1:2", "cosine")
    assert distill.teacher_dtype == "bfloat16" and not distill.logits
    assert distill.hidden_weight == 1 and not distill.reads_logits
    for name in ("with", "predictions-0"):
        (config,) = configs[name]
        assert config.distill.logits == "teacher.logits" and config.distill.temperature == 2
        assert config.distill.layer_map == "" and config.distill.hidden_loss == "mse"
        assert config.distill.teacher_dtype == "float32"
    steps = [line.split("|")[-5].strip() for line in table.splitlines()[2:6]]
    assert steps == ["", "7", "7", "14"]


def test_options_of_hidden_states_remain_where_their_weight_is_set() -> None:
    teaching = {"distill.hidden_weight": 1, "distill.layer_map": "0:0"}
    first, second = students.split_stages(teaching)
    assert second == teaching
    assert first["distill.layer_map"] == "0:0" and first["distill.logits_weight"] == 0


@pytest.mark.parametrize("steps", ["", "3 epochs", "10%", "2 hours"])
def test_unlabeled_texts_need_a_number_of_steps(configs, monkeypatch, tmp_path, steps) -> None:
    options = ["--distill", "unlabeled=u.csv", *(["--set", f"steps={steps}"] if steps else [])]
    with pytest.raises(InputError, match=r"--distill unlabeled=u\.csv: .* --set steps=6000"):
        compare(monkeypatch, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("steps", ["7", "7 steps"])
def test_unlabeled_texts_leave_the_number_of_steps_equal(steps) -> None:
    students.check_steps({"steps": steps}, {"unlabeled": "u.csv"})
    students.check_steps({}, {"temperature": "2"})


@pytest.mark.parametrize("flag", ["--set", "--distill"])
@pytest.mark.parametrize("item", ["steps", "=3", ""])
def test_fields_without_a_value_are_rejected(configs, monkeypatch, tmp_path, flag, item) -> None:
    with pytest.raises(InputError, match=f"{flag} {item}: not of the form FIELD=VALUE"):
        compare(monkeypatch, tmp_path / "out", flag, item)


def test_scores_leave_out_failed_runs_and_count_them() -> None:
    runs = [
        make_run({"loss": 1.0, "accuracy": 0.5}),
        make_run({"loss": 1.0, "accuracy": 0.25}, failed=True),
        make_run({"loss": None, "accuracy": 0.0}, failed=True),
        make_run({"loss": 1.0, "accuracy": None}),
    ]
    assert students.collect_scores(runs) == ({"accuracy": [0.5]}, 3)
    assert students.collect_scores(runs[1:]) == ({"accuracy": []}, 3)


def test_scores_of_questions_have_no_counts_and_thresholds() -> None:
    names = ("exact", "f1", "HasAns_f1", "best_f1")
    others = ("loss", "total", "HasAns_total", "best_f1_thresh", "null_score_diff_threshold")
    scores, _ = students.collect_scores([make_run(dict.fromkeys((*names, *others), 1.0))])
    assert scores.keys() == {*names}


def test_recovered_share_of_errors_is_that_of_their_decrease() -> None:
    values = ([0.6], [1.51, 1.51], [1.01, 1.01])
    assert students.recovered("mse", *values) == "55%"
    assert students.recovered("pearson", *values) == "no gap of two standard errors"


def test_recovered_share_is_that_of_each_score() -> None:
    def row(name: str, accuracy: float, f1: float) -> students.Row:
        return students.Row(name, {"accuracy": [accuracy], "f1": [f1]}, 0, 9, 2_000_000, 1.0, 2.0)

    table = students.format_table([row("teacher", 1, 1), row("no", 0, 0.5), row("with", 0.25, 1)])
    assert table.splitlines()[-1] == "| recovered, with | 25% | 100% |  |  |  |  |  |"


def test_table_shows_the_number_of_failed_runs() -> None:
    def row(name: str, scores: list[float], num_failed: int, steps: int | None) -> students.Row:
        return students.Row(name, {"accuracy": scores}, num_failed, steps, 2_000_000, 1.0, 2.0)

    rows = [row("teacher", [0.75], 0, None), row("without", [0.25, 0.25], 1, 6000)]
    table = students.format_table([*rows, row("with", [0.5], 2, 6000), row("no", [], 3, 12000)])
    assert table.splitlines() == [
        "|  | accuracy | failed | steps | parameters | ms a text | texts/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| teacher | 0.7500 | 0 |  | 2.0M | 1.0 | 2 |",
        "| without | 0.2500 ± 0.0000 | 1 | 6,000 | 2.0M | 1.0 | 2 |",
        "| with | 0.5000 | 2 | 6,000 | 2.0M | 1.0 | 2 |",
        "| no | - | 3 | 12,000 | 2.0M | 1.0 | 2 |",
        "| recovered, with | 50% |  |  |  |  |  |",
        "| recovered, no | - |  |  |  |  |  |",
    ]
