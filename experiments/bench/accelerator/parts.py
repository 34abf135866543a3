"""Parts of a benchmark: processes with time limits, whose results are lines of JSON.

An interruption keeps finished parts, because their lines are in the file. Parts that did not finish
run again when the benchmark is started again.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.bench import harness

DONE, FAILED, KILLED, SKIPPED = "done", "failed", "killed", "skipped"
_SCRATCH_ENV = "BERTJAX_BENCH_SCRATCH"

Line = dict[str, Any]


class Part(NamedTuple):
    """A part of a benchmark.

    Attributes:
      name: name in the lines.
      limit: seconds after which it is killed.
      command: command line of its process.
    """

    name: str
    limit: float
    command: Sequence[str]


class Results:
    """A file of JSON lines to which a benchmark and its parts append; each has the key "part"."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def append(self, part: str, **fields: Any) -> None:
        """Append a line, which survives a kill of this process."""
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # a kill left an unfinished line
                    file.write(b"\n")
            file.write(json.dumps({"part": part, **fields}).encode() + b"\n")

    def read(self) -> list[Line]:
        """Return the lines; of those that have the same part and name, the last."""
        lines: dict[tuple[str, str], Line] = {}
        if self.path.exists():
            for text in self.path.read_text().splitlines():
                try:
                    line = json.loads(text)
                except ValueError:  # unfinished
                    continue
                lines[line["part"], line.get("name", "")] = line
        return list(lines.values())

    def statuses(self) -> dict[str, Line]:
        """Return the line with the status of each part that was run."""
        return {line["part"]: line for line in self.read() if "status" in line}


def run_parts(parts: Sequence[Part], results: Results, log: pathlib.Path, budget: float) -> None:
    """Run the parts that are not done, one after the other, and append how each ended.

    A part that fails, is killed or exceeds the budget does not prevent the others.

    Args:
      parts: in order.
      results: the file of the lines.
      log: file to which the output of the parts is appended.
      budget: seconds for all of them; parts that it does not reach are skipped.
    """
    deadline = time.monotonic() + budget
    statuses = results.statuses()
    for part in parts:
        if statuses.get(part.name, {}).get("status") == DONE:
            continue
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            results.append(part.name, status=SKIPPED, error="the budget is spent")
            continue
        started = time.monotonic()
        outcome = _run_part(part, log, min(part.limit, remaining))
        results.append(part.name, **outcome, seconds=round(time.monotonic() - started, 1))


def _run_part(part: Part, log: pathlib.Path, limit: float) -> Line:
    """Run a part and return its status."""
    scratch = tempfile.mkdtemp(prefix="bertjax-bench-")
    # A kill leaves truncated files in PyTorch's cache, which another part would load. With
    # filtering, JAX ends its errors with a note on hidden frames.
    settings = {
        _SCRATCH_ENV: scratch,
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, "inductor"),
        "JAX_TRACEBACK_FILTERING": "off",
    }
    environment = harness.child_environment() | settings
    with log.open("a+") as output:
        output.write(f"\n===== {part.name}\n")
        output.flush()
        begin = output.tell()
        process = subprocess.Popen(
            part.command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            what = "its time limit" if limit == part.limit else "what was left of the budget"
            return {"status": KILLED, "error": f"exceeded {what}, {limit:.0f} s"}
        finally:
            kill_tree(process.pid)
            process.wait()
            shutil.rmtree(scratch, ignore_errors=True)
        if status == 0:
            return {"status": DONE}
        output.seek(begin)
        lines = [line for line in output.read().splitlines() if line.strip()]
        lines = [line for line in lines if "Error: " in line] or lines  # PyTorch adds advice
        signal_name = signal.Signals(-status).name if status < 0 else ""
        error = ": ".join(filter(None, (signal_name, lines[-1].strip() if lines else "")))
        return {"status": FAILED, "error": error[:500]}


def scratch_directory() -> pathlib.Path:
    """Return the directory, deleted at the end, in which a part may write files."""
    return pathlib.Path(os.environ[_SCRATCH_ENV])


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, even by SIGKILL (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def kill_tree(pid: int) -> None:
    """Kill a process, its process group and all descendants, also those in other groups.

    The compiler's processes of PyTorch have sessions of their own.
    """
    pids = [pid, *_descendants(pid)]
    for target in pids:
        for kill in (os.killpg, os.kill):
            if kill is os.killpg and target != pid:
                continue
            try:
                kill(target, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    queue = [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            queue.append(child)
            yield child


def is_ok(line: Mapping[str, Any]) -> bool:
    """Return whether a line reports neither a failed part nor a failed check."""
    return line.get("status") not in (FAILED, KILLED) and line.get("ok", True)
