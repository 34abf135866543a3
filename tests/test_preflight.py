"""Preflight: memory, collectives and estimates of a run, and the search for what fits."""

import dataclasses
import importlib.util
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from config_loading import PRETRAIN, load
from conftest import run_python
from model_files import write_hf
from random_models import draw_model

from bertjax.config.config import Config
from bertjax.errors import CommandError
from bertjax.formats.stored_logits import LogitsWriter, StoredClasses
from bertjax.mesh.memory import format_bytes
from bertjax.model.bert import init_params
from bertjax.model.bert_config import BertConfig
from bertjax.preflight import analysis
from bertjax.preflight.analysis import preflight
from bertjax.preflight.estimates import estimate_tpu
from bertjax.preflight.hlo import InstructionCost
from bertjax.preflight.report import PreflightReport, ProgramReport, format_report
from bertjax.preflight.search import suggested_fixes
from bertjax.preflight.topology import Topology
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry

EIGHT_CPUS = Topology("cpu:8")

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'bertjax[tpu]'",
)


def make_config(**overrides: object) -> Config:
    return load("smoke", **{"model.vocab_size": 1000, "batch_size": 16} | overrides)


def count_parameters(vocab_size: int, layers: int, hidden: int) -> tuple[int, int]:
    """Return the numbers in matrices and in vectors of a BERT with both heads."""
    block = 12 * hidden**2
    matrices = (vocab_size + 512 + 2) * hidden + layers * block + 2 * hidden**2 + 2 * hidden
    block_vectors = 4 * hidden + 4 * hidden + hidden + 4 * hidden
    vectors = 2 * hidden + layers * block_vectors + (3 * hidden + vocab_size) + hidden + 2
    return matrices, vectors


MATRICES, VECTORS = count_parameters(1000, 2, 64)


@pytest.fixture(scope="module")
def data_parallel():
    return preflight(make_config(), EIGHT_CPUS)


