"""The train step on the accelerator that is here, beside a peer and beside what preflight says.

    python -m experiments.bench.accelerator --output results.jsonl [--peer-python PYTHON] \
      [--topology h100:1] [--models base large] [--seq-lengths 128 512] [--rows N]

One update in bfloat16 with float32 parameters, dropout 0.1, gradient clipping and AdamW, on full
rows of one pair each. On a GPU the peer is `transformers.BertForPreTraining` under
`torch.compile`, with autocast to bfloat16, PyTorch's fused AdamW and its scaled dot-product
attention without a mask, which takes the fastest kernel there is; ours masks as it always does.
Theirs scores the vocabulary at every piece, ours at the slots of the recipe. Both run on one GPU
and take turns; figures are medians over the rounds. PYTHON needs torch and transformers; without
it, and on TPUs, whose devices are all used, ours runs alone. TOPOLOGY names the same devices for
`bertjax preflight`, whose figures are then told beside.

Each case is one line of JSON at the end of the output, and one of the table that is printed.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from experiments.bench.alternating_runs import child_environment, serve_measurements, take_turns
from experiments.bench.cpu_step import PIECES, make_batch, peer_inputs
from experiments.bench.torch_peer import decayed

STEPS = 10  # that are under way at once, as in a run
MODEL_SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16)}
BATCH_SIZES = {("base", 128): 64, ("base", 512): 16, ("large", 128): 32, ("large", 512): 16}
MAX_PREDICTIONS = {128: 20, 512: 80}
RECIPE = pathlib.Path(__file__).parents[1] / "pretraining.py"
GIB = 2**30


def make_config(model: str, length: int, rows: int) -> Any:
    """That of our run."""
    from bertjax.config.loading import load_config
    from bertjax.tasks import registry

    spec = f"{RECIPE}:model={model},phase={1 if length == 128 else 2}"
    fields = {"batch_size": str(rows), "max_seq_length": str(length), "packing": "False"}
    return load_config(spec, fields, registry.data_fields()).resolve(None)


def our_step(model: str, length: int, rows: int) -> Callable[[], object]:
    """A function that makes `STEPS` updates, as `bertjax train` does."""
    import jax

    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry

    config = make_config(model, length, rows)
    programs = StepFunctions(config, registry.make_objective(config), our_devices())
    train, constants = programs.compile_train_step(), programs.constants()
    batch = jax.device_put(
        make_batch(rows, length, MAX_PREDICTIONS[length]), programs.batch_sharding
    )
    state = programs.init()

    def step() -> object:
        nonlocal state
        for _ in range(STEPS):
            state, window = train(state, batch, constants)
        return jax.block_until_ready((state, window))

    return step


def our_devices() -> Any:
    """One GPU, or all TPUs."""
    import jax

    return jax.devices()[:1] if jax.devices()[0].platform == "gpu" else jax.devices()


def our_memory() -> int:
    return int((our_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def peer_step(model: str, length: int, rows: int) -> Callable[[], object]:
    """The same of the peer."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layers, hidden, heads = MODEL_SIZES[model]
    peer = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=PIECES,
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            attn_implementation="sdpa",
        )
    )
    peer = peer.train().cuda()
    optimizer = torch.optim.AdamW(decayed(peer), lr=1e-4, eps=1e-6, fused=True)
    inputs = peer_inputs(make_batch(rows, length, MAX_PREDICTIONS[length]))
    tensors = {name: torch.from_numpy(array).long().cuda() for name, array in inputs.items()}
    compiled = torch.compile(peer)

    def step() -> object:
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(**tensors).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
            optimizer.step()
        return loss.item()

    return step


def peer_memory() -> int:
    import torch

    return int(torch.cuda.max_memory_allocated())


