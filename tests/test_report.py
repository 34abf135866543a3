"""The report of a run is one page without other files."""

import functools
import json
import math
import pathlib
from html.parser import HTMLParser
from typing import Any

import pytest

from bertjax.config.loading import parse_config
from bertjax.reports.run import FACTS, render_run
from bertjax.reports.writer import write_report
from bertjax.tasks import registry
from bertjax.training.metrics_file import MetricsFile, metrics_path
from bertjax.workdir.workdir import PARALLEL_RUNS_DIR

CONFIG = {
    "steps": 40,
    "batch_size": 64,
    "max_seq_length": 128,
    "packing": True,
    "init": "",
    "mesh": {},
    "model": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": None,
    },
    "optimizer": {"name": "adamw", "learning_rate": 1e-4, "warmup": 10_000},
    "data": {"dir": "corpora/<wiki> & more", "masking": "whole_word"},
}


def train(step: int, **metrics: float | None) -> dict[str, Any]:
    known = {"loss": 8.0, "mlm_loss": 7.5, "nsp_loss": 0.5, "mlm_accuracy": 0.25, "grad_norm": 1.5}
    speed = {"sequences_per_second": 320.0, "input_wait_fraction": 0.0, "mfu": None}
    return {"step": step, "split": "train", **known, **speed, **metrics}


def eval(step: int, loss: float) -> dict[str, Any]:
    terms = {"mlm_loss": loss - 0.5, "nsp_loss": 0.5, "mlm_perplexity": 42.0, "examples": 4096}
    return {"step": step, "split": "eval", "loss": loss, **terms}


RUN = [train(10), train(20), eval(20, 7.0), train(30), train(40), eval(40, 6.5)]


