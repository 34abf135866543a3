"""Memory that does not suffice is a sentence with a change that makes it suffice."""

import os
import pathlib
import re
import resource
from types import SimpleNamespace

import jax
import pytest
from processes import Command

import bertjax.training.memory_budget as memory
from bertjax.cli import report
from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.mesh.memory import available_host_memory, failed_allocation_bytes
from bertjax.mesh.sharding import make_mesh
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.training.memory_budget import MemoryBudget, OutOfMemoryError, check_evaluation, smaller
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
MIB = 2**20
CPU = "INTERNAL: Error dispatching computation: Out of memory allocating 30150751720 bytes."
GPU = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 bytes."
TPU = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm."


def make_run_config(corpus: pathlib.Path, **overrides: object) -> Config:
    fields = {
        "model.vocab_size": 128,
        "data.workers": 1,
        "batch_size": 64,
        "model.num_hidden_layers": 1,
    }
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    texts = {name: str(value) for name, value in fields.items()}
    return load_config(f"{PRETRAIN}:smoke,data={corpus}", texts, registry.data_fields())


def test_bytes_are_read_from_what_compilers_and_devices_say() -> None:
    found = [
        failed_allocation_bytes(RuntimeError(text)) for text in (CPU, GPU, TPU, "INTERNAL: a fault")
    ]
    assert found == [30150751720, MIB, round(20.5 * 1024 * MIB), None]


@pytest.mark.parametrize(
    ("is_traced_for_cpu", "changes"),
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
def test_changes_come_the_mildest_first_to_a_row_at_a_time(
    is_traced_for_cpu, changes, corpus
) -> None:
    config = make_run_config(corpus, batch_size=64, gradient_accumulation_steps=2)
    found = [text for text, _ in smaller(config, 4, is_traced_for_cpu)]
    assert found[:2] == changes and found[-1].endswith("--config.gradient_accumulation_steps=16")
    assert all(isinstance(each, Config) for _, each in smaller(config, 4, is_traced_for_cpu))


def test_the_room_is_what_limits_leave(monkeypatch) -> None:
    whole = available_host_memory()
    assert 0 < whole < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr("bertjax.mesh.memory._cgroup_limits", lambda: iter([whole // 2]))
    assert available_host_memory() < whole // 2
    monkeypatch.setattr(resource, "getrlimit", lambda _: (MIB, MIB))
    assert available_host_memory() == 0


def test_a_state_that_does_not_fit_is_refused_before_anything_compiles(
    corpus, tmp_path, monkeypatch, compilations
) -> None:
    monkeypatch.setattr(memory, "device_memory_limit", lambda _: MIB // 8)
    with pytest.raises(InputError, match=r"optimizer need .* MiB a device, and 0\.1 MiB are left"):
        make_trainer(make_run_config(corpus), tmp_path / "run")
    assert not compilations and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_refused_with_one_that_does(
    corpus, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(MemoryBudget, "_device_limit", lambda need: 3 * need.step // 4)
    said = r"a step needs .* are left there: with --config\.accumulation=(2|4|8) it needs .* fits"
    with pytest.raises(InputError, match=said):
        make_trainer(make_run_config(corpus, batch_size=256), tmp_path).train()


@pytest.mark.slow
def test_of_batches_that_grow_the_largest_is_to_fit(corpus, tmp_path, monkeypatch) -> None:
    taken: list[int] = []

    def refuse(need: MemoryBudget) -> None:
        taken.append(need.step)
        raise InputError("enough is known")

    monkeypatch.setattr(MemoryBudget, "check_step", refuse)
    for rampup in (1, 8):
        with pytest.raises(InputError, match="enough is known"):
            make_trainer(
                make_run_config(corpus, batch_size_rampup=rampup), tmp_path / str(rampup)
            ).train()
    assert taken[0] == taken[1]


def test_an_evaluation_that_does_not_fit_is_refused_with_its_rows() -> None:
    mesh = make_mesh(8, 1, 1)
    programs = SimpleNamespace(memory_bytes={"eval_step": 100 * MIB}, mesh=mesh)
    objective = SimpleNamespace(eval_batch_size=64)
    check_evaluation(programs, objective, reserved_bytes=10 * MIB, limit=110 * MIB)
    said = (
        r"needs 0\.11 GiB a device, and 30\.0 MiB are .*: --config\.eval_batch_size=16 should fit"
    )
    with pytest.raises(InputError, match=said):
        check_evaluation(programs, objective, reserved_bytes=10 * MIB, limit=30 * MIB)


@pytest.mark.slow
def test_devices_that_run_out_end_a_run_with_a_sentence(corpus, tmp_path, monkeypatch) -> None:
    def train(self, rows=None):
        monkeypatch.undo()  # what is tried is compiled
        self.memory_bytes["train_step"] = 6 * MIB
        raise jax.errors.JaxRuntimeError(CPU)

    monkeypatch.setattr(StepFunctions, "compile_train_step", train)
    with pytest.raises(
        OutOfMemoryError, match=r"28\.08 GiB could not be had of a device: .* fits"
    ) as ended:
        make_trainer(make_run_config(corpus), tmp_path).train()
    assert ended.value.status == 1


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError(GPU)], ids=repr)
def test_any_command_that_runs_out_says_so(error: Exception, monkeypatch, capsys) -> None:
    def run(args: object) -> None:
        raise error

    monkeypatch.setattr(report, "run", run)
    assert main(["report", "x"]) == 1
    assert capsys.readouterr().err.startswith("bertjax: memory does not suffice")


def limit_addresses() -> None:
    """As `ulimit -v`: somewhat more than the process has."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + 7 * 2**28
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@pytest.mark.slow
def test_where_addresses_are_limited_the_cure_works(corpus, tmp_path) -> None:
    fields = {"model.vocab_size": 128, "data.workers": 1, "batch_size": 768, "max_seq_length": 128}
    fields |= {"eval_batch_size": 8, "steps": 1, "optimizer.warmup": 0}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    spec = f"{PRETRAIN}:smoke,data={corpus}"
    given = ["train", "--config", spec, "--workdir", tmp_path / "run", *flags]
    refused = Command(*given, begin=limit_addresses)
    _, said = refused.communicate()
    suggest_fix = re.search(
        r"bertjax: a step needs .* with (--config\S+) it needs .* fits\.$", said
    )
    assert refused.poll() == 2 and suggest_fix and "Traceback" not in said, said
    cured = Command(*given, suggest_fix[1], begin=limit_addresses)
    _, said = cured.communicate()
    assert cured.poll() == 0, said