def preflight_estimate(topology: str, model: str, length: int, rows: int) -> dict[str, Any]:
    """What preflight says of our step, by a process that leaves the accelerator alone."""
    program = (
        "import json; from bertjax.preflight.analysis import preflight; "
        "from bertjax.preflight.topology import Topology; "
        "from experiments.bench.accelerator import configuration; "
        f"config = configuration({model!r}, {length}, {rows}); "
        f"print(preflight(config, Topology({topology!r}), train_only=True).to_json())"
    )
    alone = child_environment() | {"JAX_PLATFORMS": "cpu"}
    verdict = json.loads(subprocess.check_output([sys.executable, "-c", program], env=alone))
    train = verdict["train"]
    seconds = train["estimated_step_seconds"] or max(train["roofline_seconds"].values())
    return {"bytes": train["hbm_bytes"], "seconds": seconds, "parts": train["roofline_seconds"]}


def measure(args: argparse.Namespace, model: str, length: int) -> dict[str, Any]:
    """One case, for JSON."""
    ask = [sys.executable, __file__, "--work", "device"]
    kind, count = json.loads(subprocess.check_output(ask, env=child_environment()))
    rows = args.rows or BATCH_SIZES[model, length] * count
    interpreters = {"bertjax": sys.executable}
    if args.peer_python and not kind.startswith("TPU"):
        interpreters["torch"] = args.peer_python
    given = ["--models", model, "--seq-lengths", str(length), "--rows", str(rows)]
    commands = {
        name: [python, __file__, "--work", name, *given] for name, python in interpreters.items()
    }
    turns = list(take_turns(commands, args.rounds, 1, warm_up=1))
    found: dict[str, Any] = {
        name: {
            "seconds": statistics.median(costs[name].wall for costs in turns) / STEPS,
            "bytes": max(costs[name].memory for costs in turns),
        }
        for name in commands
    }
    if args.topology:
        found["preflight"] = preflight_estimate(args.topology, model, length, rows)
    from bertjax.model.flops import peak_flops
    from bertjax.tasks import registry

    config, peak = make_config(model, length, rows), peak_flops(kind)
    operations = registry.make_objective(config).step_flops()
    mfu = operations / found["bertjax"]["seconds"] / count / peak if peak else None
    date = datetime.date.today().isoformat()
    case = {"date": date, "device": kind, "devices": count, "model": model, "length": length}
    return case | {"rows": rows, "mfu": mfu} | found


def told(case: dict[str, Any]) -> str:
    """A case for a person."""
    ours = case["bertjax"]
    share = f", {case['mfu']:.0%} of the peak" if case["mfu"] else ""
    parts = [
        f"{case['model']} {case['length']}, {case['rows']} rows on {case['devices']} "
        f"{case['device']}: {1e3 * ours['seconds']:.1f} ms a step{share}, "
        f"{ours['bytes'] / GIB:.1f} GiB"
    ]
    if "torch" in case:
        peer = case["torch"]
        times = peer["seconds"] / ours["seconds"]
        parts.append(
            f"torch {1e3 * peer['seconds']:.1f} ms ({times:.2f} times), "
            f"{peer['bytes'] / GIB:.1f} GiB"
        )
    if "preflight" in case:
        said = case["preflight"]
        least = "at least " if said["parts"] else ""
        parts.append(
            f"preflight {least}{1e3 * said['seconds']:.1f} ms, {said['bytes'] / GIB:.1f} GiB"
        )
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="to which lines of JSON are added")
    parser.add_argument("--peer-python", metavar="PYTHON")
    parser.add_argument("--topology", help="the same devices, for preflight")
    parser.add_argument("--models", nargs="+", choices=MODEL_SIZES, default=list(MODEL_SIZES))
    parser.add_argument(
        "--seq-lengths", nargs="+", type=int, choices=MAX_PREDICTIONS, default=list(MAX_PREDICTIONS)
    )
    parser.add_argument("--rows", type=int, help="of a step, on all devices together")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", choices=["bertjax", "torch", "device"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    case = args.models[0], args.seq_lengths[0], args.rows
    if args.work == "device":
        devices = our_devices()
        print(json.dumps([devices[0].device_kind, len(devices)]))
    elif args.work == "bertjax":
        serve_measurements(lambda: our_step(*case), our_memory)
    elif args.work == "torch":
        serve_measurements(lambda: peer_step(*case), peer_memory)
    else:
        for model in args.models:
            for length in args.seq_lengths:
                found = measure(args, model, length)
                print(told(found), flush=True)
                if args.output:
                    with args.output.open("a") as sink:
                        sink.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
