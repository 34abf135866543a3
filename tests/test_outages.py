"""Metrics of a run whose bucket is out of reach for a while."""

import pathlib
from unittest import mock

import pytest

from bertjax.config.config import Config
from bertjax.errors import LockLostError, StoppedError
from bertjax.training import metric_writers, metrics_file
from bertjax.training.metric_writers import MetricWriters
from bertjax.training.metrics_file import Metrics, RemoteFile, encode_line, read_metrics

TRAIN: Metrics = {"loss": 7.25, "learning_rate": 1e-4}


def make_writers(workdir: pathlib.Path, start_step: int = 0) -> MetricWriters:
    return MetricWriters(workdir, Config(steps=100), start_step)


def test_outage_of_a_bucket_delays_metrics_and_hides_no_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class UnavailableError(Exception): ...

    write_fails = mock.Mock(side_effect=UnavailableError("503"))
    for module in (metric_writers, metrics_file):
        monkeypatch.setattr(module, "is_remote", lambda path: True)
    monkeypatch.setattr(metric_writers, "REMOTE_FLUSH_SECONDS", 1e-9)
    with make_writers(tmp_path) as writers:
        with monkeypatch.context() as outage:
            outage.setattr(metrics_file.RemoteFile, "flush", write_fails)
            writers.write(1, "train", TRAIN)
            assert "metrics not written: 503" in caplog.text
            with pytest.raises(UnavailableError):
                writers.flush()  # as before a checkpoint
        writers.write(2, "train", TRAIN)
        assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 2]
    monkeypatch.setattr(metrics_file.RemoteFile, "flush", write_fails)
    with pytest.raises(StoppedError), make_writers(tmp_path, 2) as writers:
        writers.write(3, "train", TRAIN)
        raise StoppedError("stopped at step 3")
    assert "the last metrics may be missing: 503" in caplog.text
    with pytest.raises(UnavailableError), make_writers(tmp_path, 2) as writers:
        writers.write(3, "train", TRAIN)


def test_a_remote_file_is_written_by_flush_alone_and_never_read() -> None:
    path = mock.MagicMock()
    file = RemoteFile(path, b"before ")
    file.write(b"added")
    assert not path.mock_calls
    for _ in range(2):
        file.flush()
        assert path.mock_calls == [mock.call.write_bytes(b"before added")]
        path.reset_mock()


class Ownership:
    """Lock of a workdir that another run takes."""

    is_lost = False

    def confirm(self) -> None:
        """Raise LockLostError once it is lost."""
        if self.is_lost:
            raise LockLostError("taken")


@pytest.mark.parametrize("error", [None, LockLostError, StoppedError, ValueError])
@pytest.mark.parametrize("remote", [True, False])
def test_a_run_that_has_lost_its_workdir_leaves_the_metrics_of_its_successor(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    remote: bool,
    error: type[Exception] | None,
) -> None:
    for module in (metric_writers, metrics_file):
        monkeypatch.setattr(module, "is_remote", lambda path: remote)
    lock = Ownership()
    displaced = MetricWriters(tmp_path, Config(steps=100), confirm=lock.confirm)
    with pytest.raises(error or LockLostError), displaced:
        displaced.write(1, "train", TRAIN)
        displaced.flush()
        lock.is_lost = True
        successor = make_writers(tmp_path)
        successor.write(1, "train", TRAIN | {"loss": 3.0})
        successor.flush()
        with pytest.raises(LockLostError):
            displaced.write(2, "train", TRAIN)
            displaced.flush()
        if error:
            raise error("the end")
    assert [entry["loss"] for entry in read_metrics(tmp_path)] == [3.0]
    with successor:
        successor.write(2, "train", TRAIN)
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [1, 2]


def test_a_run_that_has_lost_its_workdir_does_not_start_to_write_metrics(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(encode_line(5, "train", TRAIN))
    lock = Ownership()
    lock.is_lost = True
    with pytest.raises(LockLostError):
        MetricWriters(tmp_path, Config(steps=100), 1, confirm=lock.confirm)
    assert [entry["step"] for entry in read_metrics(tmp_path)] == [5]
