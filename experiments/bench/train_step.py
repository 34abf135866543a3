"""Train step on this machine's devices, compared with PyTorch and with preflight's estimate.

    python -m experiments.bench.train_step [--peer-python PYTHON] [--models base large] \
      [--seq-lengths 128 512] [--batch-size N] [--topology h100:1] [--output results.jsonl]

One update on full sequences of one sentence pair each, with dropout 0.1, gradient clipping and
AdamW: on a CPU of BERT-Mini in float32, on accelerators of BERT-Base and BERT-Large in bfloat16
with float32 parameters. The peer is `transformers.BertForPreTraining` under `torch.compile`, and on
a CPU also eager, with PyTorch's fused AdamW. On a GPU it has autocast to bfloat16 and scaled
dot-product attention without a mask, which takes the fastest kernel; bertjax masks as in training.
The peer computes the vocabulary's logits at every token, bertjax at the masked ones. Both run on
one GPU and take turns; figures are medians over the rounds. PYTHON is an interpreter with torch and
transformers (extra [bench]); without it, and on TPUs, where all chips are used, bertjax runs alone.
TOPOLOGY names the same devices for `bertjax preflight`.

Each case is printed, and appended to the output as a line of JSON.
"""

import argparse
import datetime
import functools
import json
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import harness
from experiments.bench.harness import BERTJAX
from experiments.bench.peers import torch_pretraining

MODEL_SIZES = {"mini": (4, 256), "base": (12, 768), "large": (24, 1024)}  # layers, hidden size
BATCH_SIZES = {("mini", 128): 32, ("base", 128): 64, ("large", 128): 32}
NUM_PREDICTIONS = {128: 20, 512: 80}
EAGER, COMPILED = "PyTorch, eager", "PyTorch, compiled"
DEVICES, PREFLIGHT = "devices", "preflight"  # workers that only reply
VOCAB_SIZE = 30522
MASK_ID, FIRST_TOKEN_ID = 103, 1000
GIB = 2**30

Case = tuple[str, int, int]  # model, tokens of a sequence, sequences


def make_config(case: Case, dtype: str) -> Any:
    """Return the resolved configuration of bertjax's run."""
    model, length, batch_size = case
    overrides = {"batch_size": batch_size, "packing": False, "model.dtype": dtype}
    phase = 1 if length == 128 else 2
    return harness.load(f"pretraining:model={model},phase={phase}", overrides).resolve(None)


