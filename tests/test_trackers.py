"""Tests of trackers: Weights & Biases, MLflow, and a user's function."""

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
        ("my_metrics", "my_metrics: unknown tracker. Use wandb, mlflow or MODULE:FUNCTION"),
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


class Mlflow(types.ModuleType):
    """The used part of the mlflow package and of its client, with the client's checks."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = types.SimpleNamespace(Metric=MlflowEntry, Param=MlflowEntry)
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict] = {}

    def MlflowClient(self) -> "Mlflow":  # noqa: N802 (the package's name)
        return self

    def get_experiment_by_name(self, name: str) -> types.SimpleNamespace | None:
        known = name in self.experiments
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if known else None

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment_id: str, run_name: str) -> types.SimpleNamespace:
        assert experiment_id in self.experiments.values()
        run_id = f"run-{len(self.runs)}"
        self.runs[run_id] = {"name": run_name, "metrics": [], "params": {}, "status": ["RUNNING"]}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"].append(status)

    def set_terminated(self, run_id: str) -> None:
        self.runs[run_id]["status"].append("FINISHED")

    def log_batch(self, run_id: str, metrics: tuple = (), params: tuple = ()) -> None:
        assert len(params) <= 100
        run = self.runs[run_id]
        run["metrics"] += [(entry.key, entry.value, entry.rest[1]) for entry in metrics]
        assert not {entry.key for entry in params} & run["params"].keys()
        run["params"] |= {entry.key: entry.value for entry in params}


class MlflowEntry:
    def __init__(self, key: str, value: object, *rest: int) -> None:
        self.key, self.value, self.rest = key, value, rest


def test_mlflow_run_is_that_of_the_workdir(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := Mlflow())
    for name in ("x", "x", "other"):  # the second resumes the first
        (tmp_path / name).mkdir(exist_ok=True)
        log(make_tracker("mlflow", Config(seed=7), tmp_path / name))
    resumed, other = mlflow.runs.values()
    lines = [("train/loss", 2.5, 1), ("eval/mlm_loss", 2.0, 2)]
    assert resumed["metrics"] == lines * 2 and other["metrics"] == lines
    assert resumed["status"] == ["RUNNING", "FINISHED"] * 2
    assert (resumed["name"], other["name"]) == ("x", "other")
    assert resumed["params"]["seed"] == "7" and "optimizer.b1" in resumed["params"]
    assert [*mlflow.experiments] == ["bertjax"]


def test_real_mlflow_takes_what_is_logged(monkeypatch, tmp_path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'bertjax[mlflow]'")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    log(make_tracker("mlflow", Config(seed=7), tmp_path))
    log(make_tracker("mlflow", Config(seed=7), tmp_path))
    (run,) = mlflow.MlflowClient().search_runs(
        [mlflow.get_experiment_by_name("tests").experiment_id]
    )
    assert run.data.metrics == {"train/loss": 2.5, "eval/mlm_loss": 2.0}
    assert run.data.params["seed"] == "7" and run.info.status == "FINISHED"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_library_names_the_extra(monkeypatch, name: str) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=rf"bertjax\[{name}\]"):
        make_tracker(name, Config(), "runs/x")
