"""Tests of metric writers: metrics.jsonl, TensorBoard and the terminal, also after a resume."""

import contextlib
import errno
import io
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_outputs import events

from bertjax.config.config import Config
from bertjax.errors import DivergedError, StoppedError
from bertjax.steps.histograms import Histogram
from bertjax.tasks.task import Evaluation
from bertjax.training import metric_writers, metrics_file, terminal
from bertjax.training.metric_writers import MetricWriters
from bertjax.training.metrics_file import (
    Metrics,
    MetricsFile,
    encode_line,
    metrics_path,
    read_metrics,
    truncate_metrics,
)
from bertjax.training.terminal import ProgressPrinter, format_duration

TRAIN: Metrics = {
    "loss": 7.25,
    "mlm_accuracy": 0.125,
    "learning_rate": 1e-4,
    "sequences_per_second": 812.4,
    "mfu": None,
}
EVAL: Metrics = {"loss": 6.5, "mlm_accuracy": 0.25, "mlm_perplexity": 420.5, "examples": 2048}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_writers(workdir: pathlib.Path, summaries: str = "", **options: Any) -> MetricWriters:
    return MetricWriters(workdir, Config(steps=100, tensorboard=summaries), **options)


def read_raw(workdir: pathlib.Path) -> bytes:
    return metrics_path(workdir).read_bytes()


# metrics.jsonl


def test_write_appends_one_json_object_a_line(tmp_path: pathlib.Path) -> None:
    with make_writers(tmp_path / "new" / "run") as writers:
        writers.write(10, "train", TRAIN)
        writers.write(10, "eval", EVAL)
    first, second = read_raw(tmp_path / "new" / "run").decode().splitlines()
    assert first == (
        '{"step": 10, "split": "train", "loss": 7.25, "mlm_accuracy": 0.125, '
        '"learning_rate": 0.0001, "sequences_per_second": 812.4, "mfu": null}'
    )
    assert json.loads(second) == {"step": 10, "split": "eval", **EVAL}


def test_read_metrics_returns_what_was_written(tmp_path: pathlib.Path) -> None:
    values: Any = {
        "loss": np.float32(0.1),
        "examples": np.int64(3),
        "nan": math.nan,
        "up": np.float32(np.inf),
        "down": -math.inf,
        "unknown": None,
    }
    with make_writers(tmp_path) as writers:
        writers.write(1, "train", values)
    assert "NaN" in json.loads(read_raw(tmp_path), parse_constant=pytest.fail).values()
    (entry,) = read_metrics(tmp_path)
    assert entry.pop("split") == "train"
    assert math.isnan(entry.pop("nan"))
    assert entry == {
        "step": 1,
        "loss": float(np.float32(0.1)),
        "examples": 3,
        "up": math.inf,
        "down": -math.inf,
        "unknown": None,
    }


def test_truncate_metrics_removes_the_steps_after_a_checkpoint(tmp_path: pathlib.Path) -> None:
    with make_writers(tmp_path) as writers:
        for step in (10, 20, 30, 40):
            writers.write(step, "train", TRAIN)
    whole = read_raw(tmp_path).splitlines(keepends=True)
    truncate_metrics(tmp_path, 25)
    assert read_raw(tmp_path) == b"".join(whole[:2])
    truncate_metrics(tmp_path, 0)
    assert read_raw(tmp_path) == b""
    assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "tensorboard"]


def test_truncate_metrics_accepts_a_missing_file(tmp_path: pathlib.Path) -> None:
    truncate_metrics(tmp_path, 0)
    assert not metrics_path(tmp_path).exists()


@pytest.mark.seconds
@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), checkpoint=st.integers(0, 5))
def test_resumed_file_equals_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, cut: int, checkpoint: int
) -> None:
    """A run killed at any byte after the lines of its checkpoint resumes to the same bytes."""
    workdir = tmp_path_factory.mktemp("run")

    def lines(start: int) -> bytes:
        splits = [("train", TRAIN), ("eval", EVAL)]
        return b"".join(
            encode_line(step, split, {**metrics, "loss": 1 / step})
            for step in range(start, 7)
            for split, metrics in splits
        )

    whole = lines(1)
    safe = len(whole) - len(lines(checkpoint + 1))
    metrics_path(workdir).write_bytes(whole[: safe + cut])
    truncate_metrics(workdir, checkpoint)
    with open(metrics_path(workdir), "ab") as file:
        file.write(lines(checkpoint + 1))
    assert read_raw(workdir) == whole


