"""Compilation for GPUs without one: attention kernels, preflight reports, topologies."""

import json
import pathlib
import re
import subprocess

import pytest
from config_loading import PRETRAIN
from conftest import in_test_all, run_python

from bertjax.mesh.memory import GIB
from bertjax.preflight import topology
from bertjax.preflight.gpus import GPUS
from bertjax.preflight.topology import MissingCompilerError, Topology, has_gpu_compiler

needs_gpu_compiler = pytest.mark.skipif(
    not has_gpu_compiler(),
    reason="needs the GPU compiler: pip install 'bertjax[gpu-preflight]'",
)


KERNELS = """
import pathlib, sys
import jax, jax.numpy as jnp
from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention.dispatch import choose_implementation
from bertjax.preflight.topology import Topology

kind, folder = sys.argv[1], sys.argv[2]
(device,) = Topology(f"{kind}:1").devices()
mesh = make_mesh(1, 1, 1, [device])
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
cases = [(length, size, "bidirectional") for length, size in ((128, 64), (512, 32), (512, 128))]
for length, size, mask_kind in (*cases, (512, 64, "bidirectional"), (512, 64, "prefix")):
    qkv = jax.ShapeDtypeStruct((4, length, 2, size), jnp.bfloat16, sharding=sharding)
    ids = jax.ShapeDtypeStruct((4, length), jnp.int32, sharding=sharding)

    def loss(qkv, ids):
        implementation = choose_implementation(qkv[0])
        assert str(implementation) == "gpu kernels", implementation
        dropout = {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}
        out = implementation.attend(*qkv, ids, mask_kind=mask_kind, **dropout)
        return out.astype(jnp.float32).sum()

    with jax.set_mesh(mesh):
        lowered = jax.jit(jax.grad(loss)).lower((qkv,) * 3, ids)
        dump = {"xla_dump_to": f"{folder}/{length}-{size}-{mask_kind}", "xla_gpu_dump_llvmir": True}
        if jax.__version_info__ >= (0, 12):
            dump["xla_dump_emitter_re"] = "ptx"
        lowered.compile(dump)  # with PTX
"""


