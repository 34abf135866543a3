"""Train step on this machine's accelerator, compared with PyTorch and with preflight's estimate.

    python -m experiments.bench.accelerator --output results.jsonl [--peer-python PYTHON] \
      [--topology h100:1] [--models base large] [--seq-lengths 128 512] [--batch-size N]

One update in bfloat16 with float32 parameters, dropout 0.1, gradient clipping and AdamW, on full
sequences of one sentence pair each. On a GPU the peer is `transformers.BertForPreTraining` under
`torch.compile`, with autocast to bfloat16, PyTorch's fused AdamW and its scaled dot-product
attention without a mask, which takes the fastest kernel; bertjax masks as in training. The peer
computes the vocabulary's logits at every token, bertjax at the masked ones. Both run on one GPU and
take turns; figures are medians over the rounds. PYTHON is an interpreter with torch and
transformers; without it, and on TPUs, where all chips are used, bertjax runs alone. TOPOLOGY names
the same devices for `bertjax preflight`.

Each case is printed and appended to the output as a line of JSON.
"""

import datetime
import functools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from experiments.bench.harness import (
    BERTJAX,
    child_environment,
    make_parser,
    serve_measurements,
    take_turns,
)
from experiments.bench.peers import torch_peer
from experiments.bench.peers.pretraining_batch import make_batch

STEPS = 10  # dispatched before waiting, as in training
MODEL_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, hidden size, heads
BATCH_SIZES = {("base", 128): 64, ("base", 512): 16, ("large", 128): 32, ("large", 512): 16}
NUM_PREDICTIONS = {128: 20, 512: 80}
RECIPE = pathlib.Path(__file__).parents[1] / "pretraining.py"
GIB = 2**30


def make_config(model: str, length: int, batch_size: int) -> Any:
    """Return the resolved configuration of bertjax's run."""
    from bertjax.config.loading import load_config
    from bertjax.tasks import registry

    spec = f"{RECIPE}:model={model},phase={1 if length == 128 else 2}"
    overrides = {
        "batch_size": str(batch_size),
        "max_seq_length": str(length),
        "packing": "False",
    }
    return load_config(spec, overrides, registry.data_fields()).resolve(None)


def make_bertjax_step(model: str, length: int, batch_size: int) -> Callable[[], object]:
    """Return a function that makes `STEPS` updates, as `bertjax train` does."""
    import jax

    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry

    config = make_config(model, length, batch_size)
    functions = StepFunctions(config, registry.make_objective(config), used_devices())
    train_step, constants = functions.compile_train_step(), functions.constants()
    batch = jax.device_put(
        make_batch(batch_size, length, NUM_PREDICTIONS[length]), functions.batch_sharding
    )
    state = functions.init()

    def step() -> object:
        nonlocal state
        for _ in range(STEPS):
            state, sums = train_step(state, batch, constants)
        return jax.block_until_ready((state, sums))

    return step


def make_torch_step(model: str, length: int, batch_size: int) -> Callable[[], object]:
    """Return the same of the peer."""
    batch = make_batch(batch_size, length, NUM_PREDICTIONS[length])
    return torch_peer.make_pretraining_step(
        *MODEL_SIZES[model], batch, device="cuda", compiled=True, steps=STEPS
    )


def used_devices() -> Any:
    """Return one GPU, or all TPU chips."""
    import jax

    devices = jax.devices()
    return devices[:1] if devices[0].platform == "gpu" else devices


