"""Metrics are told to others too: to Weights & Biases, or to a function of the user's."""

import sys
import types

import pytest

from bertjax.config.config import Config
from bertjax.training.trackers import make_tracker
from data_pipelines.errors import InputError

LINES = [
    {"step": 1, "split": "train", "loss": 2.5, "mfu": None},
    {"step": 2, "split": "eval", "mlm_loss": 2.0},
]
OWN = """
told = []

def open_own(config, workdir):
    told.append((config.seed, workdir))
    return told.append
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> str:
    """The name of a module that lies in the directory of the command."""
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_metrics"
    sys.modules.pop("own_metrics", None)


def test_a_function_of_ones_own_is_given_every_line(own: str) -> None:
    tell = make_tracker(f"{own}:open_own", Config(seed=7), "runs/x")
    module = sys.modules[own]
    assert module.told == []  # nothing is opened before there is something to tell
    for line in LINES:
        tell(line)
    assert module.told == [(7, "runs/x"), *LINES]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("own_metrics", "must be wandb, or MODULE:FUNCTION"),
        ("own_metrics:none", "own_metrics has no function none"),
        ("own_metrics:told", "own_metrics has no function told"),
        ("no_such.module:f", "there is no module no_such.module here"),
        (".module:f", "must be wandb, or MODULE:FUNCTION"),
        ("no_such_module:f", "there is no module no_such_module here"),
    ],
)
def test_what_cannot_be_told_is_refused_at_once(own: str, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_tracker(name, Config(), "runs/x")


class Wandb(types.ModuleType):
    """As much of Weights & Biases as is called."""

    def __init__(self, key: bool = True) -> None:
        super().__init__("wandb")
        self.key = key
        self.begun: list[dict] = []
        self.logged: list[tuple] = []

    def login(self, prompt: bool) -> bool:
        assert not prompt  # nobody is there to answer
        return self.key

    def init(self, **fields: object) -> "Wandb":
        self.begun.append(fields)
        return self

    def log(self, values: dict, step: int) -> None:
        self.logged.append((values, step))


def test_weights_and_biases_get_a_run_of_the_workdir(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    for name in ("x", "x", "other"):  # the second goes on with the first
        (tmp_path / name).mkdir(exist_ok=True)
        tell = make_tracker("wandb", Config(seed=7), tmp_path / name)
        for line in LINES:
            tell(line)
    assert wandb.logged == [({"train/loss": 2.5}, 1), ({"heldout/mlm_loss": 2.0}, 2)] * 3
    first, again, other = wandb.begun
    assert first == again and first["resume"] == "allow" and first["name"] == "x"
    assert other["id"] != first["id"]
    assert first["config"]["seed"] == 7


def test_without_a_key_a_run_does_not_begin(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Wandb(key=False))
    with pytest.raises(InputError, match="has no key here: run `wandb login`"):
        make_tracker("wandb", Config(), tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    make_tracker("wandb", Config(), tmp_path)


def test_where_it_is_not_installed_what_brings_it_is_said(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(InputError, match=r"bertjax\[wandb\]"):
        make_tracker("wandb", Config(), "runs/x")