def test_truncate_metrics_that_is_interrupted_loses_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_writers(tmp_path) as writers:
        writers.write(10, "train", TRAIN)
        writers.write(20, "train", TRAIN)
    before = read_raw(tmp_path)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(metrics_path(tmp_path)), "replace", die)
    with pytest.raises(KeyboardInterrupt):
        truncate_metrics(tmp_path, 10)
    assert read_raw(tmp_path) == before


def test_writers_at_a_start_step_remove_later_lines(tmp_path: pathlib.Path) -> None:
    with make_writers(tmp_path) as writers:
        writers.write(10, "train", TRAIN)
        writers.write(20, "train", TRAIN)
    with make_writers(tmp_path, start_step=10) as writers:
        writers.write(20, "train", {"loss": 1.0})
    losses = [(entry["step"], entry["loss"]) for entry in read_metrics(tmp_path)]
    assert losses == [(10, 7.25), (20, 1.0)]


@pytest.mark.seconds
def test_lines_survive_sigkill(tmp_path: pathlib.Path) -> None:
    program = """
        import io, os, signal, sys
        from etils import epath
        from bertjax.training.metrics_file import MetricsFile
        lines = MetricsFile(epath.Path(sys.argv[1]))
        for step in range(1, 6):
            lines.log(step, "train", {"loss": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), os.fspath(metrics_path(tmp_path))]
    )
    assert done.returncode == -signal.SIGKILL
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("line", ["{}", "[1]", '"a"', '{"step": 1}', "{", "\0\0", "\xff", ""])
def test_damaged_line_is_named_and_nothing_is_lost(tmp_path: pathlib.Path, line: str) -> None:
    good = encode_line(1, "train", TRAIN)
    damaged = good + line.encode("latin-1") + b"\n" + good
    metrics_path(tmp_path).write_bytes(damaged)
    for call in (lambda: read_metrics(tmp_path), lambda: truncate_metrics(tmp_path, 0)):
        with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of metrics"):
            call()
    assert read_raw(tmp_path) == damaged


def test_read_metrics_skips_an_unfinished_line(tmp_path: pathlib.Path) -> None:
    metrics_path(tmp_path).write_bytes(encode_line(1, "train", TRAIN) + b'{"step": 2, "sp')
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1]


def test_read_metrics_rejects_a_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl: the file does not exist\. Name the --workdir"
    ):
        read_metrics(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_an_error_that_names_the_file(tmp_path: pathlib.Path) -> None:
    os.symlink("/dev/full", tmp_path / "metrics.jsonl")
    lines = MetricsFile(metrics_path(tmp_path))
    with pytest.raises(OSError, match=r"metrics\.jsonl") as caught:
        lines.log(1, "train", TRAIN)
    assert caught.value.errno == errno.ENOSPC


def test_remote_file_is_replaced_by_flush(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (metric_writers, metrics_file):
        monkeypatch.setattr(module, "is_remote", lambda path: True)
    with make_writers(tmp_path) as writers:
        writers.write(1, "train", TRAIN)
        assert not metrics_path(tmp_path).exists()
        writers.flush()
        assert [entry["step"] for entry in read_metrics(tmp_path)] == [1]
        writers.write(2, "train", TRAIN)
    with make_writers(tmp_path, start_step=1) as writers:
        writers.write(3, "train", TRAIN)
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 3]


def test_writers_of_other_processes_write_nothing(tmp_path: pathlib.Path, capsys: Any) -> None:
    with make_writers(tmp_path / "run", active=False) as writers:
        writers.write(1, "train", TRAIN)
        writers.print_line("text")
        writers.flush()
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().err == ""


# TensorBoard


@pytest.mark.seconds
def test_tensorboard_has_a_directory_a_split(tmp_path: pathlib.Path) -> None:
    with make_writers(tmp_path) as writers:
        writers.write(10, "train", TRAIN)
        writers.write(10, "eval", {"loss": math.nan, "examples": 5})
        version, _, scalars = events(tmp_path, "train")  # readable during the run
    assert version.file_version == "brain.Event:2"
    assert scalars.step == 10
    assert {value.tag: value.simple_value for value in scalars.summary.value} == {
        name: pytest.approx(value) for name, value in TRAIN.items() if value is not None
    }
    values = {value.tag: value.simple_value for value in events(tmp_path, "eval")[2].summary.value}
    assert math.isnan(values["loss"])
    assert values["examples"] == 5


def test_tensorboard_hides_steps_after_the_start_step(tmp_path: pathlib.Path) -> None:
    with make_writers(tmp_path) as writers:
        writers.write(20, "train", TRAIN)
    with make_writers(tmp_path, start_step=10) as writers:
        writers.write(20, "train", TRAIN)
    marks = [event for event in events(tmp_path, "train") if event.HasField("session_log")]
    assert [(mark.session_log.status, mark.step) for mark in marks] == [(1, 1), (1, 11)]


def test_tensorboard_shows_examples_and_histograms(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = {"a/b": Histogram(np.array([0, 1, 3.0]), np.array([5, 2.0]))}
    monkeypatch.setattr(metric_writers, "compute_histograms", lambda params: params)
    evaluations = {"": Evaluation({"loss": 1.0}, examples=["a <b>", "c"])}
    with make_writers(tmp_path, "examples+parameters") as writers:
        writers.write_evaluations(7, {}, spread)
        writers.write_evaluations(7, evaluations, spread)
    _, _, _, shown = events(tmp_path, "eval")
    text, bars = shown.summary.value
    assert (shown.step, text.tag, bars.tag) == (7, "examples/text_summary", "a/b")
    assert text.metadata.plugin_data.plugin_name == "text"
    assert text.tensor.string_val[0] == b"a &lt;b&gt;\n\nc"
    assert (bars.histo.min, bars.histo.max, bars.histo.num) == (0, 3, 7)
    assert (bars.histo.bucket_limit, bars.histo.bucket) == ([1, 3], [5, 2])


# The terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_printer_writes_lines_into_a_file(clock: list[float]) -> None:
    stream = io.StringIO()
    progress = ProgressPrinter(20_000, stream)
    progress.log(1_000, "train", TRAIN)
    clock[0] = 100.0
    progress.log(2_000, "train", TRAIN)
    progress.log(2_000, "eval", EVAL)
    progress.print_line("saved step 2,000")
    progress.log(20_000, "train", TRAIN)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "step 1,000/20,000   5%  loss 7.25  mlm accuracy 12.5%  812 seq/s",
        "step 2,000/20,000  10%  loss 7.25  mlm accuracy 12.5%  812 seq/s  30m 00s left",
        "step 2,000/20,000  eval  loss 6.5  mlm accuracy 25.0%  mlm perplexity 420.5"
        "  2,048 examples",
        "saved step 2,000",
        "step 20,000/20,000 100%  loss 7.25  mlm accuracy 12.5%  812 seq/s",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sequences_per_second", "3.68 seq/s"), ("examples_per_second", "3.68 examples/s")],
)
def test_printer_names_the_unit_of_a_rate(name: str, expected: str) -> None:
    stream = io.StringIO()
    ProgressPrinter(10, stream).log(1, "train", {"loss": 7.25, name: 3.684})
    assert stream.getvalue().endswith(f"loss 7.25  {expected}\n")


def test_printer_redraws_one_line_in_a_terminal(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    progress = ProgressPrinter(100, stream)
    progress.log(1, "train", TRAIN)
    progress.log(2, "train", TRAIN)
    progress.print_line("saved step 2")
    progress.close()
    drawn = stream.getvalue()
    assert drawn.count("\n") == 2  # of the printed line and the last
    assert drawn.endswith("\n")
    first, second, print_line, again = drawn[:-1].split("\r")[1:]
    assert first.startswith("step 1/100")
    assert second.startswith("step 2/100")
    assert print_line == "\x1b[Ksaved step 2\n"
    assert again == second
    assert all(len(line.removesuffix("\x1b[K")) == 39 for line in (first, second))


@pytest.mark.parametrize("value", [0.0, 1e-9, 3, 12.3456789, 1e12, math.nan, -math.inf, None])
@pytest.mark.parametrize("name", ["loss", "mlm_accuracy", "sequences_per_second", "mfu", "other"])
def test_printer_accepts_any_value(name: str, value: float | None) -> None:
    for split in ("train", "eval"):
        stream = io.StringIO()
        ProgressPrinter(10, stream).log(1, split, {name: value})
        assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (189, "3m 09s"),
        (3599.9, "1h 00m"),
        (19_200, "5h 20m"),
        (183_600, "2d 03h"),
    ],
)
def test_format_duration_has_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "finished"),
        (DivergedError("the loss is nan"), "failed"),
        (OSError("the disk is full"), "failed"),
        (StoppedError("stopped at step 3"), "killed"),
        (KeyboardInterrupt(), "killed"),
    ],
)
def test_trackers_learn_how_a_run_ended(error, outcome: str, tmp_path) -> None:
    tracker = mock.Mock()
    suppressed = pytest.raises(type(error)) if error else contextlib.nullcontext()
    with suppressed, make_writers(tmp_path, trackers=[tracker]) as writers:
        writers.write(3, "train", TRAIN)
        if error:
            raise error
    assert [call[0] for call in tracker.method_calls] == ["log", "close"]
    tracker.close.assert_called_once_with(outcome)
