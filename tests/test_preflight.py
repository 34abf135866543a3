"""What a topology would make of a run is known before it is paid for."""

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import jax
import pytest
from conftest import process_environment

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.preflight.analysis import _estimate_tpu, preflight
from bertjax.preflight.hlo import Instruction
from bertjax.preflight.report import format_report
from bertjax.preflight.search import largest_batch, suggested_fixes
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
EIGHT = Topology("cpu:8")

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs the TPU compiler: pip install 'bertjax[tpu]'",
)


def configuration(**overrides: object) -> Config:
    fields = {"model.vocab_size": 1000, "batch_size": 16, **overrides}
    text = {name: str(value) for name, value in fields.items()}
    return load_config(f"{PRETRAIN}:smoke", text, registry.data_fields())


def parameters(vocabulary: int, layers: int, hidden: int) -> tuple[int, int]:
    """Numbers in matrices and elsewhere of a BERT with both heads, from the table of its parts."""
    block = 12 * hidden**2
    matrices = (vocabulary + 512 + 2) * hidden + layers * block + 2 * hidden**2 + 2 * hidden
    block_vectors = 4 * hidden + 4 * hidden + hidden + 4 * hidden
    vectors = 2 * hidden + layers * block_vectors + (3 * hidden + vocabulary) + hidden + 2
    return matrices, vectors


MATRICES, VECTORS = parameters(1000, 2, 64)


@pytest.fixture(scope="module")
def data_parallel():
    return preflight(configuration(), EIGHT)


