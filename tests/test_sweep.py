"""Tests of sweeps: parallel runs equal single runs, and a sweep survives kills."""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping

import jax
import numpy as np
import pytest
import toy_tasks
from conftest import in_test_all
from etils import epath
from hypothesis import given
from hypothesis import strategies as st
from killable_commands import kill_sweep
from random_models import draw_model
from run_outputs import answers_of, metrics

from bertjax.checkpointing.retention import BestMetric
from bertjax.cli.sweep import format_results
from bertjax.config.config import Config
from bertjax.errors import CommandError
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from bertjax.reports.sweep import render_sweep
from bertjax.reports.writer import write_report
from bertjax.steps.parallel_runs import ParallelStepFunctions, round_up_runs
from bertjax.sweeps.grid import Trial, group_by_shape, make_trials
from bertjax.sweeps.parallel_training import ParallelRuns
from bertjax.sweeps.summary import comparable, summarize
from bertjax.sweeps.sweep import sweep
from bertjax.training.evaluator import evaluate
from bertjax.training.setup import make_trainer
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError

RATES = ("1e-3", "4e-3", "8e-3", "1e-30")  # the last learns nothing
GRID = [f"optimizer.learning_rate={','.join(RATES)}"]
QUICK: dict[str, object] = {"steps": 16, "log_every": 4, "eval_every": 8, "checkpoint_every": 4}
QUICK |= {
    "optimizer.warmup": 2,
    "model.initializer_range": 0.02,  # a run that learns nothing predicts one label
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
}


def trials_of(toys: pathlib.Path, grid: list[str], seeds: int, **fields: object) -> list[Trial]:
    def load(point: Mapping[str, str]) -> Config:
        return toy_tasks.configuration("single_label", toys, **{**QUICK, **fields, **point})

    return make_trials(load, grid, seeds)


def base_config(toys: pathlib.Path) -> Config:
    return toy_tasks.configuration("single_label", toys, **QUICK)


def test_make_trials_combines_all_values_with_all_seeds(toys) -> None:
    grid = ["optimizer.learning_rate=1e-3,2e-3", "batch_size=8,16"]
    trials = trials_of(toys, grid, 3, seed=5)
    assert [trial.name for trial in trials[:4]] == [
        "learning_rate=1e-3,batch_size=8,seed=5",
        "learning_rate=1e-3,batch_size=8,seed=6",
        "learning_rate=1e-3,batch_size=8,seed=7",
        "learning_rate=1e-3,batch_size=16,seed=5",
    ]
    assert len({trial.name for trial in trials}) == 12
    assert trials[3].label == "learning_rate=1e-3 batch_size=16"
    assert (trials[3].config.batch_size, trials[3].config.seed) == (16, 5)


def test_group_by_shape_separates_shapes_but_not_rates_and_seeds(toys) -> None:
    trials = trials_of(toys, ["optimizer.learning_rate=1e-3,2e-3", "batch_size=8,16"], 2)
    assert [len(group) for group in group_by_shape(trials).values()] == [4, 4]
    for group in group_by_shape(trials).values():
        assert len({trial.config.batch_size for trial in group}) == 1


@pytest.mark.parametrize(
    ("grid", "seeds", "message"),
    [
        (["batch_size"], 1, "--grid=batch_size: must be FIELD=VALUE"),
        (["batch_size="], 1, "--grid=batch_size=: must be FIELD=VALUE"),
        (["batch_size=8", "batch_size=16"], 1, "each field once"),
        (["seed=1,2"], 1, "seeds from --seeds"),
        (["task=squad"], 1, "a sweep has one task"),
        (["init=a,b"], 1, "--grid=init=a,b: a sweep has one such model. Run one sweep each"),
        (["data.class_weights=pos=2,neg=1"], 1, "commas are part of its values"),
        (["batch_size=8,"], 1, "batch_size=''"),
        (["mesh.fsdp=1,2"], 1, "--grid=mesh.fsdp=1,2: each run of a sweep has one device"),
        (["bach_size=8"], 1, "Did you mean batch_size"),
        (["batch_size=x"], 1, "batch_size='x'"),
        ([], 0, "--seeds=0: must be at least 1"),
    ],
)
def test_make_trials_rejects_an_invalid_grid(toys, grid, seeds, message) -> None:
    with pytest.raises(InputError, match=message):
        trials_of(toys, grid, seeds)


@given(st.integers(1, 99), st.integers(1, 99))
def test_round_up_runs_fills_every_device(runs: int, devices: int) -> None:
    rounded = round_up_runs(runs, devices)
    assert rounded % devices == 0 and 0 <= rounded - runs < devices


