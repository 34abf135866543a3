"""What TensorBoard shows of a run."""

import html
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax.steps.histograms import Histogram


class TensorBoardWriter:
    """TensorBoard event files, in a directory a split so that it draws the curves in one chart."""

    def __init__(self, directory: epath.Path, start_step: int) -> None:
        # Slow to import, and whoever only reads metrics does without.
        import tensorflow as tf

        self._tf = tf
        self._directory = directory
        self._start_step = start_step
        self._writers: dict[str, Any] = {}

    def write(self, step: int, split: str, metrics: Mapping[str, float | int | None]) -> None:
        proto = self._tf.compat.v1
        values = [
            proto.Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None
        ]
        self._write_event(split, step=step, summary=proto.Summary(value=values))

    def write_summaries(
        self, step: int, examples: Sequence[str], histograms: Mapping[str, Histogram]
    ) -> None:
        """Writes examples as a text, and histograms, among what is held out."""
        text = "\n\n".join(html.escape(each) for each in examples)
        values = [self._plugin_value("examples", "text", [text])] if examples else []
        for name, found in histograms.items():
            bars = np.stack([found.edges[:-1], found.edges[1:], found.counts], axis=-1)
            values.append(self._plugin_value(name, "histograms", bars.astype(np.float64)))
        self._write_event("eval", step=step, summary=self._tf.compat.v1.Summary(value=values))

    def _plugin_value(self, tag: str, plugin: str, content: Any) -> Any:
        """What one of TensorBoard's plugins shows."""
        proto = self._tf.compat.v1
        data = proto.SummaryMetadata.PluginData(plugin_name=plugin)
        return proto.Summary.Value(
            tag=tag,
            metadata=proto.SummaryMetadata(plugin_data=data),
            tensor=self._tf.make_tensor_proto(content),
        )

    def flush(self) -> None:
        for split, writer in self._writers.items():
            self._reraise_as_os_error(split, writer.flush)

    def close(self) -> None:
        for split, writer in self._writers.items():
            self._reraise_as_os_error(split, writer.close)

    def _open(self, split: str) -> None:
        directory = self._directory / split
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writers[split] = self._tf.io.TFRecordWriter(os.fspath(directory / name))
        self._write_event(split, file_version="brain.Event:2")
        # TensorBoard drops what older files of the directory hold from this step on.
        start = self._tf.compat.v1.SessionLog(status=self._tf.compat.v1.SessionLog.START)
        self._write_event(split, step=self._start_step + 1, session_log=start)

    def _write_event(self, split: str, **fields: Any) -> None:
        if split not in self._writers:
            self._open(split)
        event = self._tf.compat.v1.Event(wall_time=time.time(), **fields)
        self._reraise_as_os_error(split, self._writers[split].write, event.SerializeToString())

    def _reraise_as_os_error(self, split: str, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except self._tf.errors.OpError as error:
            raise OSError(f"{self._directory / split}: {error.message}") from error
