"""Several hosts are one program: same losses, own shards alone, and none outlives the others."""

import functools
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from conftest import LONG, free_port, process_environment
from processes import Command

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.checkpointing.parameters import load_params
from bertjax.cli import termination
from bertjax.config.config import read_config
from bertjax.errors import CHILD_ENV, RunError
from bertjax.mesh import distributed, signals
from bertjax.mesh.distributed import Cluster, find_cluster
from bertjax.mesh.sharding import make_mesh, sharded_shapes
from bertjax.steps import step_functions
from bertjax.tasks import registry
from bertjax.workdir import lock

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
STEPS = 30
TIMES = ("sequences_per_second", "tokens_per_second", "mfu", "input_wait_fraction")


# Restores a run's state on a mesh over all processes and saves it elsewhere.
COPY = """
import dataclasses, pathlib, sys
from bertjax.tasks import registry
from bertjax.steps import step_functions
from bertjax.mesh import distributed
from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.config.config import read_config
number, port, run, copy = sys.argv[1:]
distributed.join(distributed.Cluster(f"localhost:{port}", 4, int(number)), saves=False)
config = read_config(pathlib.Path(run, "config.json"), registry.data_fields())
config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, fsdp=2))
target = step_functions.Programs(config, registry.objective(config)).state
assert len(target.params["nsp"]["kernel"].sharding.device_set) == 8
state = Checkpointer(f"{run}/checkpoints").restore(target)
copies = Checkpointer(copy)
copies.save(state, lambda path: None)
copies.wait()
"""


# A configuration whose runs take their time after step 14, so that what happens to them then does
# before their end.
SLOW = f"""
import runpy, time
from bertjax.training.throughput import Profiler
get_config = runpy.run_path({str(PRETRAIN)!r})["get_config"]
plain = Profiler.before

def before(self, step, state):
    time.sleep(4 if step >= 14 else 0)
    plain(self, step, state)

Profiler.before = before
"""


def become_host(opened: pathlib.Path, several: bool) -> None:
    """Makes the process the child of one that supervises it, which notes the shards it opens."""

    def note(event: str, arguments: tuple) -> None:
        if event == "open" and str(arguments[0]).endswith(".tokens"):
            with opened.open("a") as file:
                print(os.path.basename(str(arguments[0])), file=file)

    sys.addaudithook(note)
    lock.VISIBILITY_TIMEOUT_SECONDS = 1
    if several:
        os.environ[CHILD_ENV] = str(os.getppid())


class Program:
    """Processes that train together, four simulated devices in all."""

    def __init__(
        self,
        corpus: pathlib.Path,
        workdir: pathlib.Path,
        processes: int,
        *,
        supervised: bool = False,  # each by a process of its own, as from a shell
        last: Sequence[str] = (),  # arguments of the last process alone
        checkpoint_every: int | str = 12,
        slow: bool = False,
    ) -> None:
        fields = {"model.vocab_size": 128, "model.num_hidden_layers": 1, "model.dtype": "float32"}
        fields |= {"steps": STEPS, "checkpoint_every": checkpoint_every}
        fields |= {"log_every": 2, "eval_every": 12, "best_metric": "loss"}
        file = PRETRAIN
        if slow:
            file = workdir.with_name(f"{workdir.name}.py")
            file.write_text(SLOW)
        line = ["train", "--workdir", str(workdir), "--config", f"{file}:smoke,data={corpus}"]
        line += [f"--config.{name}={value}" for name, value in fields.items()]
        flags = process_environment(4 // processes) | {"JAX_PLATFORMS": "cpu"}
        coordinator_address = f"localhost:{free_port()}"
        self.processes: list[Command | subprocess.Popen[str]] = []
        for host in range(processes):
            arguments = list(line)
            if processes > 1:
                arguments += ["--coordinator-address", coordinator_address]
                arguments += ["--num-processes", str(processes), "--process-id", str(host)]
            if host == processes - 1:
                arguments += last
            if supervised:
                process = subprocess.Popen(
                    [sys.executable, "-m", "bertjax", *arguments],
                    env=flags,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            else:
                opened = workdir.with_name(f"{workdir.name}.opened.{host}")
                begin = functools.partial(become_host, opened, processes > 1)
                process = Command(*arguments, begin=begin, **flags)
            self.processes.append(process)
        self.said = [""] * processes

    def wait(self, seconds: float = LONG) -> list[int | None]:
        """The exit statuses, within so many seconds."""
        return [self.wait_for(host, seconds) for host in range(len(self.processes))]

    def wait_for(self, host: int, seconds: float = LONG) -> int | None:
        """The exit status of one, which is killed if it has none by then."""
        late = threading.Timer(seconds, self.processes[host].kill)
        late.start()
        self.said[host] += self.processes[host].communicate()[1]
        late.cancel()
        return self.processes[host].poll()

    def wait_for_step(self, step: int) -> None:
        for line in self.processes[0].stderr:
            logged = re.match(r"step ([\d,]+)/", line)
            if logged and int(logged[1]) >= step:
                return
        pytest.fail(f"no step {step}")

    def sentence(self, host: int) -> str:
        return self.said[host].splitlines()[-1]


def metrics(workdir: pathlib.Path) -> list[dict]:
    entries = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k not in TIMES} for entry in entries]