def bertjax_memory() -> int:
    return int((used_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def torch_memory() -> int:
    import torch

    return int(torch.cuda.max_memory_allocated())


def preflight_estimate(topology: str, *case: Any) -> dict[str, Any]:
    """Return preflight's estimate for a case, from a process that leaves the accelerator alone."""
    program = (
        "from bertjax.preflight.analysis import preflight; "
        "from bertjax.preflight.topology import Topology; "
        "from experiments.bench.accelerator import make_config; "
        f"config = make_config(*{case!r}); "
        f"print(preflight(config, Topology({topology!r}), train_only=True).to_json())"
    )
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    report = subprocess.check_output([sys.executable, "-c", program], env=environment)
    train = json.loads(report)["train"]
    seconds = train["estimated_step_seconds"] or max(train["roofline_seconds"].values())
    return {"bytes": train["hbm_bytes"], "seconds": seconds, "roofline": train["roofline_seconds"]}


def measure(args: Any, model: str, length: int) -> dict[str, Any]:
    """Return the figures of one case, for JSON."""
    from bertjax.model.flops import peak_flops
    from bertjax.tasks import registry

    ask = [sys.executable, __file__, "--worker", "device"]
    kind, count = json.loads(subprocess.check_output(ask, env=child_environment()))
    batch_size = args.batch_size or BATCH_SIZES[model, length] * count
    interpreters = {BERTJAX: sys.executable}
    if args.peer_python != sys.executable and not kind.startswith("TPU"):
        interpreters["torch"] = args.peer_python
    options = ["--models", model, "--seq-lengths", str(length), "--batch-size", str(batch_size)]
    commands = {
        name: [python, __file__, "--worker", name, *options]
        for name, python in interpreters.items()
    }
    rounds = list(take_turns(commands, args.rounds))
    figures: dict[str, Any] = {
        name: {
            "seconds": statistics.median(costs[name].wall for costs in rounds) / STEPS,
            "bytes": max(costs[name].memory for costs in rounds),
        }
        for name in commands
    }
    if args.topology:
        figures["preflight"] = preflight_estimate(args.topology, model, length, batch_size)
    flops = registry.make_objective(make_config(model, length, batch_size)).step_flops()
    peak = peak_flops(kind)
    return {
        "date": datetime.date.today().isoformat(),
        "device": kind,
        "devices": count,
        "model": model,
        "length": length,
        "batch_size": batch_size,
        "mfu": flops / figures[BERTJAX]["seconds"] / count / peak if peak else None,
    } | figures


def describe(case: dict[str, Any]) -> str:
    """Return a line of text on a case."""

    def cost(figures: dict[str, Any]) -> str:
        return f"{1e3 * figures['seconds']:.1f} ms, {figures['bytes'] / GIB:.1f} GiB"

    parts = [
        f"{case['model']}, {case['batch_size']} sequences of {case['length']} on {case['devices']} "
        f"{case['device']}: {cost(case[BERTJAX])}"
    ]
    if case["mfu"]:
        parts.append(f"MFU {case['mfu']:.0%}")
    if "torch" in case:
        speedup = case["torch"]["seconds"] / case[BERTJAX]["seconds"]
        parts.append(f"torch {cost(case['torch'])}, speedup {speedup:.2f}")
    if "preflight" in case:
        bound = "at least " if case["preflight"]["roofline"] else ""
        parts.append(f"preflight {bound}{cost(case['preflight'])}")
    return "; ".join(parts)


def main() -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--output", type=pathlib.Path, help="file that lines of JSON are added to")
    parser.add_argument("--topology", help="the same devices, for preflight")
    parser.add_argument("--models", nargs="+", choices=MODEL_SIZES, default=list(MODEL_SIZES))
    parser.add_argument(
        "--seq-lengths", nargs="+", type=int, choices=NUM_PREDICTIONS, default=list(NUM_PREDICTIONS)
    )
    parser.add_argument("--batch-size", type=int, help="sequences a step, on all devices together")
    args = parser.parse_args()
    case = args.models[0], args.seq_lengths[0], args.batch_size
    if args.worker == "device":
        devices = used_devices()
        print(json.dumps([devices[0].device_kind, len(devices)]))
    elif args.worker == BERTJAX:
        serve_measurements(functools.partial(make_bertjax_step, *case), bertjax_memory)
    elif args.worker:
        serve_measurements(functools.partial(make_torch_step, *case), torch_memory)
    else:
        for model in args.models:
            for length in args.seq_lengths:
                figures = measure(args, model, length)
                print(describe(figures), flush=True)
                if args.output:
                    with args.output.open("a") as file:
                        file.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
