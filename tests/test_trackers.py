"""Tests of trackers: Weights & Biases, and a user's function."""

import sys
import types

import pytest

from bertjax.config.config import Config
from bertjax.training.trackers import Tracker, make_tracker
from data_pipelines.errors import InputError

LINES = [
    {"step": 1, "split": "train", "loss": 2.5, "mfu": None},
    {"step": 2, "split": "eval", "mlm_loss": 2.0},
]
MODULE = """
lines = []

def open_tracker(config, workdir):
    lines.append((config.seed, workdir))
    return lines.append
"""


def log(tracker: Tracker) -> None:
    for line in LINES:
        metrics = {name: value for name, value in line.items() if name not in ("step", "split")}
        tracker.log(line["step"], line["split"], metrics)
    tracker.close()


@pytest.fixture
def user_module(tmp_path, monkeypatch) -> str:
    """The name of a module in the current directory."""
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_metrics"
    sys.modules.pop("my_metrics", None)


def test_user_function_takes_every_line(user_module: str) -> None:
    tracker = make_tracker(f"{user_module}:open_tracker", Config(seed=7), "runs/x")
    module = sys.modules[user_module]
    assert module.lines == []  # opened with the first line
    log(tracker)
    assert module.lines == [(7, "runs/x"), *LINES]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_metrics", "my_metrics: unknown tracker. Use wandb or MODULE:FUNCTION"),
        ("my_metrics:none", "my_metrics has no function none"),
        ("my_metrics:lines", "my_metrics has no function lines"),
        ("no_such.module:f", "there is no module no_such.module"),
        (".module:f", "not a function. Write MODULE:FUNCTION"),
        ("no_such_module:f", "there is no module no_such_module"),
    ],
)
def test_unknown_tracker_is_rejected(user_module: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_tracker(name, Config(), "runs/x")


class Wandb(types.ModuleType):
    """The used part of the wandb package."""

    def __init__(self, has_key: bool = True) -> None:
        super().__init__("wandb")
        self.has_key = has_key
        self.opened: list[dict] = []
        self.logged: list[tuple] = []
        self.finished = 0

    def login(self, prompt: bool) -> bool:
        assert not prompt  # nobody is there to answer
        return self.has_key

    def init(self, **fields: object) -> "Wandb":
        self.opened.append(fields)
        return self

    def log(self, values: dict, step: int) -> None:
        self.logged.append((values, step))

    def finish(self) -> None:
        self.finished += 1


def test_wandb_run_is_that_of_the_workdir(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    for name in ("x", "x", "other"):  # the second resumes the first
        (tmp_path / name).mkdir(exist_ok=True)
        log(make_tracker("wandb", Config(seed=7), tmp_path / name))
    assert wandb.logged == [({"train/loss": 2.5}, 1), ({"eval/mlm_loss": 2.0}, 2)] * 3
    assert wandb.finished == 3
    first, again, other = wandb.opened
    assert first == again and first["resume"] == "allow" and first["name"] == "x"
    assert other["id"] != first["id"]
    assert first["config"]["seed"] == 7


def test_wandb_needs_a_key(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Wandb(has_key=False))
    with pytest.raises(InputError, match=r"no API key\. Run `wandb login`"):
        make_tracker("wandb", Config(), tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    make_tracker("wandb", Config(), tmp_path)


def test_missing_wandb_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(InputError, match=r"bertjax\[wandb\]"):
        make_tracker("wandb", Config(), "runs/x")