def test_summarize_counts_failed_runs_and_leaves_them_out_of_means(toys) -> None:
    trials = trials_of(toys, [], 4)
    scores = (0.5, 0.9, 0.7, 0.2)
    results = {
        trial.name: {"scores": {"accuracy": score}, "failed": score < 0.3}
        for trial, score in zip(trials, scores, strict=True)
    }
    result = summarize(trials, results, BestMetric("accuracy"))
    (point,) = result["points"]
    assert (result["primary_metric"], point["label"]) == ("accuracy", "as configured")
    assert (point["num_runs"], point["num_failed"]) == (4, 1)
    assert (point["min"], point["max"]) == (0.5, 0.9)
    assert point["mean"] == pytest.approx(0.7) and point["std"] == pytest.approx(0.2)
    assert result["best"] == "seed=1"
    assert summarize(trials, results, BestMetric("accuracy", False))["best"] == "seed=0"
    results["seed=1"]["failed"] = True  # such as one that predicts the same class for all
    assert summarize(trials, results, BestMetric("accuracy"))["best"] == "seed=2"
    results["seed=1"]["failed"] = False
    cells = format_results(result).splitlines()[1].split()
    assert cells[-6:] == ["4", "1", "0.7000", "0.2000", "0.5000", "0.9000"]


def test_summarize_and_the_report_distinguish_pruned_runs(toys) -> None:
    trials = trials_of(toys, [], 3)
    scores = {"accuracy": 0.5, "loss": 1.0, "mlm_loss": 1.0000001}
    results: dict[str, dict] = {
        trial.name: {"scores": scores | {"accuracy": score}, "failed": False}
        for trial, score in zip(trials, (0.5, 0.9, 0.7), strict=True)
    }
    results[trials[1].name] |= {"pruned_at": 100}
    result = summarize(trials, results, BestMetric("accuracy"))
    (point,) = result["points"]
    assert (point["num_failed"], point["num_pruned"], point["mean"]) == (0, 1, 0.6)
    assert result["best"] == trials[2].name
    assert format_results(result).splitlines()[1].split()[-7:-4] == ["3", "0", "1"]
    page = render_sweep("grid", result)
    assert "pruned at 100" in page and "mlm loss" not in page


def test_run_is_compared_by_a_finite_score_whatever_its_other_scores_are(toys) -> None:
    trials = trials_of(toys, [], 3)
    all_scores: list[dict] = [
        {"accuracy": 0.5, "user": None},
        {"accuracy": None, "loss": 800.0},
        {"accuracy": 0.9, "loss": None},
    ]
    results = {
        trial.name: {"scores": scores, "failed": comparable(BestMetric("accuracy"), scores) < 0}
        for trial, scores in zip(trials, all_scores, strict=True)
    }
    assert [run["failed"] for run in results.values()] == [False, True, True]
    result = summarize(trials, results, BestMetric("accuracy"))
    assert result["best"] == trials[0].name and result["points"][0]["mean"] == 0.5


def test_evaluation_before_the_first_step_decides_nothing(tmp_path) -> None:
    runs = ParallelRuns.__new__(ParallelRuns)
    runs._names, runs._workdir, runs._start = ["a"], epath.Path(tmp_path), 0
    runs._scores = {0: {"a": {"accuracy": math.nan}}, 2: {"a": {"accuracy": 0.5}}}
    assert runs.scores(2) == {"a": {2: {"accuracy": 0.5}}}


def test_summarize_has_no_mean_for_a_point_of_failed_runs(toys) -> None:
    trials = trials_of(toys, ["batch_size=8,16"], 1)
    results = {
        trial.name: {"scores": {"accuracy": score}, "failed": score is None}
        for trial, score in zip(trials, (None, 0.5), strict=True)
    }
    result = summarize(trials, results, BestMetric("accuracy"))
    assert result["points"][0]["mean"] is None and result["best"] == trials[1].name
    assert format_results(result).splitlines()[1].split()[-4:] == ["-"] * 4


def test_summarize_rejects_a_sweep_of_diverged_runs(toys) -> None:
    trials = trials_of(toys, [], 2)
    results = {trial.name: {"scores": {"accuracy": None}, "failed": True} for trial in trials}
    with pytest.raises(CommandError, match="no run has a finite accuracy"):
        summarize(trials, results, BestMetric("accuracy"))


@pytest.mark.slow
def test_diverged_run_stops_no_other(toys, tmp_path) -> None:
    trials = trials_of(toys, ["optimizer.learning_rate=1e38,8e-3"], 1)
    result = sweep(trials, base_config(toys), tmp_path / "grid")
    assert [run["failed"] for run in result["runs"]] == [True, False]
    assert result["runs"][0]["scores"]["loss"] is None
    assert json.loads((tmp_path / "grid" / "sweep.json").read_text()) == result
    assert result["best"] == trials[1].name
    assert write_report(tmp_path / "grid").exists()