@pytest.mark.slow
def test_parameters_and_moments_of_a_device_are_those_of_the_sharding_table(data_parallel) -> None:
    assert data_parallel.parameter_bytes == 4 * (MATRICES // 8 + VECTORS)
    assert data_parallel.optimizer_bytes == 2 * data_parallel.parameter_bytes + 2 * 4


@pytest.mark.slow
def test_data_parallelism_sums_each_gradient_and_gathers_each_matrix_once(data_parallel) -> None:
    kinds = data_parallel.train.collectives
    summed = sum(kinds[kind]["bytes"] for kind in kinds if "reduce" in kind)
    # Gradients of what is looked up alone are not summed: each device gets all rows' vectors, some
    # features of each, and has its piece of those tables to itself.
    gradients = 4 * (MATRICES - (512 + 2) * 64 + VECTORS)
    assert kinds["all-to-all"]["bytes"] == 4 * (16 // 8) * 32 * 64
    # Beside the gradients, some sums of the losses and the norm.
    assert gradients <= summed < gradients + 1000
    assert kinds["all-gather"]["bytes"] == pytest.approx(4 * MATRICES, rel=0.1)


@pytest.mark.slow
def test_gradients_of_what_is_frozen_are_not_summed(data_parallel) -> None:
    frozen = {"optimizer.frozen_layers": 2, "optimizer.layerwise_lr_decay": 0.9}
    verdict = preflight(configuration(**frozen), EIGHT)
    assert verdict.fits and verdict.evaluation.fits and verdict.prediction.fits
    assert verdict.parameter_bytes == data_parallel.parameter_bytes
    assert verdict.optimizer_bytes == data_parallel.optimizer_bytes
    kinds = verdict.train.collectives
    summed = sum(kinds[kind]["bytes"] for kind in kinds if "reduce" in kind)
    # Those of both heads, the bias of each piece of the vocabulary included.
    assert summed < 4 * (2 * 64**2 + 8 * 64 + 1000) + 1000


def test_more_frozen_layers_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="frozen_layers=3: the model has 2 blocks"):
        preflight(configuration(**{"optimizer.frozen_layers": 3}), EIGHT)


@pytest.mark.slow
def test_fully_sharded_parameters_are_gathered_where_they_are_used() -> None:
    verdict = preflight(configuration(**{"mesh.data": 1, "mesh.fsdp": 8}), EIGHT)
    assert verdict.parameter_bytes == 4 * (MATRICES // 8 + VECTORS)
    # Forward and backward at the most, and at the least once.
    assert verdict.train.collectives["all-gather"]["bytes"] > 0.8 * 4 * MATRICES


@pytest.mark.slow
def test_what_does_not_fit_is_said_first_whatever_it_is(data_parallel) -> None:
    for name, said in (("evaluation", "at its first evaluation"), ("prediction", "predicts")):
        one = dataclasses.replace(getattr(data_parallel, name), fits=False)
        text = format_report(dataclasses.replace(data_parallel, fits=False, **{name: one}))
        assert text.startswith("does NOT fit cpu:8: it trains, and") and said in text.split("\n")[0]


@pytest.mark.slow
def test_model_operations_follow_the_closed_formula(data_parallel) -> None:
    config = configuration()
    rows, tokens, hidden = config.batch_size, config.max_seq_length, 64
    block = tokens * 12 * hidden**2 + 2 * tokens**2 * hidden
    heads = 5 * hidden * (hidden + 1000) + 2 * hidden * (hidden + 2)
    unread = (tokens - 7) * 9 * hidden**2  # of what comes behind the last block's attention
    assert data_parallel.train.model_flops == 6 * rows * (2 * block - unread + heads)


@pytest.mark.slow
def test_json_says_what_is_printed(data_parallel) -> None:
    values = json.loads(data_parallel.to_json())
    assert values["fits"] and values["chips"] == 8 and values["steps"] == 20
    assert values["train"]["estimated_cycles"] is None  # only a TPU's compiler estimates them
    text = format_report(data_parallel)
    assert text.startswith("fits cpu:8")
    assert values["attention"] == "cpu, one sequence at a time" and values["attention"] in text
    assert "Known" in text and "Estimated" not in text


def test_a_kernel_is_charged_what_takes_longer_at_the_peaks_of_the_chip() -> None:
    chip = SimpleNamespace(device_kind="TPU v5 lite")  # 197 TFLOP/s, 819 GB/s, 1.5 GHz
    name = "jit(step)/blocks/attention/pallas_call"
    instructions = [
        Instruction("custom-call", name, 24, 0, flops=197_000_000, bytes=1),  # a microsecond
        Instruction("custom-call", name, 1, 0, flops=1, bytes=8_190_000),  # ten
        Instruction("fusion", "jit(step)/blocks/feed_forward/dot", 24, 1000),
        Instruction("custom-call", name, 1, 500, flops=197_000_000, bytes=1),  # the compiler's word
    ]
    found = _estimate_tpu(Topology("v5e:2x2"), [chip] * 4, instructions, [], 1e9)
    assert found["custom_kernel_cycles"] == 24 * 1500 + 15_000
    assert found["estimated_cycles"] == found["custom_kernel_cycles"] + 24 * 1000 + 500
    assert found["estimated_cycle_shares"]["feed-forward"] == 24_000 / found["estimated_cycles"]


@pytest.mark.parametrize(
    "name", ["v5e", "v5e:", "v5e:4x", "v5e:0x4", "tpu:4x4", "v5e:4*4", "cpu:-1"]
)
def test_what_is_no_topology_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown. Use one such as v5e:4x4"):
        Topology(name)


def test_a_mesh_that_does_not_fit_the_topology_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit 8 devices"):
        preflight(configuration(**{"mesh.data": 4}), EIGHT)


@pytest.mark.slow
def test_devices_of_this_machine_share_its_memory(monkeypatch) -> None:
    monkeypatch.setattr("bertjax.preflight.topology.available_host_memory", lambda: 8 * 2**20)
    config = configuration(batch_size=64)
    verdict = preflight(config, EIGHT, train_only=True)
    assert not verdict.fits and verdict.hbm_limit_bytes == 2**20
    assert format_report(verdict).startswith("does NOT fit cpu:8")
    tried = dict(suggested_fixes(config, EIGHT))
    assert [*tried] == [
        "--config.gradient_accumulation_steps=2",
        "--config.gradient_accumulation_steps=4",
        "--config.gradient_accumulation_steps=8",
    ]
    needs = [each.train.hbm_bytes for each in tried.values()]
    assert needs == sorted(needs, reverse=True) and needs[0] < verdict.train.hbm_bytes


def as_if(monkeypatch, most: int, used: Callable[[int], float], model: int = 1) -> list[int]:
    """Makes the compiler say that so many rows fit, and what they use of 100.

    Returns:
      The rows that are tried, as they come.
    """
    tried = []

    def judged(config: Config, topology: Topology, train_only: bool) -> SimpleNamespace:
        rows = config.batch_size // (8 // model)
        tried.append(rows)
        train = SimpleNamespace(per_device_batch_size=rows, hbm_bytes=used(rows))
        return SimpleNamespace(fits=rows <= most, train=train, hbm_limit_bytes=100)

    monkeypatch.setattr("bertjax.preflight.search.preflight", judged)
    monkeypatch.setattr(Topology, "devices", lambda self: jax.devices())
    return tried


CURVES = {
    "a line": lambda rows, most: 20 + 80 * rows / (most + 0.5),
    "the same for all": lambda rows, most: 100,
    "a step": lambda rows, most: 99 if rows <= most else 1000,
    "falls": lambda rows, most: 100 / rows,
}


@pytest.mark.parametrize("most", [1, 2, 5, 64, 777, 12_658])
@pytest.mark.parametrize("model", [1, 2])
@pytest.mark.parametrize("curve", CURVES)
def test_the_search_finds_the_most_rows_that_fit(
    curve: str, most: int, model: int, monkeypatch
) -> None:
    tried = as_if(monkeypatch, most, lambda rows: CURVES[curve](rows, most), model)
    config = configuration(**{"batch_size": 32, "mesh.tensor": model})
    verdict = largest_batch(config, Topology("v5e:2x4"), remat=False)
    assert verdict is not None
    found = verdict.train.per_device_batch_size
    assert found <= most and most - found <= most // 100
    assert len(tried) == len(set(tried)) <= (6 if curve == "a line" else 20)


def test_the_search_finds_nothing_where_not_even_a_row_fits(monkeypatch) -> None:
    as_if(monkeypatch, 0, lambda rows: 101 + rows)
    assert largest_batch(configuration(batch_size=32), Topology("v5e:2x4"), remat=True) is None


def on_tpu(program: str) -> str:
    """Output of a program that has the TPU compiler to itself, as this process has its devices."""
    environment = process_environment() | {"JAX_PLATFORMS": "cpu"}
    del environment["XLA_FLAGS"], environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@needs_tpu_compiler
def test_a_slice_is_judged_by_its_own_compiler(tmp_path) -> None:
    arguments = [
        *("preflight", "--config", f"{PRETRAIN}:model=12-128", "--topology", "v5e:4x4"),
        *("--config.batch_size=512", "--config.model.scan_layers=True"),
        *("--config.model.vocab_size=1024", "--json", str(tmp_path / "verdict.json")),
    ]
    on_tpu(f"from bertjax.cli.main import main; assert main({arguments!r}) == 0")
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    train = verdict["train"]
    assert verdict["fits"] and verdict["chips"] == 16
    matrices, vectors = parameters(1024, 12, 128)
    assert verdict["parameter_bytes"] == 4 * (matrices // 16 + vectors)
    # bfloat16 on the wire: two bytes a number of a matrix.
    gathered = train["collectives"]["all-gather"]["bytes"]
    assert gathered == pytest.approx(2 * matrices, rel=0.1)
    assert 0 < train["estimated_mfu"] < 1
    # Of attention's kernel, into which the compiler does not see.
    assert 0 < train["custom_kernel_cycles"] < 0.3 * train["estimated_cycles"]
    assert sum(train["estimated_cycle_shares"].values()) == pytest.approx(1)


@pytest.mark.slow
@needs_tpu_compiler
def test_sixty_four_chips_are_judged_from_here() -> None:
    verdict = json.loads(
        on_tpu(
            f"""
from bertjax.preflight.analysis import preflight
from bertjax.preflight.search import largest_batch, suggested_fixes
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.config.loading import load_config
fields = {{"model.vocab_size": "1024", "batch_size": "2048", "model.scan_layers": "True"}}
config = load_config("{PRETRAIN}:model=2-128", fields, registry.data_fields())
print(preflight(config, Topology("v6e:8x8"), train_only=True).to_json())
"""
        )
    )
    assert verdict["fits"] and verdict["chips"] == 64
    matrices, vectors = parameters(1024, 2, 128)
    assert verdict["parameter_bytes"] == 4 * (matrices // 64 + vectors)
    assert 0 < verdict["train"]["estimated_mfu"] < 1


@pytest.mark.slow
@needs_tpu_compiler
def test_what_does_not_fit_is_told_with_a_change_that_makes_it_fit(tmp_path) -> None:
    arguments = [
        # Many layers under a scan: activations need the memory, and one layer is compiled.
        *("preflight", "--config", f"{PRETRAIN}:model=2048-128", "--topology", "v5e:2x2"),
        *("--config.batch_size=64", "--config.model.scan_layers=True"),
        *("--config.model.vocab_size=1024", "--json", str(tmp_path / "verdict.json")),
    ]
    text = on_tpu(f"from bertjax.cli.main import main; assert main({arguments!r}) == 0")
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert not verdict["fits"] and verdict["train"]["hbm_bytes"] > verdict["hbm_limit_bytes"]
    assert text.startswith("does NOT fit v5e:2x2")
    assert text.splitlines()[-1].startswith("with --config.model.remat=True")
    assert ": fits v5e:2x2" in text.splitlines()[-1]
