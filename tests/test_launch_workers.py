"""worker.sh on a TPU VM, and `tpu_vm.sh watch`."""

import shutil
import signal
import subprocess
import time

import pytest
from cloud_tool_stubs import LAUNCH, VALUES, Laptop, stub, write_values

# worker.sh


@pytest.fixture
def worker(tmp_path) -> Laptop:
    """Worker after setup."""
    worker = Laptop(tmp_path / "worker")
    launch = worker.home / "experiments" / "launch"
    launch.mkdir(parents=True)
    shutil.copy(LAUNCH / "worker.sh", launch)
    worker.stub("gcloud", "sudo")
    worker.stub("systemctl", body='cat "$HOME/unit" 2>/dev/null || echo inactive')
    return worker


def on_worker(worker: Laptop, *arguments: str) -> str:
    done = worker.run("bash", "experiments/launch/worker.sh", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_worker_starts_training_once(worker) -> None:
    (worker.home / "unit").write_text("active")
    assert "is already running" in on_worker(worker, "start", "gs://b/runs/x", "train")
    assert all(call[0] == "systemctl" for call in worker.recorded())
    (worker.home / "unit").write_text("failed")
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert worker.recorded()[-1][:2] == ["sudo", "systemd-run"]


def test_worker_reports_its_state(worker) -> None:
    def state() -> str:
        return on_worker(worker, "status").split("\t")[0]

    assert state() == "idle"
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert state() == "137"  # as if it had been killed at once
    (worker.home / "unit").write_text("deactivating")
    assert state() == "running"
    (worker.home / "unit").write_text("inactive")
    (worker.home / "exit_status").write_text("75\n")
    assert state() == "75"
    on_worker(worker, "stop")
    assert state() == "stopped"
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert state() == "137"


@pytest.mark.seconds
def test_worker_passes_the_preemption_signal_to_training(worker) -> None:
    training = (
        "trap 'sleep 0.2; echo saved; exit 75' TERM\necho ready\nwhile :; do sleep 0.05; done"
    )
    stub(worker.home / ".venv" / "bin", "bertjax", training)
    on_worker(worker, "start", "gs://b/runs/x", "train")
    log = worker.home / "train.log"
    service = subprocess.Popen(
        ["bash", "experiments/launch/worker.sh", "serve"],
        cwd=worker.home,
        env=worker.environment(),
    )
    deadline = time.monotonic() + 300
    while not (log.exists() and "ready" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.recorded()
    service.send_signal(signal.SIGTERM)
    assert service.wait(300) == 75
    assert log.read_text() == "ready\nsaved\n"
    assert (worker.home / "exit_status").read_text() == "75\n"
    (copy,) = worker.recorded()
    assert copy[:5] == ["gcloud", "storage", "cp", "--quiet", "train.log"]


# watch

WATCHED = r"""
answer() { # print and remove the first line of a file; the last line stays
  head -n 1 "$HOME/$1"
  [ "$(wc -l <"$HOME/$1")" -lt 2 ] || sed -i 1d "$HOME/$1"
}
case "$*" in
  *queued-resources\ describe*) answer queue ;;
  *queued-resources\ create*) ! rm "$HOME/create_fails" 2>/dev/null ;;
  *tpu-vm\ describe*) answer node ;;
  *worker.sh\ status*)
    states=$(answer workers)
    [ "$states" != unreachable ] || exit 255
    for state in $states; do printf '%s\thost\tlast line\n' "$state"; done
    ;;
  *storage\ ls*) [ ! -e "$HOME/bucket_is_empty" ] ;;
esac
"""


def summarize(calls: list[list[str]]) -> str:
    """Return a word for each change of the slice and its workers."""
    words = {
        "queued-resources create": "create",
        "queued-resources delete": "delete",
        "storage cp": "send",
        "worker.sh setup": "install",
        "worker.sh start": "run",
    }
    lines = [" ".join(call) for call in calls]
    return " ".join(word for line in lines for mark, word in words.items() if mark in line)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("queue", "node", "workers", "actions", "status", "message"),
    [
        (
            "WAITING_FOR_RESOURCES > WAITING_FOR_RESOURCES > PROVISIONING > ACTIVE",
            "CREATING > READY",
            ["idle idle", "running idle", "running running", "0 0"],
            "install run delete",
            0,
            "training is done",
        ),
        (
            "ACTIVE > SUSPENDING > SUSPENDED > ACCEPTED > ACTIVE",
            "READY",
            ["running running", "idle idle", "running running", "0 0"],
            "delete create install run delete",
            0,
            "bert-1 was SUSPENDED: restart 1 of 2",
        ),
        (
            "ACTIVE > ACTIVE > PROVISIONING > ACTIVE",
            "READY > PREEMPTED > READY",
            ["running running", "idle idle", "0 0"],
            "delete create install run delete",
            0,
            "bert-1 was PREEMPTED: restart 1 of 2",
        ),
        ("ACTIVE", "READY", ["75 75", "0 0"], "run delete", 0, "stopped early: restart 1"),
        ("ACTIVE", "READY", ["75 0", "running", "0 0"], "run delete", 0, "restart 1 of 2"),
        ("ACTIVE", "READY", ["75 75"], "run run", 1, "stopped early, after 2 restarts"),
        ("SUSPENDED", "READY", ["idle"], "delete create " * 2, 1, "SUSPENDED, after 2 restarts"),
        ("FAILED no quota", "", ["idle"], "delete create " * 2, 1, "FAILED: no quota."),
        ("ACTIVE", "READY", ["2 2"], "", 2, "rejects its input"),
        ("ACTIVE", "READY", ["75 2 idle"], "", 2, "rejects its input"),
        ("ACTIVE", "READY", ["1 75"], "run run", 1, "failed 3 times, with exit status 1 75"),
        ("ACTIVE", "READY", ["137", "0"], "run delete", 0, "failed with exit status 137: restart"),
        ("ACTIVE", "READY", ["stopped stopped"], "", 0, "training was stopped"),
        (
            "ACTIVE",
            "READY",
            ["unreachable"],
            "",
            1,
            "10 commands in a row about bert-1 failed",
        ),
        ("ACTIVE", "READY", ["unreachable"] * 8 + ["0"], "delete", 0, "training is done"),
    ],
)
def test_watch_follows_the_state_of_the_slice(
    laptop, queue, node, workers, actions, status, message
) -> None:
    answers = {"queue": queue.split(" > "), "node": node.split(" > "), "workers": workers}
    for name, lines in answers.items():
        (laptop.home / name).write_text("\n".join(lines) + "\n")
    laptop.stub("gcloud", body=WATCHED)
    laptop.stub("sleep")
    values = write_values(laptop.home, VALUES)
    done = laptop.launch("tpu_vm.sh", "watch", "--file", values, "--max-restarts", 2)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert summarize(laptop.recorded()) == actions.strip()


def test_watch_sends_the_code_to_an_empty_bucket(laptop) -> None:
    for name, line in (("queue", "ACTIVE"), ("node", "READY"), ("workers", "0")):
        (laptop.home / name).write_text(f"{line}\n")
    (laptop.home / "bucket_is_empty").touch()
    laptop.stub("gcloud", body=WATCHED)
    values = write_values(laptop.home, VALUES)
    assert laptop.launch("tpu_vm.sh", "watch", "--file", values).returncode == 0
    assert summarize(laptop.recorded()) == "send delete"


def test_watch_repeats_a_failed_request_for_the_slice(laptop) -> None:
    queue = "SUSPENDED\n\nACTIVE\n"  # no request to describe in between
    for name, lines in (("queue", queue), ("node", "READY\n"), ("workers", "idle\n0\n")):
        (laptop.home / name).write_text(lines)
    (laptop.home / "create_fails").touch()
    laptop.stub("gcloud", body=WATCHED)
    laptop.stub("sleep")
    values = write_values(laptop.home, VALUES)
    assert laptop.launch("tpu_vm.sh", "watch", "--file", values).returncode == 0
    assert summarize(laptop.recorded()) == "delete create create install run delete"