@pytest.fixture(scope="module")
def swept(toys, tmp_path_factory):
    """Return a sweep of 16 runs on eight devices, its result, and its compiled train steps."""
    workdir = tmp_path_factory.mktemp("sweep") / "grid"
    trials = trials_of(toys, GRID, 4)
    compiled = []
    compile_train_step = ParallelStepFunctions._compile_train_step

    def counted(self: ParallelStepFunctions) -> jax.stages.Compiled:
        compiled.append(compile_train_step(self))
        return compiled[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelStepFunctions, "_compile_train_step", counted)
        result = sweep(trials, base_config(toys), workdir)
    return workdir, result, compiled


@pytest.mark.slow
def test_shape_is_compiled_once_without_collectives(swept) -> None:
    _, _, compiled = swept
    assert len(compiled) == 1
    text = compiled[0].as_text()
    assert not [name for name in ("all-reduce", "all-gather", "collective-permute") if name in text]


@pytest.mark.slow
@pytest.mark.parametrize("number", [11, *in_test_all(0, 6)])
def test_parallel_run_equals_the_run_alone(swept, toys, tmp_path, number: int) -> None:
    workdir, result, _ = swept
    run = result["runs"][number]
    rate = dict([run["point"].split("=")])["learning_rate"]
    fields = {**QUICK, "optimizer.learning_rate": rate, "seed": run["seed"]}
    make_trainer(
        toy_tasks.configuration("single_label", toys, **fields), tmp_path / "alone"
    ).train()
    lines = [
        line for path in sorted((workdir / "parallel_runs").iterdir()) for line in metrics(path)
    ]
    for split in ("train", "eval"):
        alone = [line["loss"] for line in metrics(tmp_path / "alone") if line["split"] == split]
        in_sweep = [line["loss"] for line in lines if line["split"] == f"{run['name']}/{split}"]
        np.testing.assert_allclose(in_sweep, alone, rtol=1e-5)


@pytest.mark.slow
def test_metrics_have_the_learning_rate_of_each_run(swept) -> None:
    workdir, result, _ = swept
    directories = sorted((workdir / "parallel_runs").iterdir())
    lines = {line["split"]: line for path in directories for line in metrics(path)}
    assert "learning_rate" not in lines["train"]
    for run in result["runs"]:
        rate = float(run["point"].split("=")[1])
        logged = lines[f"{run['name']}/train"]["learning_rate"]
        assert logged == pytest.approx(rate / 14)  # the last of 14 steps that decay
    configs = [json.loads((path / "config.json").read_text()) for path in directories]
    assert {config["optimizer"]["learning_rate"] for config in configs} == {1e-3, 8e-3}


@pytest.mark.slow
def test_run_that_learns_nothing_has_failed(swept) -> None:
    _, result, _ = swept
    failed = {point["label"]: point["num_failed"] for point in result["points"]}
    assert failed["learning_rate=1e-30"] == 4 and failed["learning_rate=8e-3"] == 0