def make_batch(batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Return full sequences of random tokens, one sentence pair each: close to packed ones."""
    draw = np.random.Generator(np.random.Philox(key=0)).random
    token_range = VOCAB_SIZE - FIRST_TOKEN_ID
    input_ids = (FIRST_TOKEN_ID + np.floor(draw((batch_size, length)) * token_range)).astype("i4")
    order = np.argsort(draw((batch_size, length - 1)))
    masked = 1 + np.sort(order[:, : NUM_PREDICTIONS[length]])
    masked_ids = np.take_along_axis(input_ids, masked, 1)
    np.put_along_axis(input_ids, masked, MASK_ID, 1)
    position_ids = np.tile(np.arange(length, dtype=np.int32), (batch_size, 1))
    return {
        "input_ids": input_ids,
        "token_type_ids": (position_ids >= length // 2).astype(np.int32),
        "example_ids": np.ones((batch_size, length), np.int32),
        "position_ids": position_ids,
        "masked_lm_positions": masked.astype(np.int32),
        "masked_lm_ids": masked_ids,
        "masked_lm_weights": np.ones(masked.shape, np.float32),
        "cls_positions": np.zeros((batch_size, 1), np.int32),
        "next_sentence_labels": (draw((batch_size, 1)) < 0.5).astype(np.int32),
        "next_sentence_weights": np.ones((batch_size, 1), np.float32),
    }


def used_devices() -> Any:
    """Return one GPU, or all other devices."""
    import jax

    devices = jax.devices()
    return devices[:1] if devices[0].platform == "gpu" else devices


def make_bertjax_step(case: Case) -> Callable[[], object]:
    """Return a function that makes an update, as `bertjax train` does."""
    import jax

    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry

    _, length, batch_size = case
    devices = used_devices()
    config = make_config(case, "float32" if devices[0].platform == "cpu" else "bfloat16")
    functions = StepFunctions(config, registry.make_objective(config), devices)
    train_step, constants = functions.compile_train_step(), functions.constants()
    batch = jax.device_put(make_batch(batch_size, length), functions.batch_sharding)
    state = functions.init()

    def step() -> object:
        nonlocal state
        state, sums = train_step(state, batch, constants)
        return functools.partial(jax.block_until_ready, (state, sums))

    return step


def make_torch_step(case: Case, compiled: bool, cores: int, device: str) -> Callable[[], object]:
    """Return the same of the peer."""
    model, length, batch_size = case
    batch = make_batch(batch_size, length)
    return torch_pretraining.make_step(*MODEL_SIZES[model], batch, compiled, cores, device)


def peak_memory(worker: str) -> int:
    """Return the bytes of a device that the worker has used; 0 where unknown."""
    if worker == BERTJAX:
        return int((used_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
    import torch

    return int(torch.cuda.max_memory_allocated())


def estimate(topology: str, case: Case) -> dict[str, Any]:
    """Return preflight's estimate for a case."""
    from bertjax.preflight.analysis import preflight
    from bertjax.preflight.topology import Topology

    train = preflight(make_config(case, "bfloat16"), Topology(topology), train_only=True).train
    bounds = train.roofline_seconds
    seconds = train.estimated_step_seconds or max(bounds.values())
    return {"bytes": train.hbm_bytes, "seconds": seconds, "roofline": bounds}


def measure(args: Any, case: Case, kind: str, count: int) -> dict[str, Any]:
    """Print the figures of one case and return them, for JSON."""
    from bertjax.model.flops import peak_flops
    from bertjax.tasks import registry

    model, length, batch_size = case
    programs = [BERTJAX]
    if args.peer_python != sys.executable and not kind.startswith("TPU"):
        programs += [EAGER, COMPILED] if kind == "cpu" else [COMPILED]
    options = [f"--models={model}", f"--seq-lengths={length}", f"--batch-size={batch_size}"]
    options.append(f"--device={'cpu' if kind == 'cpu' else 'cuda'}")
    commands = {name: harness.worker_command(args, name, *options) for name in programs}
    rounds = harness.take_turns(commands, args.rounds, args.steps, warm_up=3)
    print(f"\n{model}, {batch_size} sequences of {length} tokens on {count} {kind}", end="")
    harness.print_comparison("", "sequences", batch_size, rounds)
    figures: dict[str, Any] = {
        name: {
            "seconds": statistics.median(costs[name].wall for costs in rounds),
            "bytes": max(costs[name].memory for costs in rounds),
        }
        for name in programs
    }
    if args.topology:
        command = [sys.executable, *sys.argv, "--worker", PREFLIGHT, *options]
        figures[PREFLIGHT] = harness.read_reply(command, JAX_PLATFORMS="cpu")
    for name, figure in figures.items():
        bound = "at least " if figure.get("roofline") else ""
        memory = f", {figure['bytes'] / GIB:.1f} GiB" if figure["bytes"] else ""
        print(f"{name}: {bound}{1e3 * figure['seconds']:.1f} ms a step{memory}", flush=True)
    mfu = None
    if peak := peak_flops(kind):
        flops = registry.make_objective(make_config(case, "bfloat16")).step_flops()
        mfu = flops / figures[BERTJAX]["seconds"] / count / peak
        print(f"MFU {mfu:.0%}", flush=True)
    return {
        "date": datetime.date.today().isoformat(),
        "device": kind,
        "devices": count,
        "model": model,
        "length": length,
        "batch_size": batch_size,
        "mfu": mfu,
    } | figures


def main() -> None:
    parser = harness.make_parser(__doc__, rounds=7)
    parser.add_argument("--output", type=pathlib.Path, help="file that lines of JSON are added to")
    parser.add_argument("--topology", help="the same devices, for preflight")
    parser.add_argument("--models", nargs="+", choices=MODEL_SIZES)
    parser.add_argument("--seq-lengths", nargs="+", type=int, choices=NUM_PREDICTIONS)
    parser.add_argument("--batch-size", type=int, help="sequences a step, on all devices together")
    parser.add_argument("--device", help=argparse.SUPPRESS)  # of the peer
    parser.add_argument("--steps", type=int, default=10, help="steps before waiting for their end")
    args = parser.parse_args()
    if args.worker == DEVICES:
        devices = used_devices()
        print(json.dumps([devices[0].device_kind, len(devices)]))
        return
    if args.worker:
        case = args.models[0], args.seq_lengths[0], args.batch_size
        if args.worker == PREFLIGHT:
            print(json.dumps(estimate(args.topology, case)))
            return
        programs = {
            BERTJAX: functools.partial(make_bertjax_step, case),
            EAGER: functools.partial(make_torch_step, case, False, args.cores, args.device),
            COMPILED: functools.partial(make_torch_step, case, True, args.cores, args.device),
        }
        harness.serve_measurements(args, programs, lambda: peak_memory(args.worker))

    kind, count = harness.read_reply([sys.executable, *sys.argv, "--worker", DEVICES])
    if kind == "cpu":
        harness.limit_cores(args.cores)
    for model in args.models or (["mini"] if kind == "cpu" else ["base", "large"]):
        for length in args.seq_lengths or ([128] if kind == "cpu" else [128, 512]):
            batch_size = args.batch_size or BATCH_SIZES.get((model, length), 16) * count
            figures = measure(args, (model, length, batch_size), kind, count)
            if args.output:
                with args.output.open("a") as file:
                    file.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