def assert_same_params(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    for a, b in zip(params_of(ours), params_of(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def assert_close(ours: pathlib.Path, theirs: pathlib.Path, tolerance: float) -> None:
    """That two runs logged the same steps with the same numbers."""
    for a, b in zip(metrics(ours), metrics(theirs), strict=True):
        assert a.keys() == b.keys() and a["split"] == b["split"]
        for name in a.keys() - {"split"}:
            assert a[name] == pytest.approx(b[name], rel=tolerance), (a["step"], name)


def params_of(workdir: pathlib.Path) -> list[np.ndarray]:
    config = read_config(find_checkpoint(workdir) / "config.json", registry.data_fields())
    shapes = jax.eval_shape(registry.objective(config).init_params, jax.random.key(0))
    target = sharded_shapes(make_mesh(1, 1, 1, jax.devices()[:1]), shapes)
    return jax.tree.map(np.asarray, jax.tree.leaves(load_params(find_checkpoint(workdir), target)))


def state_of(checkpoints: pathlib.Path, run: pathlib.Path) -> list[np.ndarray]:
    """All arrays of the newest checkpoint, on one device; `run` has the configuration."""
    config = read_config(run / "config.json", registry.data_fields())
    target = step_functions.StepFunctions(
        config, registry.objective(config), jax.devices()[:1]
    ).state
    state = Checkpointer(checkpoints).restore(target)
    return jax.tree.map(np.asarray, jax.tree.leaves(state))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def alone(corpus, runs) -> pathlib.Path:
    """A run of one process, without interruption."""
    program = Program(corpus, runs / "alone", 1)
    assert program.wait() == [0], program.sentence(0)
    return runs / "alone"


@pytest.fixture(scope="module")
def two(corpus, runs) -> pathlib.Path:
    """A run of two processes, without interruption."""
    program = Program(corpus, runs / "two", 2)
    assert program.wait() == [0, 0], program.sentence(0)
    return runs / "two"


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(alone, two) -> None:
    assert_close(two, alone, 1e-6)


@pytest.mark.slow
def test_a_process_opens_its_own_shards_alone(alone, two) -> None:
    def opened(workdir: pathlib.Path, host: int) -> set[str]:
        names = (workdir.parent / f"{workdir.name}.opened.{host}").read_text().split()
        return {name for name in names if "train" in name}

    first, second = opened(two, 0), opened(two, 1)
    assert len(first) == len(second) == 4
    assert not first & second
    assert first | second == opened(alone, 0)


@pytest.mark.slow
def test_the_loss_of_a_process_ends_the_others_and_the_same_command_goes_on(
    corpus, runs, two
) -> None:
    program = Program(corpus, runs / "killed", 2, supervised=True, slow=True)
    program.wait_for_step(14)
    while not Checkpointer(runs / "killed" / "checkpoints").all_steps():  # it is written meanwhile
        time.sleep(0.05)
    program.processes[1].kill()
    assert program.wait_for(0) == 75
    assert program.sentence(0).startswith("bertjax: ")
    assert "run the same command on all hosts" in program.sentence(0)
    again = Program(corpus, runs / "killed", 2, checkpoint_every="0.02 minutes")
    assert again.wait() == [0, 0], again.sentence(0)
    assert "going on from step 12" in again.said[1]
    assert metrics(runs / "killed") == metrics(two)
    assert_same_params(runs / "killed", two)


@pytest.mark.slow
def test_a_stop_signal_to_one_of_four_stops_all_and_another_number_goes_on(
    corpus, runs, alone
) -> None:
    program = Program(corpus, runs / "stopped", 4, slow=True)
    program.wait_for_step(14)
    program.processes[2].terminate()
    assert program.wait() == [75] * 4
    (step,) = {re.search(r"stopped at step (\d+)", program.sentence(i))[1] for i in range(4)}
    assert Checkpointer(runs / "stopped" / "checkpoints").all_steps()[-1] == int(step)
    again = Program(corpus, runs / "stopped", 1)
    assert again.wait() == [0], again.sentence(0)
    assert f"going on from step {step}" in again.said[0]
    assert_close(runs / "stopped", alone, 1e-6)


@pytest.mark.slow
def test_four_processes_open_and_save_the_state_of_one_to_the_last_bit(alone, tmp_path) -> None:
    port = free_port()
    environment = process_environment(2) | {"JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COPY, str(number), str(port), alone, tmp_path / "copy"],
            env=environment,
        )
        for number in range(4)
    ]
    assert [process.wait(LONG) for process in processes] == [0] * 4
    ours, theirs = state_of(tmp_path / "copy", alone), state_of(alone / "checkpoints", alone)
    assert len(ours) > 3 * 20  # parameters and two moments of each
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_an_error_of_one_process_ends_it_at_once_with_its_own_status(corpus, runs) -> None:
    program = Program(
        corpus, runs / "wrong", 2, supervised=True, last=["--config.data.dir=nowhere"]
    )
    assert program.wait_for(1) == 2
    assert "nowhere" in program.sentence(1)
    assert program.wait_for(0) == 75
    assert "another host is lost" in program.sentence(0)


@pytest.mark.slow
def test_hosts_that_see_no_common_workdir_are_refused_before_anything_compiles(
    corpus, runs
) -> None:
    program = Program(corpus, runs / "mine", 2, last=["--workdir", str(runs / "yours")])
    assert program.wait() == [2, 2]
    for host in range(2):
        assert "host 1 does not see what host 0 wrote there" in program.sentence(host)
        assert "compiling" not in program.said[host]
    assert not (runs / "mine" / "lock.json").exists()


def test_a_child_that_fails_does_not_wait_for_the_others(monkeypatch, capfd) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    def fail() -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(os, "_exit", end)
    for run, status in [(lambda: 2, 2), (fail, 1)]:
        with pytest.raises(SystemExit) as ended:
            distributed.run_child(run)
        assert ended.value.code == status
    assert "KeyError: 'a defect'" in capfd.readouterr().err
    for status in (0, 75):  # all hosts end so together
        assert distributed.run_child(lambda status=status: status) == status


def test_a_tpu_without_others_trains_alone(monkeypatch) -> None:
    def find_none(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", find_none)
    distributed.join(Cluster(allow_single_process=True), handles_preemption=True)
    with pytest.raises(RunError, match="did not come together"):
        distributed.join(Cluster(), handles_preemption=True)


def test_a_process_is_alone_where_nothing_speaks_of_others(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(distributed, "on_tpu", lambda: False)
    assert find_cluster(None, None, None) is None


def test_slurm_gives_a_process_all_devices_of_its_node(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x4)")
    assert find_cluster(None, None, None) == Cluster(devices=tuple(range(8)))
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "8(x4)")
    assert find_cluster(None, None, None) == Cluster()


def test_arguments_name_a_cluster() -> None:
    assert find_cluster("first:1234", 4, 3) == Cluster("first:1234", 4, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("first:1234", 4, None), "go together"),
        ((None, 4, 0), "go together"),
        (("first:1234", 4, 4), "--host=4 is none of --num-processes=4"),
        (("first:1234", 4, -1), "--host=-1 is none"),
        (("first", 4, 0), "has no port"),
    ],
)
def test_what_names_no_cluster_is_refused(arguments, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_cluster(*arguments)


@pytest.fixture
def run_in_child(monkeypatch):
    """`distributed.supervise` with a program of ours as the child."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    plain = subprocess.Popen

    def supervised(program: str) -> int:
        line = [sys.executable, "-c", program]
        monkeypatch.setattr(subprocess, "Popen", lambda _, **options: plain(line, **options))
        return distributed.run_in_child([])

    yield supervised
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [
        ("SIGABRT", 75, "run the same command on all hosts"),
        ("SIGKILL", 75, "no memory left"),
        ("SIGSEGV", 1, "a fault of the program or the machine"),
    ],
)
def test_a_child_that_a_signal_ends_says_whether_to_run_again(
    run_in_child, capfd, name: str, status: int, sentence: str
) -> None:
    assert run_in_child(f"import os, signal; os.kill(os.getpid(), signal.{name})") == status
    said = capfd.readouterr().err
    assert f"ended by {name}" in said and sentence in said


def test_a_child_has_the_time_that_it_takes_to_save(run_in_child, monkeypatch, tmp_path) -> None:
    ended: list[bool] = []
    monkeypatch.setattr(termination, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(termination, "exit_stopped", lambda: ended.append(True))
    ready = tmp_path / "ready"

    def stop() -> None:
        while not ready.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    (thread := threading.Thread(target=stop)).start()
    program = f"""if True:
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), exit(75)))
        pathlib.Path({str(ready)!r}).touch()
        time.sleep(600)
    """
    with termination.handle_signals():
        assert run_in_child(program) == 75
    thread.join()
    assert not ended


def test_hosts_are_asked_by_numbers_that_grow_whatever_the_steps_are(monkeypatch) -> None:
    """A signal before the first question stops at the one after 0; one between waves, likewise."""
    asked: list[int] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(signals, "_sync_points", itertools.count(1))
    monkeypatch.setattr(
        signals.multihost_utils, "reached_preemption_sync_point", lambda n: asked.append(n) or n > 3
    )
    for steps in ([28, 29], [1, 2]):
        with signals.stop_signals() as stop:
            found = [stop(step) for step in steps]
    assert asked == [1, 2, 3, 4] and found == [False, True]


def test_a_second_interrupt_ends_a_child_that_does_not_stop(run_in_child, tmp_path) -> None:
    ready, ended = tmp_path / "ready", threading.Event()

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.05)
        while not ended.wait(0.5):  # two that come at once are one
            os.kill(os.getpid(), signal.SIGINT)

    (thread := threading.Thread(target=interrupt)).start()
    program = "import signal, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    status = run_in_child(program + f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)")
    ended.set()
    thread.join()
    assert status == 75