class Page(HTMLParser):
    """Texts by tag and all tags of a page; every tag must be closed."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(data.strip())

    def titles(self) -> list[str | None]:
        return [attrs["aria-label"] for tag, attrs in self.tags if tag == "svg"]


def page(
    entries: list[dict[str, Any]], settings: dict[str, Any] | None = None, name: str = "run"
) -> Page:
    return Page(render_run(name, entries, settings or {}))


@pytest.fixture
def workdir(tmp_path: pathlib.Path) -> pathlib.Path:
    lines = MetricsFile(metrics_path(tmp_path))
    for entry in RUN:
        metrics = {key: value for key, value in entry.items() if key not in ("step", "split")}
        lines.log(entry["step"], entry["split"], metrics)
    lines.close()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_write_report_writes_into_the_workdir(workdir: pathlib.Path) -> None:
    path = write_report(workdir)
    assert path == workdir / "report.html"
    read = Page(path.read_text())
    assert read.texts["h1"] == [workdir.name]
    assert read.texts["h2"] == [
        "Training and evaluation metrics",
        "Performance",
        "Evaluations",
        "Configuration",
    ]
    assert read.texts["dd"] == [
        "4 layers · hidden size 256 · 4 heads",
        "corpora/<wiki> & more · masking whole_word",
        "size 64 · 128 tokens per sequence · packed",
        "adamw · peak learning rate 0.0001 · 10,000 warmup steps",
        "320.0 sequences per second · 8s in training steps",
    ]


def test_facts_are_fields_of_the_configuration() -> None:
    config = parse_config({"task": "pretraining"}, registry.data_fields()).to_dict()
    for field in (field for fields in FACTS.values() for field in fields):
        *sections, name = field.split(".")
        assert name in functools.reduce(dict.__getitem__, sections, config), field


def test_report_loads_nothing(workdir: pathlib.Path) -> None:
    text = write_report(workdir).read_text()
    for outside in ("http:", "https:", "//cdn", "@import", "url(", "src=", "<link", "fetch("):
        assert outside not in text


@pytest.mark.seconds
def test_report_has_a_chart_per_metric() -> None:
    assert page(RUN).titles() == [
        "Loss",
        "MLM loss",
        "NSP loss",
        "MLM accuracy",
        "Gradient norm",
        "Sequences per second",
        "Time waiting for input",
    ]


def test_speed_of_fine_tuning_counts_examples(workdir: pathlib.Path) -> None:
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text().replace("sequences_per_second", "examples_per_second"))
    read = Page(write_report(workdir).read_text())
    assert read.texts["dd"][4] == "320.0 examples per second · 8s in training steps"
    assert "Examples per second" in read.titles()


def test_time_in_training_steps_counts_the_smaller_batches_of_a_ramp_up() -> None:
    settings = {"batch_size": 64, "batch_size_rampup": 2, "steps": 40}
    entries = [train(step, sequences_per_second=3.2) for step in (10, 20, 30, 40)]
    # 20 steps of 32 sequences and 20 of 64.
    assert page(entries, settings).texts["dd"][-1].endswith(" · 10m 00s in training steps")


@pytest.mark.seconds
def test_report_of_parallel_runs_has_neither_their_curves_nor_a_time(workdir) -> None:
    path = workdir / "metrics.jsonl"
    path.write_text(path.read_text() + json.dumps(train(40) | {"split": "seed=1/train"}) + "\n")
    text = write_report(workdir).read_text()
    assert Page(text).texts["dd"][4] == "320.0 sequences per second"
    assert "seed=1/train" not in text


@pytest.mark.seconds
def test_report_draws_metrics_of_a_task() -> None:
    read = page([train(10), {"step": 10, "split": "eval", "f1": 88.5, "span_accuracy": 0.5}])
    assert read.titles()[4:6] == ["F1", "Span accuracy"]
    assert read.texts["b"][:2] == ["88.50", "50.0%"]


def test_report_omits_the_only_term_of_a_loss() -> None:
    entries = [
        {"step": 10, "split": split, "loss": 3.0, "mlm_loss": 3.0} for split in ("train", "eval")
    ]
    read = page(entries)
    assert read.titles() == ["Loss"]
    assert read.texts["th"] == ["Step", "Loss"]


@pytest.mark.seconds
def test_report_header_shows_the_last_eval_metrics() -> None:
    read = page(RUN)
    assert read.texts["b"][:4] == ["6.500", "6.000", "0.5000", "42.00"]
    assert "Eval split, step 40" in read.texts["p"]
    read = page([entry for entry in RUN if entry["split"] == "train"])
    assert read.texts["b"][:1] == ["8.000"]
    assert "Train split, step 40" in read.texts["p"]


def test_report_lists_evaluations_newest_first_with_the_best_in_bold() -> None:
    read = page([train(10), eval(10, 7.0), eval(20, 6.0), eval(30, math.nan)])
    columns = len(read.texts["th"])
    assert read.texts["td"][: 3 * columns : columns] == ["30", "20", "10"]
    rows = [attrs for tag, attrs in read.tags if tag == "tr"]
    assert rows[1:4] == [{}, {"class": "best"}, {}]


def test_report_takes_a_loss_of_zero_for_the_lowest() -> None:
    read = page([train(10), eval(10, 7.0), eval(20, 0.0)])
    rows = [attrs for tag, attrs in read.tags if tag == "tr"]
    assert rows[1:3] == [{"class": "best"}, {}]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("entries", "steps", "expected"),
    [
        (RUN, 40, "Finished, 40 steps"),
        (RUN, 160, "Step 40 of 160, 25%"),
        (RUN, None, "Finished, 40 steps"),
        ([*RUN, train(50, progress=0.25)], "2 hours", "Step 50, 25% of 2 hours"),
        ([*RUN, train(50, progress=0.999)], "2 hours", "Finished, 50 steps"),
        # Within half a step of the budget, and not.
        ([train(20, progress=0.9), train(22, progress=0.985)], "60 s", "Finished, 22 steps"),
        ([train(20, progress=0.9), train(25, progress=0.985)], "60 s", "Step 25, 98% of 60 s"),
        ([*RUN, train(50, loss=math.nan)], 160, "Diverged at step 50: loss NaN"),
        ([*RUN, train(50, grad_norm=math.inf)], 160, "Diverged at step 50: gradient norm infinite"),
    ],
)
def test_report_shows_the_status(
    entries: list[dict[str, Any]], steps: int | str | None, expected: str
) -> None:
    assert page(entries, {"steps": steps}).texts["p"][0] == expected


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([eval(10, 7.0), eval(20, 6.0), eval(30, 6.5)], "Step 30 of 100, 30%"),
        ([eval(10, 7.0), eval(20, 6.0), eval(30, 6.5), eval(40, 6.0)], "Finished early, 40 steps"),
        ([eval(10, 6.0), eval(20, 7.0), eval(30, 7.0), train(35)], "Step 35 of 100, 35%"),
        ([eval(10, 6.0), eval(90, 7.0), eval(100, 7.0)], "Finished, 100 steps"),
        # No score was ever finite.
        ([{"step": step, "split": "eval", "loss": None} for step in (10, 20)], "Finished early"),
    ],
)
def test_report_shows_that_early_stopping_ended_a_run(
    entries: list[dict[str, Any]], expected: str
) -> None:
    settings = {"steps": 100, "early_stopping": 2, "eval_every": 10, "best_metric": "loss"}
    assert page(entries, settings).texts["p"][0].startswith(expected)
    del settings["early_stopping"]
    assert "early" not in page(entries, settings).texts["p"][0]


def test_report_escapes_all_text() -> None:
    evil = "<script>alert(1)</script>\"'&"
    entries = [
        {"step": 1, "split": "train", "loss": 1.0, evil: 2.0},
        # A slash would make it a single run's.
        {"step": 1, "split": evil.replace("/", ""), "loss": 1.0},
        {"step": 1, "split": "eval", "loss": 1.0, evil: 2.0},
    ]
    text = render_run(evil, entries, {evil: evil, "data.dir": evil, "steps": evil})
    assert "<script>alert" not in text
    read = Page(text)
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert read.texts["h1"] == [evil]


@pytest.mark.seconds
@pytest.mark.parametrize(
    "entries",
    [
        [{"step": 0, "split": "train"}],
        [train(1)],
        [train(1, loss=math.nan)],
        [eval(5, 2.0)],
        [train(1), train(1_000_000)],
        [train(step, loss=float(step)) for step in range(1, 3000)],
    ],
    ids=["no metric", "one line", "only NaN", "eval only", "two far apart", "many"],
)
def test_any_run_has_a_report(entries: list[dict[str, Any]]) -> None:
    text = render_run("run", entries, {})
    Page(text)
    assert len(text) < 300_000


def test_report_lists_fields_as_the_command_line_names_them(workdir: pathlib.Path) -> None:
    cells = Page(write_report(workdir).read_text()).texts["td"]
    pairs = dict(zip(cells[-26::2], cells[-25::2], strict=True))
    assert pairs["model.intermediate_size"] == "null"
    assert pairs["optimizer.learning_rate"] == "0.0001"
    assert pairs["data.dir"] == '"corpora/<wiki> & more"'
    assert pairs["mesh"] == "{}"


def test_write_report_rejects_other_directories(workdir: pathlib.Path) -> None:
    (workdir / "report.html").write_text("previous report")
    for content in (None, "[1]", "{", ""):
        (workdir / "config.json").unlink(missing_ok=True)
        if content is not None:
            (workdir / "config.json").write_text(content)
        with pytest.raises(ValueError, match=r"config\.json: (cannot be read|not)"):
            write_report(workdir)
    metrics_path(workdir).write_text("")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: no metrics yet\. Wait until"):
        write_report(workdir)
    metrics_path(workdir).unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl: the file does not exist"):
        write_report(workdir)
    (workdir / PARALLEL_RUNS_DIR).mkdir()
    with pytest.raises(ValueError, match="the sweep is not finished"):
        write_report(workdir)
    assert (workdir / "report.html").read_text() == "previous report"
