"""Processes that train together, in the roles of several machines."""

import functools
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from conftest import LONG, free_port, process_environment
from processes import Command

from bertjax.mesh.child_process import CHILD_ENV
from bertjax.workdir import lock

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
STEPS = 30


# A configuration whose steps take four seconds after step 14, so that a run does not end before a
# test interferes.
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


def become_child(
    opened: pathlib.Path, several: bool, also: Callable[[], None] | None = None
) -> None:
    """Make the process a child of `supervise_child` and log the shards it opens."""

    def log(event: str, arguments: tuple) -> None:
        if event == "open" and str(arguments[0]).endswith(".tokens"):
            with opened.open("a") as file:
                print(os.path.basename(str(arguments[0])), file=file)

    sys.addaudithook(log)
    lock.VISIBILITY_TIMEOUT_SECONDS = 1
    if several:
        os.environ[CHILD_ENV] = str(os.getppid())
    if also:
        also()


class Program:
    """Processes that train together, four simulated devices in all."""

    def __init__(
        self,
        corpus: pathlib.Path,
        workdir: pathlib.Path,
        processes: int,
        *,
        supervised: bool = False,  # each with a parent process, as from a shell
        last_arguments: Sequence[str] = (),  # further arguments of the last process
        checkpoint_every: int | str = 12,
        slow: bool = False,
        begin_last: Callable[[], None] | None = None,  # called first in the last process
        **fields: object,
    ) -> None:
        defaults = {"model.vocab_size": 128, "model.num_hidden_layers": 1, "model.dtype": "float32"}
        defaults |= {"steps": STEPS, "checkpoint_every": checkpoint_every}
        fields = defaults | {"log_every": 2, "eval_every": 12, "best_metric": "loss"} | fields
        file = PRETRAIN
        if slow:
            file = workdir.with_name(f"{workdir.name}.py")
            file.write_text(SLOW)
        line = ["train", "--workdir", str(workdir), "--config", f"{file}:smoke,data={corpus}"]
        line += [f"--config.{name}={value}" for name, value in fields.items()]
        flags = process_environment(4 // processes) | {"JAX_PLATFORMS": "cpu"}
        coordinator_address = f"localhost:{free_port()}"
        self.processes: list[Command | subprocess.Popen[str]] = []
        for process_id in range(processes):
            arguments = list(line)
            if processes > 1:
                arguments += ["--coordinator-address", coordinator_address]
                arguments += ["--num-processes", str(processes), "--process-id", str(process_id)]
            if process_id == processes - 1:
                arguments += last_arguments
            if supervised:
                process = subprocess.Popen(
                    [sys.executable, "-m", "bertjax", *arguments],
                    env=flags,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            else:
                opened = workdir.with_name(f"{workdir.name}.opened.{process_id}")
                is_last = process_id == processes - 1
                also = begin_last if is_last else None
                begin = functools.partial(become_child, opened, processes > 1, also)
                process = Command(*arguments, begin=begin, **flags)
            self.processes.append(process)
        self.stderr = [""] * processes

    def wait(self) -> list[int | None]:
        """Return the exit statuses."""
        return [self.wait_for(process_id) for process_id in range(len(self.processes))]

    def wait_for(self, process_id: int) -> int | None:
        """Return the exit status of a process."""
        self.stderr[process_id] += self.processes[process_id].communicate(timeout=LONG)[1]
        return self.processes[process_id].poll()

    def wait_for_step(self, step: int) -> None:
        for line in self.processes[0].stderr:
            logged = re.match(r"step ([\d,]+)/", line)
            if logged and int(logged[1]) >= step:
                return
        pytest.fail(f"no step {step}")

    def sentence(self, process_id: int) -> str:
        return self.stderr[process_id].splitlines()[-1]
