"""The accelerator benchmark: its parts killed, failing or interrupted; its table and goldens."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments.bench import harness
from experiments.bench.accelerator import agreement, parts, table

APPEND = """
import sys, time, pathlib
from experiments.bench.accelerator import parts
results = parts.Results(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def results(tmp_path) -> parts.Results:
    return parts.Results(tmp_path / "results.jsonl")


def make_part(results: parts.Results, name: str, program: str, limit: float = 60) -> parts.Part:
    command = [sys.executable, "-c", APPEND + program, str(results.path)]
    return parts.Part(name, limit, command)


def run(results: parts.Results, *todo: parts.Part, budget: float = 60) -> dict[str, str]:
    """Run parts and return their statuses."""
    parts.run_parts(todo, results, results.path.with_name("log.txt"), budget)
    return {name: line["status"] for name, line in results.statuses().items()}


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_run_parts_records_failures_and_runs_the_next_part(results) -> None:
    program = "print('above'); print('ValueError: the cause'); raise SystemExit('advice')"
    failing = make_part(results, "failing", program)
    crashing = make_part(results, "crashing", "import os; os.kill(os.getpid(), 11)")
    good = make_part(results, "good", "results.append('good', name='x', value=1)")
    statuses = run(results, failing, crashing, good)
    assert statuses == {"failing": "failed", "crashing": "failed", "good": "done"}
    lines = results.statuses()
    assert lines["failing"]["error"] == "ValueError: the cause"
    assert lines["crashing"]["error"] == "SIGSEGV"
    assert {"part": "good", "name": "x", "value": 1} in results.read()
    assert "above" in results.path.with_name("log.txt").read_text()
    assert not all(map(parts.is_ok, results.read()))


@pytest.mark.slow
def test_run_parts_kills_a_hanging_part_with_its_children(results, tmp_path) -> None:
    program = """
import subprocess
results.append('hanging', name='first', value=1)
for new_session in (False, True):
    child = subprocess.Popen(['sleep', '600'], start_new_session=new_session)
    results.append('hanging', name=f'child{new_session}', value=child.pid)
time.sleep(600)
"""
    hanging = make_part(results, "hanging", program, limit=10)
    assert run(results, hanging) == {"hanging": "killed"}
    assert results.statuses()["hanging"]["error"] == "exceeded its time limit, 10 s"
    values = {line["name"]: line["value"] for line in results.read() if "name" in line}
    assert values.pop("first") == 1 and len(values) == 2
    wait_until(lambda: not any(map(is_running, values.values())))


@pytest.mark.slow
def test_run_parts_stops_at_the_budget_and_resumes(results) -> None:
    first = make_part(results, "first", "")
    slow = make_part(results, "slow", "time.sleep(600)")
    last = make_part(results, "last", "")
    statuses = run(results, first, slow, last, budget=10)
    assert statuses == {"first": "done", "slow": "killed", "last": "skipped"}
    assert "budget" in results.statuses()["slow"]["error"]
    quick = make_part(results, "slow", "")
    before = results.path.read_text()
    assert run(results, first, quick, last) == dict.fromkeys(("first", "slow", "last"), "done")
    added = results.path.read_text().removeprefix(before).splitlines()
    assert [json.loads(line)["part"] for line in added] == ["slow", "last"]


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_interruption_keeps_finished_parts_and_ends_the_running_one(
    results, tmp_path, signal_number
) -> None:
    worker = """
parts.end_with_parent()
import os
results.append('second', name='pid', value=os.getpid())
time.sleep(600)
"""
    first, second = make_part(results, "first", ""), make_part(results, "second", worker)
    program = f"""
import pathlib, signal, sys
from experiments.bench.accelerator import parts
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
todo = [parts.Part(*part) for part in {[tuple(first), tuple(second)]!r}]
parts.run_parts(todo, parts.Results(pathlib.Path({str(results.path)!r})),
                pathlib.Path({str(tmp_path / "log.txt")!r}), 600)
"""
    process = subprocess.Popen([sys.executable, "-c", program], env=harness.child_environment())
    wait_until(lambda: any(line.get("name") == "pid" for line in results.read()))
    (pid,) = (line["value"] for line in results.read() if line.get("name") == "pid")
    os.kill(process.pid, signal_number)
    process.wait()
    wait_until(lambda: not is_running(pid))
    assert {name: line["status"] for name, line in results.statuses().items()} == {"first": "done"}


def test_results_skip_an_unfinished_line_and_keep_the_last_of_a_name(results) -> None:
    results.append("a", name="x", value=1)
    with results.path.open("a") as file:
        file.write('{"part": "a", "na')
    results.append("a", name="x", value=2)
    assert results.read() == [{"part": "a", "name": "x", "value": 2}]


def test_format_table_has_figures_failed_checks_and_unfinished_parts() -> None:
    step = {"program": "bertjax", "model": "base", "length": 128, "batch_size": 32}
    step |= {"seconds": 0.01, "tokens_per_second": 409_600.0, "mfu": 0.4, "bytes": 2**32}
    lines = [
        {"part": "base", "name": "step", **step},
        {"part": "preflight-base", "name": "preflight", "preflight_seconds": 0.005,
            "preflight_bytes": 2**31},
        {"part": "base", "name": "profile", "milliseconds": 2.0, "kernels": [
            {"kernel": "gemm", "milliseconds": 0.5, "calls": 3.0, "operation": "mlm/dot"}]},
        {"part": "base", "status": "done"},
        {"part": "b", "name": "loss", "check": 0.5, "tolerance": 1e-3, "ok": False},
        {"part": "b", "status": "failed", "error": "a | b"},
    ]  # fmt: skip
    text = table.format_table(lines, ["base", "b", "c"])
    assert "| base, 128 x 32 | train step | bertjax | 10.0 | 5.0 | 409,600 | 40.0% | 4.00 |" in text
    assert "| gemm | 0.500 | 25.0% | 3 | mlm/dot |" in text
    assert "| loss | 5.0e-01 | 1e-03 | FAILED |" in text
    assert "| b | failed | a / b |" in text and "| c | not run |  |" in text


@pytest.mark.slow
def test_golden_losses_depend_on_dropout_but_not_on_the_compiler() -> None:
    golden = np.array(json.loads(agreement.GOLDEN.read_text())["tiny"])
    case = agreement.LOSS_CASES[True]
    losses = np.array(list(agreement.compute_losses(case)))
    assert np.abs(losses - golden).max() < agreement.LOSS_TOLERANCE / 10
    losses = np.array(list(agreement.compute_losses(case, hidden_dropout_prob=0.0)))
    assert np.abs(losses - golden).max() > 10 * agreement.LOSS_TOLERANCE