@pytest.mark.slow
def test_best_run_is_a_checkpoint_that_opens_by_itself(swept, toys) -> None:
    workdir, result, _ = swept
    best = next(run for run in result["runs"] if run["name"] == result["best"])
    assert best["scores"]["accuracy"] == max(run["scores"]["accuracy"] for run in result["runs"])
    (answer,) = answers_of(workdir / "best", [toy_tasks.GLAD * 3])
    assert answer["label"] in toy_tasks.NAMES.values()
    config = toy_tasks.configuration("single_label", toys, init=workdir / "best")
    scores = evaluate(config, workdir / "best").scores
    assert scores["accuracy"] == pytest.approx(best["scores"]["accuracy"])
    assert scores["loss"] == pytest.approx(best["scores"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_sweep_report_has_a_dot_for_each_run(swept) -> None:
    workdir, result, _ = swept
    text = write_report(workdir).read_text()
    assert text.count("<use ") == len(result["runs"]) == 16
    assert result["best"] in text


@pytest.mark.seconds
def test_sweep_report_shows_the_first_points_of_a_large_grid() -> None:
    names = [f"p{i}" for i in range(70)]
    run = {"failed": False, "scores": {"loss": 1.0}}
    point = {"num_runs": 1, "num_failed": 0, "num_pruned": 0}
    point |= {"mean": 1.0, "std": None, "min": 1.0, "max": 1.0}
    text = render_sweep(
        "sweep",
        {
            "primary_metric": "loss",
            "best": "p3",
            "runs": [run | {"name": name, "point": name} for name in names],
            "points": [point | {"label": name} for name in names],
        },
    )
    assert text.count("<use ") == 64 and "first 64 of 70 points" in text
    assert all(f"<td>{name}</td>" in text for name in names)


@pytest.mark.slow
def test_sweep_resumes_and_rejects_another_grid(swept, toys) -> None:
    workdir, result, _ = swept
    trials = trials_of(toys, GRID, 4)
    assert sweep(trials, base_config(toys), workdir) == result
    with pytest.raises(InputError, match="holds a sweep of other runs, 'learning_rate=1e-30,seed"):
        sweep(trials[:-1], base_config(toys), workdir)
    other = trials_of(toys, GRID, 4, steps=17)
    with pytest.raises(
        InputError, match=r"steps=17: .* run 'learning_rate=1e-3,seed=0' has steps=16"
    ):
        sweep(other, base_config(toys), workdir)


@pytest.mark.slow
def test_sweep_rejects_other_data(swept, toys, tmp_path) -> None:
    workdir, _, _ = swept
    toy_tasks.write_data(tmp_path / "other")
    train = tmp_path / "other" / "train.csv"
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    trials = trials_of(toys, GRID, 4, **{"data.dir": str(tmp_path / "other")})
    with pytest.raises(InputError, match="holds a sweep on other data"):
        sweep(trials, base_config(toys), workdir)


@pytest.mark.minutes
def test_sweep_accepts_more_runs_and_more_in_parallel(toys, tmp_path) -> None:
    """Results of finished runs stay, and directories of unfinished ones go."""
    fields = {"steps": 4, "log_every": 2, "eval_every": 4}
    trials = trials_of(toys, ["optimizer.learning_rate=1e-3,4e-3"], 6, **fields)
    few = [trial for trial in trials if trial.config.seed == 0]
    before = sweep(few, base_config(toys), tmp_path / "grid")
    (tmp_path / "grid" / "parallel_runs" / "00002-abandoned").mkdir()
    result = sweep(trials, base_config(toys), tmp_path / "grid", 2)
    assert len(result["runs"]) == 12 and all(run in result["runs"] for run in before["runs"])
    assert len([*(tmp_path / "grid" / "parallel_runs").iterdir()]) == 2


@pytest.mark.slow
def test_all_runs_have_the_same_initial_model(toys, tmp_path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    config = BertConfig(128, 1, 64, 4, max_position_embeddings=64)
    model = draw_model(config, toy_tasks.TOKENIZER, "pooler")
    huggingface.write(model, epath.Path(published))

    def trials(seeds: int) -> list[Trial]:
        fields = {"steps": 2, "log_every": 2, "eval_every": 2, "optimizer__warmup": 1}
        load = functools.partial(toy_tasks.configuration, "single_label", toys, published, **fields)
        return make_trials(lambda point: load(**point), [], seeds)

    plain = trials(1)[0].config
    sweep(trials(1), plain, tmp_path / "grid")
    other = jax.tree.map(lambda array: array + 1, model.params)
    huggingface.write(dataclasses.replace(model, params=other), epath.Path(published))
    with pytest.raises(InputError, match=f"not the model that the run in {tmp_path}/grid began"):
        sweep(trials(2), plain, tmp_path / "grid")


@pytest.mark.slow
def test_rejected_sweep_may_be_fixed(toys, tmp_path) -> None:
    fields = {"steps": 4, "log_every": 2, "eval_every": 4}
    for wrong in ({"optimizer.warmup": 20}, {"best_metric": "f2"}):
        with pytest.raises(InputError):
            sweep(trials_of(toys, [], 2, **fields | wrong), base_config(toys), tmp_path / "grid")
    result = sweep(trials_of(toys, [], 2, **fields), base_config(toys), tmp_path / "grid")
    assert len(result["runs"]) == 2


def test_second_sweep_in_a_workdir_is_rejected(toys, tmp_path) -> None:
    with WorkdirLock(epath.Path(tmp_path)), pytest.raises(InputError, match="in use by process"):
        sweep(trials_of(toys, [], 2), base_config(toys), tmp_path)


def test_sweep_rejects_a_time_budget(toys, tmp_path) -> None:
    with pytest.raises(InputError, match="steps='2 hours': a sweep has no time budget"):
        sweep(trials_of(toys, [], 2, steps="2 hours"), base_config(toys), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.minutes
def test_sweep_that_is_killed_twice_has_the_same_result(toys, tmp_path) -> None:
    fields = {**QUICK, "steps": 8, "log_every": 2, "eval_every": 8, "checkpoint_every": 2}
    command = ["sweep", *toy_tasks.arguments("single_label", toys, **fields)]
    command += ["--grid", f"optimizer.learning_rate={','.join(RATES[:3])}", "--seeds", "4"]
    killed, undisturbed = kill_sweep(command, tmp_path, ("step 4/8", "8 of 12 runs done"))
    assert killed == undisturbed and killed[0].startswith("accuracy")


def test_make_trials_rejects_too_many_runs_before_it_loads_one() -> None:
    with pytest.raises(InputError, match="20,000,000 runs"):
        make_trials(lambda fields: pytest.fail("loaded"), ["seed_of=1,2"], 10_000_000)
