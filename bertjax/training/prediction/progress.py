"""Progress of an evaluation."""

import time
from collections.abc import Callable

from bertjax.mesh.watchdog import note_progress
from bertjax.training.terminal import format_duration

_PROGRESS_SECONDS = 10.0  # between two lines of progress


def progress_reporter(
    name: str, report_progress: Callable[[str], None] | None
) -> Callable[[str], None]:
    """Return a function that notes progress, and reports it every few seconds.

    Args:
      name: name of the eval set.
      report_progress: takes a line of progress; None to report none.
    """
    start = last_report = time.monotonic()

    def report(position: str) -> None:
        nonlocal last_report
        note_progress()
        now = time.monotonic()
        if report_progress and now - last_report > _PROGRESS_SECONDS:
            last_report = now
            report_progress(f"{name}: {position} after {format_duration(now - start)}")

    return report
