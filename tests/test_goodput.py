"""Division of a run's wall time into parts."""

import functools
import json
import signal
import time
from types import SimpleNamespace

import pytest
from etils import epath
from pretraining_runs import make_run_config
from processes import Command, fail_at, run
from program import PRETRAIN

from bertjax.reports.run import read_run, render_run
from bertjax.training.setup import make_trainer
from bertjax.training.trainer import Trainer
from bertjax.workdir import goodput
from bertjax.workdir.goodput import (
    GOODPUT_FILE,
    PARTS,
    GoodputClock,
    Session,
    process_start_time,
    read_sessions,
    total_seconds,
)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(goodput.time, "time", lambda: clock.now)
    monkeypatch.setattr(goodput.time, "monotonic", lambda: clock.now)
    return clock


def train(workdir: epath.Path, clock: SimpleNamespace, first: int, last: int) -> GoodputClock:
    """Pass 2 s of startup, 3 s of compilation, and 10 s with 1 s of data for each step."""
    session = GoodputClock(workdir, clock.now)
    session.read_earlier()
    clock.now += 2
    session.switch("compilation")
    clock.now += 3
    session.switch("steps")
    for step in range(first, last + 1):
        clock.now += 10
        session.end_step(step, float(step - first + 1))
        with session.measure("saving"):
            clock.now += 0.5
            with session.measure("evaluation"):
                clock.now += 0.25
    session.write()
    return session


def test_goodput_divides_time_and_counts_repeated_steps_as_lost(tmp_path, clock) -> None:
    workdir = epath.Path(tmp_path)
    train(workdir, clock, 1, 4)
    clock.now += 100
    session = train(workdir, clock, 3, 6)  # 3 and 4 are repeated
    totals = total_seconds(read_sessions(workdir))
    assert totals == {
        "steps": 54,
        "data": 6,
        "evaluation": 1.5,
        "saving": 3,
        "compilation": 6,
        "startup": 4,
        "lost_work": 21.5,
        "downtime": 100,
    }
    assert sum(totals.values()) == clock.now - 100
    fractions = session.fractions()
    assert fractions["goodput"] == 54 / 196 and fractions["lost_work_fraction"] == 21.5 / 196
    assert set(fractions) == {"goodput"} | {f"{part}_fraction" for part in PARTS[1:]}


def test_goodput_keeps_what_a_predecessor_writes_until_it_releases_the_workdir(
    tmp_path, clock
) -> None:
    workdir = epath.Path(tmp_path)
    successor = GoodputClock(workdir, clock.now)  # waits for the lock
    train(workdir, clock, 1, 4)
    successor.read_earlier()
    successor.switch("steps")
    clock.now += 10
    successor.end_step(4, 0.0)  # which is repeated
    successor.write()
    assert [session.last_step for session in read_sessions(workdir)] == [4, 4]
    assert read_sessions(workdir)[1].seconds["lost_work"] == 10


@pytest.mark.seconds
def test_trainer_reads_earlier_sessions_once_it_holds_the_workdir(
    corpus, tmp_path, monkeypatch
) -> None:
    trainer = make_trainer(make_run_config(corpus), tmp_path)
    predecessor = GoodputClock(epath.Path(tmp_path), time.time())
    predecessor.end_step(7, 0.0)
    predecessor.write()
    monkeypatch.setattr(Trainer, "_loop", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert [session.last_step for session in read_sessions(epath.Path(tmp_path))] == [7, 0]


def test_goodput_is_written_every_few_seconds_by_one_process(tmp_path, clock) -> None:
    workdir = epath.Path(tmp_path)
    silent, session = GoodputClock(workdir, 90, active=False), GoodputClock(workdir, 90)
    silent.write()
    session.end_step(1, 0.0)
    assert read_sessions(workdir) == []
    clock.now += 6
    session.end_step(2, 0.0)
    (recorded,) = read_sessions(workdir)
    assert (recorded.start, recorded.end, recorded.last_step) == (90, 106, 2)


def test_goodput_that_cannot_be_written_is_one_warning_and_tried_again(
    tmp_path, clock, caplog
) -> None:
    workdir = epath.Path(tmp_path)
    session = GoodputClock(workdir, 90)
    (tmp_path / GOODPUT_FILE).mkdir()
    session.write()
    session.write()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "The run continues." in caplog.text
    (tmp_path / GOODPUT_FILE).rmdir()
    session.write()
    assert len(read_sessions(workdir)) == 1


@pytest.mark.parametrize("text", ["", "[", "{}x", "[1]", '[{"start": 1}]', "7"])
def test_read_sessions_ignores_a_damaged_file(tmp_path, caplog, text: str) -> None:
    (tmp_path / GOODPUT_FILE).write_text(text)
    assert read_sessions(epath.Path(tmp_path)) == []
    assert "not a file that a run wrote" in caplog.text


def test_downtime_is_never_negative() -> None:
    seconds = dict.fromkeys(PARTS[:-1], 1.0)
    sessions = [Session(0, 7, 1, seconds), Session(5, 12, 2, seconds)]
    assert total_seconds(sessions)["downtime"] == 0


def test_process_start_time_is_in_the_past() -> None:
    assert 0 <= time.time() - process_start_time() < 24 * 3600


def test_report_shows_the_parts(tmp_path) -> None:
    entries = [{"step": 1, "split": "train", "loss": 1.0, "goodput": 0.5, "data_fraction": 0.1}]
    sessions = [Session(0, 90, 1, {"steps": 60.0, "data": 30.0}), Session(100, 100, 1, {})]
    page = render_run("run", entries, {}, sessions)
    assert "Wall time" in page and "with 1 restart." in page and "Data fraction" not in page
    for text in ("1m 00s", "60.0%", "30s", "30.0%", "downtime", "10s", "10.0%", "1m 40s"):
        assert text in page, text
    assert "Wall time" not in render_run("run", entries, {})


@pytest.mark.minutes
def test_parts_add_up_to_the_wall_time_of_a_run_with_three_kills(corpus, tmp_path) -> None:
    fields = {"model.vocab_size": 128, "steps": 1500, "checkpoint_every": 100, "log_every": 20}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    line = ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", tmp_path, *flags]
    run("--version")  # starts the server of processes
    start = time.time()
    for step in (350, 400, 400):  # a fault counts the steps of its process
        process = Command(
            *line, begin=functools.partial(fail_at, f"step.before_update:{step}=kill")
        )
        process.communicate()
        assert process.poll() == -signal.SIGKILL
    process = Command(*line)
    assert any(text.startswith("done; ") for text in process.stderr)
    wall = time.time() - start  # to the end of the run; libraries take a second to exit
    process.communicate()
    totals = total_seconds(read_sessions(epath.Path(tmp_path)))
    print(json.dumps(totals), wall)
    assert sum(totals.values()) == pytest.approx(wall, rel=0.01)
    assert all(totals[part] > 0 for part in set(PARTS) - {"data"})
    entries, settings, sessions = read_run(epath.Path(tmp_path))
    assert "with 3 restarts." in render_run("run", entries, settings, sessions)
    assert 0 < [entry for entry in entries if entry["split"] == "train"][-1]["goodput"] < 1
