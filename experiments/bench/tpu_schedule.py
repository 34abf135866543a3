"""Cycles of TPU products: the compiler's account, its schedule and the chip's peak.

    python -m experiments.bench.tpu_schedule [--topology v6e:4x4] [--layers 2]

The TPU compiler notes an estimate of cycles at each instruction, its account, which a cost model
makes before it schedules the instruction. The bundles that it then schedules are instructions that
a core issues, one bundle a cycle; their number counts no wait for memory. So the account is an
upper bound of a product's cycles where it exceeds the bundles, and the bundles are a lower bound.

Shown for five bare bfloat16 products on each kind of chip, and for the train step of BERT-Large of
128 tokens on a topology, in which products count by their bundles and all else by the account.
--layers 0 leaves the step out, which compiles for minutes. Each program is compiled in a process of
its own, because libtpu reads where to write its schedule at its start.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.ablations.commands import local_path
from experiments.bench import harness

CHIPS = ("v5e", "v6e", "tpu7x")
PRODUCTS = (  # rows, inner, outer
    (4096, 1024, 4096),
    (4096, 4096, 1024),
    (4096, 1024, 1024),
    (8192, 1024, 4096),
    (8192, 8192, 8192),
)
SEQUENCES = {"v5e": 32, "v6e": 64}  # of Large on a chip; 32 elsewhere
DUMP_OPTIONS = (
    "--xla_jf_dump_to={}",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=^final_bundles",
)


def read_bundles(directory: pathlib.Path) -> dict[str, int]:
    """Return the number of bundles in the program of each instruction, by its name."""
    bundles = {}
    for path in directory.glob("*-schedule-analysis_final_bundles.txt"):
        name = re.sub(r"^\d+-|-\d+-schedule-analysis_final_bundles$", "", path.stem)
        match = re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())
        assert match
        bundles[name] = int(match[1])
    return bundles


def product_cycles(text: str, directory: pathlib.Path) -> dict[str, int]:
    """Return the cycles of the products in one call of a compiled function.

    Args:
      text: its HLO.
      directory: what libtpu wrote about its schedule.

    Returns:
      products: cycles of instructions with a product, by the account.
      scheduled: of the same, by their bundles.
      unscheduled: of those of the products for which libtpu wrote no schedule; they count as in the
        account.
    """
    from bertjax.preflight.hlo import find_group, parse_hlo

    module, bundles = parse_hlo(text), read_bundles(directory)
    with_product = {
        name
        for name, instructions in module.computations.items()
        if any(instruction.opcode in ("convolution", "dot") for instruction in instructions)
    }
    sums = dict.fromkeys(("products", "scheduled", "unscheduled"), 0)
    for instruction, count, is_fused in module.executed_instructions():
        account = int(find_group(r'"estimated_cycles":"(\d+)"', instruction.text) or 0)
        if is_fused or not account or account == 2**63 - 1:
            continue
        called = find_group(r"calls=%?([\w.\-]+)", instruction.text)
        if called not in with_product and instruction.opcode not in ("convolution", "dot"):
            continue
        sums["products"] += count * account
        bounds = find_group(r'"iteration_bounds":\[([^\]]*)\]', instruction.text)
        iterations = math.prod(map(int, re.findall(r"\d+", bounds)))
        if instruction.name in bundles:
            sums["scheduled"] += count * iterations * bundles[instruction.name]
        else:
            sums["unscheduled"] += count * account
            sums["scheduled"] += count * account
    return sums


def find_device(kind: str) -> Any:
    """Return a device of a kind of chip."""
    from bertjax.preflight.topology import Topology

    return Topology("tpu7x:2x2x1" if kind == "tpu7x" else f"{kind}:2x2").devices()[0]


def compile_product(kind: str, sizes: Sequence[int]) -> str:
    """Return the HLO of a bare product [rows, inner] x [inner, outer] on one device."""
    import jax
    import jax.numpy as jnp

    sharding = jax.sharding.SingleDeviceSharding(find_device(kind))
    rows, inner, outer = sizes
    a, b = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
        for shape in ((rows, inner), (inner, outer))
    )
    return jax.jit(jnp.matmul).lower(a, b).compile().as_text() or ""


def peak_cycles(kind: str, sizes: Sequence[int]) -> float:
    """Return the cycles of a product at the peak of a device."""
    from bertjax.model import flops
    from bertjax.preflight.topology import TPUS

    peak = flops.peak_flops(find_device(kind).device_kind)
    assert peak is not None
    return 2 * math.prod(sizes) / peak * TPUS[kind].clock_hz


def compile_step(topology: str, layers: int) -> tuple[str, int]:
    """Return the HLO of the train step of BERT-Large, and its cycles as preflight reports them."""
    from bertjax.preflight.analysis import num_shards_on
    from bertjax.preflight.estimates import estimate_tpu
    from bertjax.preflight.hlo import instruction_costs, parse_hlo
    from bertjax.preflight.topology import Topology
    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry

    target = Topology(topology)
    devices = target.devices()
    fields = {
        "batch_size": SEQUENCES.get(target.kind, 32) * len(devices),
        "model.num_hidden_layers": layers,
    }
    config = harness.load("pretraining:model=large", fields).resolve(None)
    objective = registry.make_objective(config, num_shards_on(target, config))
    text = StepFunctions(config, objective, devices).compile_train_step().as_text() or ""
    costs = instruction_costs(parse_hlo(text))
    return text, estimate_tpu(target, devices, costs, 0.0, 0.0)["estimated_cycles"]


def work(worker: str, topology: str, layers: int, directory: pathlib.Path) -> Mapping[str, float]:
    """Compile a product, KIND/ROWS/INNER/OUTER, or the step, and return the figures of its row."""
    if worker == "step":
        text, account = compile_step(topology, layers)
        cycles = product_cycles(text, directory)
        return cycles | {"account": account, "others": account - cycles["products"]}
    kind, *sizes = worker.split("/")
    numbers = [int(size) for size in sizes]
    text = compile_product(kind, numbers)
    return product_cycles(text, directory) | {"peak": peak_cycles(kind, numbers)}


def run_worker(worker: str, args: argparse.Namespace) -> dict[str, float]:
    """Compile in a process of its own, with libtpu's schedule in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, *sys.argv, "--worker", worker, "--directory", directory]
        options = " ".join(DUMP_OPTIONS).format(directory)
        environment = {"JAX_PLATFORMS": "cpu", "LIBTPU_INIT_ARGS": options}
        reply: dict[str, float] = harness.read_reply(command, **environment)
        return reply


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--topology", default="v6e:4x4")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--directory", type=local_path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(work(args.worker, args.topology, args.layers, args.directory)))
        return

    print(f"{'':32}{'account':>12}{'bundles':>12}{'peak':>12}")
    for kind in CHIPS:
        for sizes in PRODUCTS:
            cycles = run_worker("/".join([kind, *map(str, sizes)]), args)
            name = f"{kind} {' x '.join(map(str, sizes))}"
            columns = (f"{cycles[key]:12,.0f}" for key in ("products", "scheduled", "peak"))
            print(f"{name:32}{''.join(columns)}", flush=True)
    if not args.layers:
        return
    cycles = run_worker("step", args)
    print(f"\nBERT-Large, {args.layers} layers, {args.topology}, million cycles")
    for name, key in (("products", "products"), ("others", "others"), ("step", "account")):
        print(f"{name + ' by the account':32}{cycles[key] / 1e6:8.2f}")
    by_bundles = cycles["scheduled"] + cycles["others"]
    print(f"{'products by their bundles':32}{cycles['scheduled'] / 1e6:8.2f}")
    print(f"{'step by bundles of products':32}{by_bundles / 1e6:8.2f}")
    print(f"{'products without a schedule':32}{cycles['unscheduled'] / 1e6:8.2f}")


if __name__ == "__main__":
    main()
