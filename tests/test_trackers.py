"""Tests of trackers: Weights & Biases, MLflow, and a user's function."""

import logging
import sys
import threading
import types
from collections.abc import Callable

import pytest

from bertjax.config.config import Config
from bertjax.training import trackers
from bertjax.training.metrics_file import Metrics
from bertjax.training.trackers import BackgroundTracker, Outcome, Tracker, make_tracker
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


def log(tracker: Tracker, outcome: Outcome = "finished") -> None:
    for line in LINES:
        metrics = {name: value for name, value in line.items() if name not in ("step", "split")}
        tracker.log(line["step"], line["split"], metrics)
    tracker.close(outcome)


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
        self.exit_codes: list[int] = []

    def login(self, prompt: bool) -> bool:
        assert not prompt  # nobody is there to answer
        return self.has_key

    def init(self, **fields: object) -> "Wandb":
        self.opened.append(fields)
        return self

    def log(self, values: dict, step: int) -> None:
        self.logged.append((values, step))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


def test_wandb_run_is_that_of_the_workdir(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    for name in ("x", "x", "other"):  # the second resumes the first
        (tmp_path / name).mkdir(exist_ok=True)
        log(make_tracker("wandb", Config(seed=7), tmp_path / name))
    assert wandb.logged == [({"train/loss": 2.5}, 1), ({"eval/mlm_loss": 2.0}, 2)] * 3
    assert wandb.exit_codes == [0, 0, 0]
    first, again, other = wandb.opened
    assert first == again and first["resume"] == "allow" and first["name"] == "x"
    assert other["id"] != first["id"]
    assert first["config"]["seed"] == 7


def test_wandb_learns_how_a_run_ended(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := Wandb())
    for outcome in ("failed", "killed"):
        log(make_tracker("wandb", Config(), tmp_path), outcome)
    assert wandb.exit_codes == [1, 75]  # 75: the same command resumes the run


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
        self.refuses_params = False

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

    def get_run(self, run_id: str) -> types.SimpleNamespace:
        newest = {key: value for key, value, _ in self.runs[run_id]["metrics"]}
        return types.SimpleNamespace(data=types.SimpleNamespace(metrics=newest))

    def get_metric_history(self, run_id: str, key: str) -> list[types.SimpleNamespace]:
        lines = self.runs[run_id]["metrics"]
        return [types.SimpleNamespace(step=step) for name, _, step in lines if name == key]

    def update_run(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"].append(status)

    def set_terminated(self, run_id: str, status: str) -> None:
        self.runs[run_id]["status"].append(status)

    def log_batch(self, run_id: str, metrics: tuple = (), params: tuple = ()) -> None:
        assert len(params) <= 100
        run = self.runs[run_id]
        run["metrics"] += [(entry.key, entry.value, entry.rest[1]) for entry in metrics]
        assert not {entry.key for entry in params} & run["params"].keys()
        if params and self.refuses_params:
            raise ConnectionError("no parameters today")
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
    assert resumed["metrics"] == lines and other["metrics"] == lines
    assert resumed["status"] == ["RUNNING", "FINISHED"] * 2
    assert (resumed["name"], other["name"]) == ("x", "other")
    assert resumed["params"]["seed"] == "7" and "optimizer.b1" in resumed["params"]
    assert [*mlflow.experiments] == ["bertjax"]


def test_mlflow_run_that_is_resumed_takes_no_line_twice(monkeypatch, tmp_path) -> None:
    """The run of steps 1 to 5 is killed, and resumed from the checkpoint of step 2."""
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := Mlflow())
    for first, last in ((1, 5), (3, 7)):
        tracker = make_tracker("mlflow", Config(), tmp_path)
        for step in range(first, last + 1):
            tracker.log(step, "train", {"mfu": None, "loss": float(step)})
            if step % 2 == 0:
                tracker.log(step, "eval", {"new": 1.0, "f1": 0.5} if first > 1 else {"f1": 0.5})
        tracker.close("killed")
    (run,) = mlflow.runs.values()
    steps = {key: [s for k, _, s in run["metrics"] if k == key] for key, *_ in run["metrics"]}
    assert steps == {"train/loss": [*range(1, 8)], "eval/f1": [2, 4, 6], "eval/new": [6]}


def test_mlflow_learns_how_a_run_ended(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := Mlflow())
    for outcome in ("failed", "killed"):
        log(make_tracker("mlflow", Config(), tmp_path), outcome)
    (run,) = mlflow.runs.values()
    assert run["status"] == ["RUNNING", "FAILED", "RUNNING", "KILLED"]


def test_mlflow_run_that_lost_its_first_lines_is_still_one_run(
    monkeypatch, tmp_path, caplog
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := Mlflow())
    mlflow.refuses_params = True
    with caplog.at_level(logging.WARNING, "bertjax"):
        log(make_tracker("mlflow", Config(), tmp_path))
    (run,) = mlflow.runs.values()
    assert run["metrics"] == [("eval/mlm_loss", 2.0, 2)]
    assert "--report-to=mlflow: the metrics of step 1 were lost, the run continues" in caplog.text
    assert "ConnectionError: no parameters today" in caplog.text
    assert "lost 1 of 2 lines of metrics; metrics.jsonl has them all" in caplog.text


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


class Recorder:
    """A tracker that calls a function before it records a line."""

    def __init__(self, before: Callable[[int], object]) -> None:
        self.before, self.steps, self.outcomes = before, [], []

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        self.before(step)
        self.steps.append(step)

    def close(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def test_failures_of_a_tracker_are_warnings_and_counted(caplog) -> None:
    recorder = Recorder(lambda step: 1 // (step % 5))  # every fifth line fails
    tracker = BackgroundTracker("mine", recorder)
    with caplog.at_level(logging.WARNING, "bertjax"):
        for step in range(1, 601):
            tracker.log(step, "train", {})
        tracker.close("failed")
    assert recorder.steps == [step for step in range(1, 601) if step % 5]
    assert recorder.outcomes == ["failed"]
    assert [message.split(" (")[0] for message in caplog.messages] == [
        "mine: the metrics of step 5 were lost, the run continues",
        "mine: the metrics of step 505 were lost, the run continues",  # the 101st
        "mine: lost 120 of 600 lines of metrics; metrics.jsonl has them all.",
    ]
    assert "(ZeroDivisionError: integer division" in caplog.text
    assert "test_trackers.py:" in caplog.text


def test_run_does_not_wait_for_a_slow_tracker(monkeypatch, caplog) -> None:
    monkeypatch.setattr(trackers, "_MAX_QUEUED", 2)
    called, released = threading.Event(), threading.Event()
    recorder = Recorder(lambda step: (called.set(), released.wait()))
    tracker = BackgroundTracker("mine", recorder)
    with caplog.at_level(logging.WARNING, "bertjax"):
        tracker.log(1, "train", {})
        called.wait()
        for step in range(2, 10):
            tracker.log(step, "train", {})
        released.set()
        tracker.close("finished")
    assert recorder.steps == [1, 2, 3] and recorder.outcomes == ["finished"]
    assert caplog.messages == [
        "mine: the metrics of step 4 were lost, the run continues (2 lines are waiting).",
        "mine: lost 6 of 9 lines of metrics; metrics.jsonl has them all.",
    ]


def test_run_ends_although_its_tracker_hangs(monkeypatch, caplog) -> None:
    monkeypatch.setattr(trackers, "_CLOSE_SECONDS", 0.05)
    released = threading.Event()
    tracker = BackgroundTracker("mine", Recorder(lambda step: released.wait()))
    with caplog.at_level(logging.WARNING, "bertjax"):
        log(tracker)
    released.set()
    assert caplog.messages == [
        "mine: does not answer; given up after 0.05 s.",
        "mine: lost 2 of 2 lines of metrics; metrics.jsonl has them all.",
    ]


def test_run_that_logged_nothing_has_no_tracker(monkeypatch) -> None:
    recorder = Recorder(pytest.fail)
    BackgroundTracker("mine", recorder).close("failed")
    assert recorder.outcomes == []


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_library_names_the_extra(monkeypatch, name: str) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InputError, match=rf"bertjax\[{name}\]"):
        make_tracker(name, Config(), "runs/x")
