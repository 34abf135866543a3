"""Metrics of a run whose bucket is out of reach for a while."""

import pathlib
from unittest import mock

import pytest

from bertjax.config.config import Config
from bertjax.errors import StoppedError
from bertjax.training import metric_writers, metrics_file
from bertjax.training.metric_writers import MetricWriters
from bertjax.training.metrics_file import Metrics, RemoteFile, read_metrics

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


def test_nothing_is_read_from_a_bucket_until_metrics_are_flushed(tmp_path: pathlib.Path) -> None:
    path = mock.MagicMock()
    path.exists.return_value, path.read_bytes.return_value = True, b"before "
    file = RemoteFile(path)
    file.write(b"added")
    assert not path.mock_calls
    for _ in range(2):
        file.flush()
        path.write_bytes.assert_called_with(b"before added")
