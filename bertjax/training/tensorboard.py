"""TensorBoard event files, written through tensorboardX."""

import html
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import register_writer_factory

from bertjax.steps.histograms import Histogram
from bertjax.training.metrics_file import Metrics, RemoteFile, path_in_errors
from data_pipelines.paths import is_remote


class TensorBoardTracker:
    """A tracker with one directory a split, so that TensorBoard draws the curves in one chart.

    Args:
      directory: parent of the splits' directories, local or gs://.
      start_step: step that the run resumes from; TensorBoard hides later steps of older files.
    """

    def __init__(self, directory: str, start_step: int) -> None:
        self._directory, self._start_step = directory, start_step
        self._writers: dict[str, EventsWriter] = {}  # by directory

    def log(self, step: int, split: str, metrics: Metrics) -> None:
        """Record the metrics of a split after `step` updates."""
        values = [
            summary.Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None
        ]
        self._write(split, step=step, summary=summary.Summary(value=values))

    def write_summaries(
        self, step: int, examples: Sequence[str], histograms: Mapping[str, Histogram]
    ) -> None:
        """Write examples as a text, and histograms, into the eval split."""
        values = []
        if examples:
            text = "\n\n".join(html.escape(example) for example in examples)
            values += summary.text("examples", text).value
        for name, histogram in histograms.items():
            values += _histogram_summary(name, histogram).value
        self._write("eval", step=step, summary=summary.Summary(value=values))

    def flush(self) -> None:
        """Write buffered events to the files."""
        for directory, writer in self._writers.items():
            with path_in_errors(directory):
                writer.flush()

    def close(self) -> None:
        """Close the files."""
        for directory, writer in self._writers.items():
            with path_in_errors(directory):
                writer.close()

    def _write(self, split: str, **fields: Any) -> None:
        # The name of a run of a sweep may have an address.
        directory = f"{self._directory}/{split.replace('://', ':')}"
        if directory not in self._writers:
            if not is_remote(self._directory):  # a bucket has none
                epath.Path(directory).mkdir(parents=True, exist_ok=True)
            # The time in nanoseconds keeps the files of two processes apart, and in order.
            suffix = f".{time.time_ns()}.{os.getpid()}"
            self._writers[directory] = EventsWriter(f"{directory}/events", suffix)
            start = SessionLog(status=SessionLog.START)
            self._write(split, step=self._start_step + 1, session_log=start)
        with path_in_errors(directory):
            self._writers[directory].write_event(Event(wall_time=time.time(), **fields))


def _histogram_summary(name: str, histogram: Histogram) -> Any:
    """Return a histogram; its moments are those of the bins' centers."""
    counts, edges = histogram.counts, histogram.edges
    centers = (edges[:-1] + edges[1:]) / 2
    return summary.histogram_raw(
        name,
        min=float(edges[0]),
        max=float(edges[-1]),
        num=int(counts.sum()),
        sum=float(np.dot(counts, centers)),
        sum_squares=float(np.dot(counts, centers**2)),
        bucket_limits=edges[1:].tolist(),
        bucket_counts=counts.tolist(),
    )


class _RemoteFiles:
    """Opens event files of gs:// paths.

    tensorboardX has its own opener, which needs google-cloud-storage and its credentials.
    """

    @staticmethod
    def open(path: str) -> RemoteFile:
        return RemoteFile(epath.Path(path))


register_writer_factory("gs", _RemoteFiles())
