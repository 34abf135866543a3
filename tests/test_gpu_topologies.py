"""What GPUs make of a run is known where there is none; the kernels are machine code there."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import process_environment

from bertjax.preflight import gpus
from bertjax.preflight.gpus import GPUS, MissingCompilerError
from bertjax.preflight.hlo import Collective, read_program
from bertjax.preflight.memory_traffic import bytes_accessed
from bertjax.preflight.topology import GIB, Topology

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"

needs_gpu_compiler = pytest.mark.skipif(
    not gpus.has_gpu_compiler(),
    reason="needs the GPU compiler: pip install 'bertjax[gpu-preflight]'",
)


def alone(program: str, *arguments: str) -> str:
    """Output of a program that compiles as a user's does, not as these tests do."""
    environment = process_environment() | {"JAX_PLATFORMS": "cpu"}
    del environment["XLA_FLAGS"], environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


KERNELS = """
import pathlib, sys
import jax, jax.numpy as jnp
from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.attention.dispatch import choose_implementation
from bertjax.preflight.topology import Topology

kind, folder = sys.argv[1], sys.argv[2]
(device,) = Topology(f"{kind}:1").devices()
mesh = make_mesh(1, 1, 1, [device])
here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
for length, size in ((128, 64), (512, 32), (512, 64), (512, 128)):
    qkv = jax.ShapeDtypeStruct((4, length, 2, size), jnp.bfloat16, sharding=here)
    ids = jax.ShapeDtypeStruct((4, length), jnp.int32, sharding=here)

    def loss(qkv, ids):
        implementation = choose_implementation(qkv[0])
        assert str(implementation) == "gpu kernels", implementation
        given = {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}
        return implementation.attend(*qkv, ids, **given).astype(jnp.float32).sum()

    with jax.set_mesh(mesh):
        lowered = jax.jit(jax.grad(loss)).lower((qkv,) * 3, ids)
        lowered.compile({"xla_dump_to": f"{folder}/{length}-{size}"})
"""


