"""Tests of the memory budget: what does not fit is rejected with a fix that does."""

import functools
import os
import pathlib
import re
import resource
from types import SimpleNamespace

import jax
import numpy as np
import pretraining_runs
import pytest
from config_loading import PRETRAIN
from processes import Command

from bertjax.cli import report
from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.memory import available_host_memory, failed_allocation_bytes
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import TrainState
from bertjax.training import memory_budget
from bertjax.training.memory_budget import (
    MemoryBudget,
    OutOfMemoryError,
    check_evaluation,
    memory_fixes,
)
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError

make_run_config = functools.partial(
    pretraining_runs.make_run_config, batch_size=64, model__num_hidden_layers=1
)
MIB = 2**20
CPU = "INTERNAL: Error dispatching computation: Out of memory allocating 30150751720 bytes."
GPU = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 bytes."
TPU = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm."
VMEM = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 16.40M of 16.00M vmem."


def test_failed_allocation_bytes_counts_no_vmem() -> None:
    assert failed_allocation_bytes(RuntimeError(VMEM)) is None


def test_failed_allocation_bytes_reads_the_errors_of_every_backend() -> None:
    sizes = [
        failed_allocation_bytes(RuntimeError(text)) for text in (CPU, GPU, TPU, "INTERNAL: a fault")
    ]
    assert sizes == [30150751720, MIB, round(20.5 * 1024 * MIB), None]


@pytest.mark.parametrize(
    ("is_cpu", "overrides"),
    [
        (
            True,
            ["--config.gradient_accumulation_steps=4", "--config.gradient_accumulation_steps=8"],
        ),
        (
            False,
            [
                "--config.model.remat=True",
                "--config.model.remat=True --config.gradient_accumulation_steps=4",
            ],
        ),
    ],
)
def test_memory_fixes_come_mildest_first(is_cpu, overrides, corpus) -> None:
    config = make_run_config(corpus, batch_size=64, gradient_accumulation_steps=2)
    fixes = dict(memory_fixes(config, 4, is_cpu))
    assert list(fixes)[:2] == overrides and list(fixes)[-1].endswith(
        "--config.gradient_accumulation_steps=16"
    )
    assert all(isinstance(fixed, Config) for fixed in fixes.values())


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(4, []), (12, [3]), (24, [2, 6]), (40, [2, 5, 10]), (96, [2, 4, 8, 24])],
)
def test_memory_fixes_end_with_one_sequence_at_a_time(batch_size, expected, corpus) -> None:
    """Whatever divides the batch, at most half as many at a time as before."""
    config = make_run_config(corpus, batch_size=batch_size)
    fixes = [fixed for _, fixed in memory_fixes(config, 4, is_cpu=True)]
    assert [fixed.gradient_accumulation_steps for fixed in fixes] == expected