@pytest.mark.slow
@needs_gpu_compiler
@pytest.mark.parametrize(
    ("kind", "arch"), [("h200", "sm_90a"), *in_test_all(("a100-80gb", "sm_80"))]
)
def test_attention_kernels_use_tensor_cores_and_spill_no_registers(kind, arch, tmp_path) -> None:
    import nvidia.cuda_nvcc

    assembler = pathlib.Path(*nvidia.cuda_nvcc.__path__) / "bin" / "ptxas"
    run_python(KERNELS, kind, str(tmp_path))
    kernels = []
    for file in sorted(tmp_path.rglob("*.ptx")):
        text = file.read_text()
        name = re.search(r"\.entry (_forward|_d_query|_d_key_value)\(", text)
        if name is None:
            continue
        assert re.search(r"wgmma\.mma_async|mma\.sync", text), file
        assembler_log = subprocess.run(
            [assembler, "-v", "-arch", arch, file, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        assert "0 bytes spill stores, 0 bytes spill loads" in assembler_log, (
            file.parent.name,
            assembler_log,
        )
        kernels.append((file.parent.name, name[1]))
    assert len(kernels) == len(set(kernels)) == 15


@pytest.mark.slow
@needs_gpu_compiler
def test_preflight_compiles_for_eight_gpus(tmp_path) -> None:
    arguments = [
        *("preflight", "--config", f"{PRETRAIN}:model=2-256", "--topology", "h200:8"),
        *("--config.batch_size=512", "--config.gradient_accumulation_steps=2"),
        "--config.max_seq_length=512",
        *("--json", str(tmp_path / "report.json"), "--config.model.vocab_size=1024"),
    ]
    program = f"""
from bertjax.cli.main import main
from bertjax.preflight import analysis
parse_hlo = analysis.parse_hlo
def write_and_parse_hlo(text):
    with open({str(tmp_path / "hlo")!r}, "a") as file:
        file.write(text)
    return parse_hlo(text)
analysis.parse_hlo = write_and_parse_hlo
assert main({arguments!r}) == 0
"""
    text = run_python(program)
    assert text.startswith("fits h200:8") and "of 105.75 GiB" in text
    report = json.loads((tmp_path / "report.json").read_text())
    train = report["train"]
    assert report["attention"] == "gpu kernels" and report["chips"] == 8
    matrices = (1024 + 512 + 2) * 256 + 2 * 12 * 256**2 + 2 * 256**2 + 2 * 256
    gathered = train["collectives"]["all-gather"]["bytes"]
    assert gathered == pytest.approx(2 * matrices, rel=0.1)  # bfloat16, once for both microbatches
    hlo = (tmp_path / "hlo").read_text()
    assert "[32,512,256]" in hlo and "[32,4,512,512]" not in hlo
    logits = r"f32\[(32,20|640),1024\]"  # their gradient is rounded where it is computed
    assert re.search(logits, hlo) and not re.search(logits + r"\S* scatter\(", hlo)
    assert train["roofline_seconds"].keys() == {"compute", "memory", "links"}
    assert all(0 < seconds < 1 for seconds in train["roofline_seconds"].values())
    assert train["estimated_cycles"] is None and "Lower bounds of a step" in text


@pytest.mark.slow
@needs_gpu_compiler
def test_format_report_states_by_how_much_a_run_exceeds_a_gpu(monkeypatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.001")  # 22.6 MiB of an L4
    text = run_python(
        f"""
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.preflight.report import format_report
from bertjax.tasks import registry
from bertjax.config.loading import load_config
config = load_config("{PRETRAIN}:model=tiny", {{"batch_size": "16"}}, registry.data_fields())
print(format_report(preflight(config, Topology("l4:1"))))
"""
    )
    assert re.match(
        r"does NOT fit l4:1: [\d.]+ [MG]iB a device exceed its memory by [\d.]+ [MG]iB", text
    )


OLD_GPU = """
import sys
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.config.loading import load_config
fields = {"model.dtype": "bfloat16", "model.vocab_size": "1024", "batch_size": "16"}
config = load_config(f"{sys.argv[1]}:model=1-128", fields, registry.data_fields())
print(preflight(config, Topology(sys.argv[2]), train_only=True).to_json())
"""


@pytest.mark.slow
@needs_gpu_compiler
@pytest.mark.parametrize("kind", ["t4", *in_test_all("v100-16gb")])
def test_preflight_compiles_for_gpus_without_bfloat16(kind: str) -> None:
    report = json.loads(run_python(OLD_GPU, PRETRAIN, f"{kind}:2"))
    assert report["fits"] and report["devices"] == 2
    assert report["attention"].startswith("plain, recomputed (Tesla ")
    assert all(seconds > 0 for seconds in report["train"]["roofline_seconds"].values())


def test_gpus_without_bfloat16_have_names_that_the_kernels_reject() -> None:
    old = {gpu.device_kind for gpu in GPUS.values() if "major: 7" in gpu.compute_capability}
    assert len(old) == 3 and all(kind.startswith("Tesla ") for kind in old)


def test_topology_memory_of_a_gpu_is_the_share_that_jax_allocates(monkeypatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert Topology("h200:8").memory_bytes == 0.75 * 141 * GIB
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert Topology("h200:8").memory_bytes == int(0.9 * 141 * GIB)


@pytest.mark.parametrize("kind", GPUS)
def test_topology_has_gpus_of_one_or_two_hosts(kind: str) -> None:
    one_host, two_hosts = Topology(f"{kind}:8"), Topology(f"{kind}:2x8")
    assert (one_host.chips, one_host.host_layout) == (8, (1, 8))
    assert (two_hosts.chips, two_hosts.host_layout) == (16, (2, 8))
    assert two_hosts.bandwidth <= one_host.bandwidth == GPUS[kind].link_bandwidth


def test_topology_bandwidth_of_two_hosts_with_one_gpu_is_the_network() -> None:
    assert Topology("h100:2x1").bandwidth == GPUS["h100"].network_bandwidth


def test_topology_devices_names_the_extra_of_a_missing_compiler(monkeypatch) -> None:
    monkeypatch.setattr(topology, "_GPU_COMPILER_MODULES", ("missing.module",))
    with pytest.raises(MissingCompilerError, match="pip install 'bertjax\\[gpu-preflight\\]'"):
        Topology("h100:8").devices()