@pytest.mark.slow
@needs_gpu_compiler
@pytest.mark.parametrize(("kind", "arch"), [("h200", "sm_90a"), ("a100-80gb", "sm_80")])
def test_the_kernels_use_tensor_cores_and_keep_to_their_registers(kind, arch, tmp_path) -> None:
    import nvidia.cuda_nvcc

    assembler = pathlib.Path(*nvidia.cuda_nvcc.__path__) / "bin" / "ptxas"
    alone(KERNELS, kind, str(tmp_path))
    seen = []
    for file in sorted(tmp_path.rglob("*.ptx")):
        text = file.read_text()
        name = re.search(r"\.entry (_forward|_d_query|_d_key_value)\(", text)
        if name is None:
            continue
        assert re.search(r"wgmma\.mma_async|mma\.sync", text), file
        said = subprocess.run(
            [assembler, "-v", "-arch", arch, file, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        assert "0 bytes spill stores, 0 bytes spill loads" in said, (file.parent.name, said)
        seen.append((file.parent.name, name[1]))
    assert len(seen) == len(set(seen)) == 12


@pytest.mark.slow
@needs_gpu_compiler
def test_eight_gpus_are_judged_by_their_own_compiler(tmp_path) -> None:
    arguments = [
        *("preflight", "--config", f"{PRETRAIN}:model=2-256", "--topology", "h200:8"),
        *(
            "--config.batch_size=512",
            "--config.gradient_accumulation_steps=2",
            "--config.max_seq_length=512",
        ),
        *("--json", str(tmp_path / "verdict.json"), "--config.model.vocab_size=1024"),
    ]
    program = f"""
from bertjax.cli.main import main
from bertjax.preflight import analysis
reads = analysis.read_program
analysis.read_program = lambda text: open({str(tmp_path / "text")!r}, "a").write(text) and reads(text)
assert main({arguments!r}) == 0
"""
    text = alone(program)
    assert text.startswith("fits h200:8") and "of 105.75 GiB" in text
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    train = verdict["train"]
    assert verdict["attention"] == "gpu kernels" and verdict["chips"] == 8
    matrices = (1024 + 512 + 2) * 256 + 2 * 12 * 256**2 + 2 * 256**2 + 2 * 256
    gathered = train["collectives"]["all-gather"]["bytes"]
    assert gathered == pytest.approx(2 * matrices, rel=0.1)  # bfloat16, once for both parts
    compiled = (tmp_path / "text").read_text()
    assert "[32,512,256]" in compiled and "[32,4,512,512]" not in compiled
    assert train["roofline_seconds"].keys() == {"compute", "memory", "links"}
    assert all(0 < seconds < 1 for seconds in train["roofline_seconds"].values())
    assert train["estimated_cycles"] is None and "Lower bounds of a step" in text


@pytest.mark.slow
@needs_gpu_compiler
def test_what_does_not_fit_a_gpu_is_refused_with_the_number(monkeypatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.001")  # 22.6 MiB of an L4
    text = alone(
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
    assert re.match(r"does NOT fit l4:1: [\d.]+ [MG]iB a device is [\d.]+ [MG]iB too many", text)


def test_jax_gives_itself_three_quarters_of_a_gpu(monkeypatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert Topology("h200:8").memory_bytes == 0.75 * 141 * GIB
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert Topology("h200:8").memory_bytes == int(0.9 * 141 * GIB)


@pytest.mark.parametrize("kind", GPUS)
def test_gpus_of_hosts_are_topologies(kind: str) -> None:
    alone, hosts = Topology(f"{kind}:8"), Topology(f"{kind}:2x8")
    assert (alone.chips, alone.host_layout) == (8, (1, 8))
    assert (hosts.chips, hosts.host_layout) == (16, (2, 8))
    assert hosts.bandwidth <= alone.bandwidth == GPUS[kind].link_bandwidth


def test_two_hosts_of_one_gpu_send_over_the_network() -> None:
    assert Topology("h100:2x1").bandwidth == GPUS["h100"].network_bandwidth


@pytest.mark.parametrize("name", ["h200", "h200:", "h200:0", "h200:2x2x2", "h300:8", "a100:8"])
def test_what_is_no_topology_of_gpus_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown. Use one such as .* h200:8, .* h100:2x8"):
        Topology(name)


def test_without_the_compiler_the_command_that_brings_it_is_named(monkeypatch) -> None:
    monkeypatch.setattr(gpus, "_WHEELS", ("nothing.of_the_kind",))
    with pytest.raises(MissingCompilerError, match="pip install 'bertjax\\[gpu-preflight\\]'"):
        Topology("h100:8").devices()


def test_arrays_that_are_exchanged_together_all_count() -> None:
    groups = "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"
    text = f"""\
ENTRY %main (a: bf16[2,96], b: f32[16]) -> bf16[2,768] {{
  %a = bf16[2,96]{{1,0}} parameter(0)
  %b = f32[16]{{0}} parameter(1)
  %g = ((bf16[2,96]{{1,0}}, f32[16]{{0}}), (bf16[2,768]{{1,0}}, /*index=1*/f32[128]{{0}})) \
all-gather-start(%a, %b), channel_id=1, {groups}
  %s = ((f32[128]{{0}}, f32[64]{{0}}), (f32[16]{{0}}, f32[8]{{0}})) \
reduce-scatter-start(%a, %b), channel_id=2, {groups}
  %r = (f32[5]{{0}}, f32[7]{{0}}) all-reduce-start(%a, %b), channel_id=3, {groups}
  ROOT %d = bf16[2,768]{{1,0}} bitcast(%a)
}}
"""
    assert read_program(text)[1] == [
        Collective("all-gather", 2 * 768 * 2 + 128 * 4, 8, 1),
        Collective("reduce-scatter", (128 + 64) * 4, 8, 1),
        Collective("all-reduce", (5 + 7) * 4, 8, 1),
    ]


MOVED = """\
HloModule jit_f, is_scheduled=true

%sliced (p: f32[24,100], i: s32[]) -> f32[1,100] {
  %p = f32[24,100]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %flat = f32[24,1,100]{2,1,0} bitcast(%p)
  ROOT %taken = f32[1,100]{1,0} dynamic-slice(%flat, %i, %i, %i), dynamic_slice_sizes={1,1,100}
}

%put (q: f32[24,100], x: f32[1,100], j: s32[]) -> (f32[24,100], f32[1,100]) {
  %q = f32[24,100]{1,0} parameter(0)
  %x = f32[1,100]{1,0} parameter(1)
  %j = s32[] parameter(2)
  %whole = f32[24,100]{1,0} dynamic-update-slice(%q, %x, %j, %j)
  %twice = f32[1,100]{1,0} add(%x, %x)
  ROOT %both = (f32[24,100]{1,0}, f32[1,100]{1,0}) tuple(%whole, %twice)
}

ENTRY %main (a: f32[24,100], n: s32[]) -> f32[1,100] {
  %a = f32[24,100]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %one = f32[1,100]{1,0} fusion(%a, %n), kind=kLoop, calls=%sliced
  %two = (f32[24,100]{1,0}, f32[1,100]{1,0}) fusion(%a, %one, %n), kind=kLoop, calls=%put
  %out = f32[1,100]{1,0} get-tuple-element(%two), index=1
  ROOT %copy = f32[1,100]{1,0} copy(%out)
}
"""


def test_of_what_is_sliced_the_slice_is_moved() -> None:
    row, number = 400, 4
    taken = row + number + row  # read, where, written
    put = row + number + (row + row)  # the array itself is neither read nor written whole
    assert bytes_accessed(MOVED) == taken + put + 2 * row
