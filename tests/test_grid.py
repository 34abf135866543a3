"""The runs of a grid: distinct configurations that several runs in one program can have."""

import pathlib
from collections.abc import Mapping

import pytest
import toy_tasks

from bertjax.config.config import Config
from bertjax.sweeps.grid import make_trials
from bertjax.sweeps.search import Search
from bertjax.sweeps.sweep import sweep
from data_pipelines.errors import InputError


def load(fields: Mapping[str, str]) -> Config:
    return toy_tasks.configuration("single_label", pathlib.Path("toys"), **fields)


@pytest.mark.parametrize(
    ("grid", "labels"),
    [
        (
            ["optimizer.learning_rate=1e-3,2e-3,0.001"],
            "learning_rate=1e-3 and learning_rate=0.001",
        ),
        (
            ["batch_size=8,16", "optimizer.weight_decay=0,0.0"],
            "batch_size=8 weight_decay=0 and batch_size=8 weight_decay=0.0",
        ),
    ],
)
def test_grid_rejects_two_texts_of_a_configuration(grid: list[str], labels: str) -> None:
    message = f"--grid: {labels} are the same configuration. Leave one out"
    with pytest.raises(InputError, match=message):
        make_trials(load, grid, 2)


def test_search_rejects_two_texts_of_a_choice() -> None:
    pytest.importorskip("optuna")
    grid = ["optimizer.learning_rate=1e-3,2e-3,0.001", "batch_size=8,16"]
    with pytest.raises(InputError, match=r"learning_rate=0\.001 .*are the same configuration"):
        Search(load, "random", [], grid, 4, 1)
    assert Search(load, "random", [], grid[1:], 2, 1).num_runs == 2


def test_points_differ_in_any_field_and_runs_in_their_seeds() -> None:
    trials = make_trials(load, ["optimizer.learning_rate=1e-3,1.1e-3", "batch_size=8,16"], 2)
    assert len({(trial.label, trial.config.seed) for trial in trials}) == 8


def test_an_empty_text_is_a_value() -> None:
    trials = make_trials(load, ["data.text_pair=,other"], 1)
    assert [trial.config.data["text_pair"] for trial in trials] == ["", "other"]


FIELDS = {"best_metric": "loss", "steps": 20, "batch_size": 16}
CASES = [
    ("tensorboard", "parameters", "tensorboard='parameters': a sweep trains several runs in para"),
    ("early_stopping", 2, "early_stopping=2: a sweep trains several runs in one program, which"),
    (
        "batch_size_rampup",
        4,
        "batch_size_rampup=4: a sweep trains several runs in one program, of one batch size",
    ),
]


@pytest.mark.parametrize(("name", "value", "message"), CASES)
def test_sweep_rejects_what_parallel_runs_cannot_have(tmp_path, name, value, message) -> None:
    with pytest.raises(InputError, match=message):
        sweep([], Config(**FIELDS | {name: value}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value", "message"), CASES)
def test_make_trials_rejects_a_value_that_parallel_runs_cannot_have(name, value, message) -> None:
    def load(fields: Mapping[str, str]) -> Config:
        return Config(**FIELDS | {field: type(value)(text) for field, text in fields.items()})

    with pytest.raises(InputError, match=message):
        make_trials(load, [f"{name}={value}"], 1)