@pytest.mark.slow
def test_preflight_reports_the_shards_of_parameters_and_optimizer(data_parallel) -> None:
    assert data_parallel.parameter_bytes == 4 * (MATRICES // 8 + VECTORS)
    assert data_parallel.optimizer_bytes == 2 * data_parallel.parameter_bytes + 2 * 4


@pytest.mark.slow
def test_preflight_counts_one_gather_of_matrices_and_one_sum_of_gradients(data_parallel) -> None:
    kinds = data_parallel.train.collectives
    summed = sum(kinds[kind]["bytes"] for kind in kinds if "reduce" in kind)
    # Gradients of position and token type embeddings are not summed: an all-to-all sends each
    # device some features of all sequences, for its shard of these tables.
    gradients = 4 * (MATRICES - (512 + 2) * 64 + VECTORS)
    assert kinds["all-to-all"]["bytes"] == 4 * (16 // 8) * 32 * 64
    # Losses and the gradient norm are summed too.
    assert gradients <= summed < gradients + 1000
    assert kinds["all-gather"]["bytes"] == pytest.approx(4 * MATRICES, rel=0.1)


@pytest.mark.slow
def test_preflight_counts_no_sum_of_frozen_gradients(data_parallel) -> None:
    frozen = {"optimizer.frozen_layers": 2, "optimizer.layerwise_lr_decay": 0.9}
    report = preflight(make_config(**frozen), EIGHT_CPUS)
    assert report.fits and report.evaluation.fits and report.prediction.fits
    assert report.parameter_bytes == data_parallel.parameter_bytes
    assert report.optimizer_bytes == data_parallel.optimizer_bytes
    kinds = report.train.collectives
    summed = sum(kinds[kind]["bytes"] for kind in kinds if "reduce" in kind)
    # Only the heads have gradients: the bias of the MLM head has vocab_size numbers.
    assert summed < 4 * (2 * 64**2 + 8 * 64 + 1000) + 1000


def test_preflight_rejects_too_many_frozen_layers() -> None:
    with pytest.raises(ValueError, match="frozen_layers=3: the model has 2 blocks"):
        preflight(make_config(**{"optimizer.frozen_layers": 3}), EIGHT_CPUS)


@pytest.mark.slow
def test_preflight_counts_gathers_of_fully_sharded_parameters() -> None:
    report = preflight(make_config(**{"mesh.data": 1, "mesh.fsdp": 8}), EIGHT_CPUS)
    assert report.parameter_bytes == 4 * (MATRICES // 8 + VECTORS)
    # Each matrix is gathered once or twice: forward, or backward too.
    gathered = report.train.collectives["all-gather"]["bytes"]
    assert 0.8 * 4 * MATRICES < gathered < 2.2 * 4 * MATRICES


@pytest.mark.slow
def test_format_report_begins_with_the_step_that_does_not_fit(data_parallel) -> None:
    for name in ("evaluation", "prediction"):
        step = dataclasses.replace(getattr(data_parallel, name), fits=False)
        text = format_report(dataclasses.replace(data_parallel, fits=False, **{name: step}))
        first_line = text.split("\n")[0]
        assert first_line.startswith("does NOT fit cpu:8: the train step fits, ")
        assert name in first_line


@pytest.mark.slow
def test_preflight_model_flops_follow_the_closed_formula(data_parallel) -> None:
    config = make_config()
    batch_size, tokens, hidden = config.batch_size, config.max_seq_length, 64
    block = tokens * 12 * hidden**2 + 2 * tokens**2 * hidden
    heads = 5 * hidden * (hidden + 1000) + 2 * hidden * (hidden + 2)
    skipped = (tokens - 7) * 9 * hidden**2  # after the last block's attention, no head reads them
    assert data_parallel.train.model_flops == 6 * batch_size * (2 * block - skipped + heads)


@pytest.mark.slow
def test_to_json_and_format_report_agree(data_parallel) -> None:
    values = json.loads(data_parallel.to_json())
    assert values["fits"] and values["chips"] == 8 and values["steps"] == 20
    assert values["train"]["estimated_cycles"] is None  # the TPU compiler alone estimates them
    text = format_report(data_parallel)
    assert text.startswith("fits cpu:8")
    assert values["attention"] == "cpu, one sequence at a time" and values["attention"] in text
    assert "Known" in text and "Estimated" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "is_bound"), [("v5e:4x2", False), ("v6e:4x2", True)])
def test_format_report_calls_estimates_upper_bounds_where_products_are_overcharged(
    data_parallel, topology, is_bound
) -> None:
    train = dataclasses.replace(
        data_parallel.train,
        estimated_step_seconds=1.0,
        estimated_mfu=0.5,
        estimated_cycle_shares={},
    )
    text = format_report(dataclasses.replace(data_parallel, topology=topology, train=train))
    assert ("an upper bound: " in text) is is_bound


@pytest.mark.parametrize(
    ("rampup", "expected"),
    [
        (1, "20.00 days, 3,840 chip-hours"),
        # Batches of 8, 16 and 32 sequences: 7 twelfths of the full batch.
        (4, "11.67 days, 2,240 chip-hours, the steps of smaller batches in proportion to their"),
    ],
)
def test_format_report_counts_the_smaller_batches_of_a_ramp_up(
    rampup: int, expected: str, monkeypatch
) -> None:
    train = ProgramReport(
        fits=True,
        per_device_batch_size=4,
        hbm_bytes=0,
        model_flops=0,
        compile_seconds=0,
        estimated_step_seconds=86_400.0,
        estimated_mfu=0.5,
    )
    monkeypatch.setattr("bertjax.preflight.analysis._analyze_function", lambda *_: train)
    config = make_config(batch_size=32, batch_size_rampup=rampup, steps=20)
    report = preflight(config, EIGHT_CPUS, train_only=True)
    assert f"  20 steps         {expected}" in format_report(report)


def test_estimate_tpu_charges_kernels_at_the_peaks_of_the_chip() -> None:
    device = SimpleNamespace(device_kind="TPU v5 lite")  # 197 TFLOP/s, 819 GB/s, 1.5 GHz
    name = "jit(step)/blocks/attention/pallas_call"
    costs = [
        InstructionCost(name, 24, 0, flops=197_000_000, bytes=1),  # a microsecond
        InstructionCost(name, 1, 0, flops=1, bytes=8_190_000),  # ten microseconds
        InstructionCost("jit(step)/blocks/feed_forward/dot", 24, 1000),
        InstructionCost(name, 1, 500, flops=197_000_000, bytes=1),  # compiler's estimate
    ]
    estimates = estimate_tpu(Topology("v5e:2x2"), [device] * 4, costs, 0, 1e9)
    assert estimates["custom_kernel_cycles"] == 24 * 1500 + 15_000
    assert estimates["estimated_cycles"] == estimates["custom_kernel_cycles"] + 24 * 1000 + 500
    share = estimates["estimated_cycle_shares"]["feed-forward"]
    assert share == 24_000 / estimates["estimated_cycles"]


def test_estimate_tpu_counts_both_devices_of_a_chip() -> None:
    devices = [SimpleNamespace(device_kind="TPU7x")] * 8  # of four chips, 1,153.5 TFLOP/s each
    costs = [InstructionCost("jit(step)/attention/kernel", 1, 0, flops=1_153_500_000, bytes=1)]
    estimates = estimate_tpu(Topology("tpu7x:2x2x1"), devices, costs, 0, 8 * 1_153_500_000)
    assert estimates["estimated_cycles"] == 2200  # a microsecond
    assert estimates["estimated_mfu"] == pytest.approx(1)


def test_preflight_rejects_a_mesh_of_other_size() -> None:
    with pytest.raises(ValueError, match="does not fit 8 devices"):
        preflight(make_config(**{"mesh.data": 4}), EIGHT_CPUS)


def test_preflight_reports_a_program_that_exceeds_vmem(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory "
            "space vmem while allocating on stack for %fusion.704 = (bf16[768,768]{1,0})"
        )

    monkeypatch.setattr(StepFunctions, "compile_train_step", fail)
    with pytest.raises(CommandError, match="topology=cpu:8: the TPU compiler exceeds VMEM"):
        preflight(make_config(), EIGHT_CPUS, train_only=True)


@pytest.mark.minutes
def test_suggested_fixes_need_less_memory_each(monkeypatch) -> None:
    monkeypatch.setattr("bertjax.preflight.topology.available_host_memory", lambda: 8 * 2**20)
    config = make_config(batch_size=64)
    report = preflight(config, EIGHT_CPUS, train_only=True)
    assert not report.fits and report.hbm_limit_bytes == 2**20
    assert format_report(report).startswith("does NOT fit cpu:8")
    fixes = dict(suggested_fixes(config, EIGHT_CPUS))
    assert [*fixes] == [
        "--config.gradient_accumulation_steps=2",
        "--config.gradient_accumulation_steps=4",
        "--config.gradient_accumulation_steps=8",
    ]
    sizes = [fixed.train.hbm_bytes for fixed in fixes.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] < report.train.hbm_bytes


def test_preflight_rejects_negative_parallel_runs(refused) -> None:
    command = ("preflight", "--config", f"{PRETRAIN}:smoke", "--topology", "cpu:8")
    message = "--parallel-runs=-1: is negative. Use 0 for a single run."
    assert refused(*command, "--parallel-runs=-1") == message


def test_preflight_rejects_parallel_runs_that_no_sweep_trains(refused) -> None:
    command = ("preflight", "--config", f"{PRETRAIN}:smoke", "--topology", "cpu:8")
    fields = ("--config.batch_size=8", "--config.batch_size_rampup=2")
    message = refused(*command, *fields, "--parallel-runs=2")
    assert message.startswith("batch_size_rampup=2: a sweep trains several runs in one program")


@pytest.mark.slow
@needs_tpu_compiler
def test_preflight_compiles_for_a_tpu_slice(tmp_path) -> None:
    arguments = [
        *("preflight", "--config", f"{PRETRAIN}:model=12-128", "--topology", "v5e:4x4"),
        *("--config.batch_size=512", "--config.model.scan_layers=True"),
        *("--config.model.vocab_size=1024", "--json", str(tmp_path / "report.json")),
    ]
    run_python(f"from bertjax.cli.main import main; assert main({arguments!r}) == 0")
    report = json.loads((tmp_path / "report.json").read_text())
    train = report["train"]
    assert report["fits"] and report["chips"] == 16
    matrices, vectors = count_parameters(1024, 12, 128)
    assert report["parameter_bytes"] == 4 * (matrices // 16 + vectors)
    # Matrices are sent in bfloat16, two bytes a number.
    gathered = train["collectives"]["all-gather"]["bytes"]
    assert gathered == pytest.approx(2 * matrices, rel=0.1)
    assert 0 < train["estimated_mfu"] < 1
    # The attention kernel.
    assert 0 < train["custom_kernel_cycles"] < 0.3 * train["estimated_cycles"]
    assert sum(train["estimated_cycle_shares"].values()) == pytest.approx(1)


@pytest.mark.minutes
@needs_tpu_compiler
def test_preflight_counts_the_reduce_scatters_of_tpu7x() -> None:
    program = f"""
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.config.loading import load_config
fields = {{"model.vocab_size": "1024", "batch_size": "128", "model.scan_layers": "True"}}
config = load_config("{PRETRAIN}:model=2-256", fields, registry.data_fields())
print(preflight(config, Topology("tpu7x:2x2x1"), train_only=True).to_json())
"""
    report = json.loads(run_python(program))
    assert report["fits"] and (report["chips"], report["devices"]) == (4, 8)
    assert report["attention"] == "tpu kernel"
    matrices, vectors = count_parameters(1024, 2, 256)
    assert report["parameter_bytes"] == 4 * (matrices // 8 + vectors)
    collectives = report["train"]["collectives"]
    assert collectives["all-gather"]["bytes"] == pytest.approx(2 * matrices, rel=0.1)
    scattered = collectives["reduce-scatter"]
    assert scattered["bytes"] > 2 * 2 * 12 * 256**2  # at least the gradients of both layers
    assert scattered["bytes_sent"] == pytest.approx(scattered["bytes"] * 7 / 8)
    assert report["train"]["estimated_collective_seconds"] > 0


@pytest.mark.minutes
@needs_tpu_compiler
def test_preflight_compiles_for_sixty_four_chips() -> None:
    report = json.loads(
        run_python(
            f"""
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.config.loading import load_config
fields = {{"model.vocab_size": "1024", "batch_size": "2048", "model.scan_layers": "True"}}
config = load_config("{PRETRAIN}:model=2-128", fields, registry.data_fields())
print(preflight(config, Topology("v6e:8x8"), train_only=True).to_json())
"""
        )
    )
    assert report["fits"] and report["chips"] == 64
    matrices, vectors = count_parameters(1024, 2, 128)
    assert report["parameter_bytes"] == 4 * (matrices // 64 + vectors)
    assert 0 < report["train"]["estimated_mfu"] < 1


@pytest.mark.minutes
@needs_tpu_compiler
def test_preflight_prints_a_fix_that_fits(tmp_path) -> None:
    arguments = [
        # Activations of many scanned layers fill the memory, and one layer is compiled.
        *("preflight", "--config", f"{PRETRAIN}:model=1000-128", "--topology", "v5e:2x2"),
        *("--config.batch_size=128", "--config.model.scan_layers=True"),
        *("--config.model.vocab_size=1024", "--json", str(tmp_path / "report.json")),
    ]
    text = run_python(f"from bertjax.cli.main import main; assert main({arguments!r}) == 0")
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["fits"] and report["train"]["hbm_bytes"] > report["hbm_limit_bytes"]
    assert text.startswith("does NOT fit v5e:2x2")
    assert text.splitlines()[-1].startswith("with --config.model.remat=True")
    assert ": fits v5e:2x2" in text.splitlines()[-1]


@pytest.mark.seconds
def test_preflight_counts_a_teacher_beside_an_evaluation(tmp_path, monkeypatch) -> None:
    reserved: list[int] = []

    def analyze(*arguments: object) -> ProgramReport:
        reserved.append(arguments[-1])
        figures = {"hbm_bytes": 0, "model_flops": 0.0, "compile_seconds": 0.0}
        return ProgramReport(fits=True, per_device_batch_size=1, **figures)

    monkeypatch.setattr(analysis, "_analyze_function", analyze)
    teacher = BertConfig(1000, 3, 128, 2, max_position_embeddings=512)
    model = write_hf(draw_model(teacher, None, "pooler", "mlm", "nsp"), tmp_path / "teacher")
    plain = preflight(make_config(), Topology("cpu:1"))
    online = preflight(make_config(**{"distill.teacher": model}), Topology("cpu:1"))
    added = [after - before for before, after in zip(reserved[:3], reserved[3:], strict=True)]
    state = added[0]  # sums of the losses of distillation
    assert plain.teacher_bytes == 0 < online.teacher_bytes
    assert added == [state, state + online.teacher_bytes, 0]


@pytest.mark.slow
def test_preflight_counts_a_teacher_and_none_with_stored_logits(tmp_path) -> None:
    teacher = BertConfig(1000, 3, 128, 2, max_position_embeddings=512)
    parts = ("pooler", "mlm", "nsp")
    model = write_hf(draw_model(teacher, None, *parts), tmp_path / "teacher")
    classes = {"mlm": StoredClasses(1000, 8), "nsp": StoredClasses(2, 0)}
    part = {"digests": np.zeros((1, 16), np.uint8)}
    for name, head in classes.items():
        part[f"{name}.counts"] = np.ones(1, np.int32)
        part[f"{name}.logits"] = np.zeros((1, head.width), np.float32)
    with (tmp_path / "logits").open("wb") as file:
        LogitsWriter("teacher", "digest", (), "words", classes).write(file, lambda: iter([part]))

    def report(**overrides: object) -> PreflightReport:
        return preflight(make_config(**overrides), Topology("cpu:1"), train_only=True)

    plain = report()
    online = report(**{"distill.teacher": model})
    stored = report(**{"distill.logits": tmp_path / "logits", "data.dupe_factor": 1})
    shapes = jax.eval_shape(lambda: init_params(teacher, ("mlm", "nsp"), jax.random.key(0)))
    num_bytes = 4 * sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert online.teacher_bytes == num_bytes
    assert online.train.hbm_bytes >= plain.train.hbm_bytes + num_bytes
    assert f"  teacher          {format_bytes(num_bytes)} a device" in format_report(online)
    objective = registry.make_objective(make_config())
    objective.config = dataclasses.replace(objective.config, model=teacher)
    flops = objective.forward_flops(16)
    assert online.train.model_flops == plain.train.model_flops + flops
    assert stored.teacher_bytes == 0 and "teacher" not in format_report(stored)
    assert stored.train.model_flops == plain.train.model_flops
    assert stored.train.hbm_bytes < online.train.hbm_bytes