def test_available_host_memory_is_what_limits_leave(monkeypatch) -> None:
    whole = available_host_memory()
    assert 0 < whole < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr("bertjax.mesh.memory._cgroup_limits", lambda: iter([whole // 2]))
    assert available_host_memory() < whole // 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MIB, MIB))
    assert available_host_memory() == 0


@pytest.mark.seconds
def test_check_state_rejects_a_state_that_does_not_fit_before_compilation(
    corpus, tmp_path, monkeypatch, compilations
) -> None:
    monkeypatch.setattr(memory_budget, "device_memory_limit", lambda _: MIB // 8)
    with pytest.raises(
        InputError, match=r"optimizer need .* MiB a device, of which 0\.1 MiB are free"
    ):
        make_trainer(make_run_config(corpus), tmp_path / "run")
    assert not compilations and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_check_step_suggests_a_step_that_fits(corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(MemoryBudget, "_device_limit", lambda budget: 3 * budget.step_bytes // 4)
    fix = r"a step needs .* are free\. It fits with --config\.gradient_accumulation_steps=(2|4|8),"
    with pytest.raises(InputError, match=fix):
        make_trainer(make_run_config(corpus, batch_size=256), tmp_path).train()


@pytest.mark.minutes
def test_check_step_is_about_the_largest_batch_of_a_rampup(corpus, tmp_path, monkeypatch) -> None:
    sizes: list[int] = []

    def reject(budget: MemoryBudget) -> None:
        sizes.append(budget.step_bytes)
        raise InputError("enough is known")

    monkeypatch.setattr(MemoryBudget, "check_step", reject)
    for rampup in (1, 8):
        with pytest.raises(InputError, match="enough is known"):
            make_trainer(
                make_run_config(corpus, batch_size_rampup=rampup), tmp_path / str(rampup)
            ).train()
    assert sizes[0] == sizes[1]


def test_check_evaluation_suggests_a_batch_size() -> None:
    mesh = make_mesh(8, 1, 1)
    step_functions = SimpleNamespace(memory_bytes={"eval_step": 100 * MIB}, mesh=mesh)
    objective = SimpleNamespace(eval_batch_size=64)
    check_evaluation(step_functions, objective, reserved_bytes=10 * MIB, limit=110 * MIB)
    fix = (
        r"needs 0\.11 GiB a device, of which 30\.0 MiB are free\. Use --config\.eval_batch_size=16"
    )
    with pytest.raises(InputError, match=fix):
        check_evaluation(step_functions, objective, reserved_bytes=10 * MIB, limit=30 * MIB)


def device_arrays(num_bytes: int) -> jax.ShapeDtypeStruct:
    """Return the shape of bytes that every device has."""
    sharding = jax.NamedSharding(make_mesh(8, 1, 1), jax.P())
    return jax.ShapeDtypeStruct((num_bytes,), np.uint8, sharding=sharding)


def make_budget(config: Config, teacher_bytes: int = 0, num_runs: int = 1) -> MemoryBudget:
    """Return the budget of 10 MiB of parameters, 20 of moments and a teacher on accelerators."""
    params, constants = device_arrays(10 * MIB), device_arrays(MIB)
    step_functions = SimpleNamespace(
        mesh=make_mesh(8, 1, 1),
        param_shapes=params,
        state_shapes=TrainState((), params, device_arrays(20 * MIB), {}),
        constant_shapes=constants,
        train_constant_shapes={"task": constants, "teacher": device_arrays(teacher_bytes)},
        memory_bytes={"eval_step": 60 * MIB},
    )
    budget = MemoryBudget(config, SimpleNamespace(eval_batch_size=64), step_functions, num_runs)
    budget._is_cpu, budget._copy_bytes = False, 0
    return budget


def test_check_evaluation_counts_a_teacher(corpus, monkeypatch) -> None:
    monkeypatch.setattr(MemoryBudget, "_device_limit", lambda budget: 90 * MIB)
    config = make_run_config(corpus)
    make_budget(config, teacher_bytes=9 * MIB).check_evaluation()
    with pytest.raises(InputError, match=r"an evaluation needs 100\.0 MiB a device"):
        make_budget(config, teacher_bytes=20 * MIB).check_evaluation()


@pytest.mark.parametrize(
    ("remat", "limit", "fix"),
    [
        # 30 MiB of state and 30 of gradients, and 240 of activations that microbatches divide.
        (
            False,
            200,
            r"An estimate fits with --config\.model\.remat=True --config\.grad\S+=2; check",
        ),
        (
            False,
            130,
            r"An estimate fits with --config\.model\.remat=True --config\.grad\S+=4; check",
        ),
        (
            True,
            130,
            r"An estimate fits with --config\.gradient_accumulation_steps=4; check it with",
        ),
        # Without remat the smallest microbatch needs 90 MiB, with it less.
        (False, 80, r"Try --config\.model\.remat=True --config\.grad\S+=8; check it with"),
        (True, 80, r"Even one sequence at a time does not fit"),
        (False, 50, r"Even one sequence at a time does not fit"),
    ],
)
def test_suggest_fix_without_compilations_claims_an_estimate_only_with_one(
    corpus, remat: bool, limit: int, fix: str
) -> None:
    """Nothing is compiled with several processes, or several runs in one program."""
    budget = make_budget(make_run_config(corpus, model__remat=remat), num_runs=2)
    assert re.match(fix, budget.suggest_fix(limit * MIB, 270 * MIB))


def test_suggest_fix_without_microbatches_names_remat(corpus) -> None:
    budget = make_budget(make_run_config(corpus, batch_size=8), num_runs=2)
    expected = "Try --config.model.remat=True; check it with `bertjax preflight`."
    assert budget.suggest_fix(200 * MIB, 270 * MIB) == expected


@pytest.mark.slow
def test_out_of_memory_error_of_a_device_suggests_a_fix(corpus, tmp_path, monkeypatch) -> None:
    def train(self, rows=None):
        monkeypatch.undo()  # the search for a fix compiles
        self.memory_bytes["train_step"] = 6 * MIB
        raise jax.errors.JaxRuntimeError(CPU)

    monkeypatch.setattr(StepFunctions, "compile_train_step", train)
    with pytest.raises(
        OutOfMemoryError, match=r"allocating 28\.08 GiB on a device failed\. It fits with"
    ) as ended:
        make_trainer(make_run_config(corpus), tmp_path).train()
    assert ended.value.status == 1


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError(GPU)], ids=repr)
def test_every_command_reports_out_of_memory(
    error: Exception, monkeypatch, capsys, tmp_path
) -> None:
    def run(args: object) -> None:
        raise error

    monkeypatch.setattr(report, "run", run)
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("bertjax: out of memory")


def limit_addresses() -> None:
    """Limit addresses as `ulimit -v` does, to somewhat more than the process has.

    XLA reserves stacks of threads for every core, so there are two of these.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + 8 * 2**28
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@pytest.mark.minutes
def test_suggested_fix_works_with_limited_addresses(corpus, tmp_path) -> None:
    fields = {"model.vocab_size": 128, "data.workers": 1, "batch_size": 768, "max_seq_length": 128}
    fields |= {"eval_batch_size": 8, "steps": 1, "optimizer.warmup": 0}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    spec = f"{PRETRAIN}:smoke,data={corpus}"
    arguments = ["train", "--config", spec, "--workdir", tmp_path / "run", *flags]
    rejected = Command(*arguments, begin=limit_addresses)
    _, stderr = rejected.communicate()
    fix = re.search(
        r"bertjax: a step needs .* It fits with (--config\S+), which needs .*\.$", stderr
    )
    assert rejected.poll() == 2 and fix and "Traceback" not in stderr, stderr
    fixed = Command(*arguments, fix[1], begin=limit_addresses)
    _, stderr = fixed.communicate()
    assert fixed.poll() == 0, stderr
