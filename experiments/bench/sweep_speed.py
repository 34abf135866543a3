"""A sweep beside the same runs one after the other, each a `bertjax train` of its own.

    python -m experiments.bench.sweep_speed --output DIR [--runs-per-device N] [--devices N] \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE --config.model.dtype=float32 \
      --config.steps=40 --config.log_every=1

Sixteen runs: four rates, four seeds each. Both evaluate and save once, at the end, and both find
the cache of compiled programs empty at first: of the runs alone each finds there what those before
it compiled. --devices divides the CPU for the sweep alone. Told are the wall and processor time of
both and their ratio, and by how much a run's losses and scores in the sweep are off from those of
the run alone.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bench.alternating_runs import Cost, measure_cost

RATES = ("5e-5", "4e-5", "3e-5", "2e-5")  # the paper's
SINGLE_EVAL = ["--config.eval_every=100%", "--config.checkpoint_every=100%"]
_IGNORED_METRICS = (
    "step",
    "epoch",
    "learning_rate",
    "sequences_per_second",
    "tokens_per_second",
    "mfu",
    "input_wait_fraction",
)

Values = dict[tuple[str, int, str], float]  # of a run: by split, step and name


def read_metric_values(path: pathlib.Path) -> dict[str, Values]:
    """The numbers that training gave, by the run's name, which is empty where there is but one."""
    found: dict[str, Values] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        run, _, split = line.pop("split").rpartition("/")
        own = found.setdefault(run, {})
        own |= {
            (split, line["step"], name): float(value)
            for name, value in line.items()
            if name not in _IGNORED_METRICS and value is not None
        }
    return found


def max_relative_difference(
    together: Mapping[str, Values], alone: Mapping[str, Values], name: str
) -> float:
    """The largest relative difference of a number, between a run in the sweep and the run alone."""
    return max(
        abs(together[run][key] - value) / max(abs(value), 1e-9)
        for run, values in alone.items()
        for key, value in values.items()
        if key[-1] == name
    )


def sweep(
    spec: str, extra_flags: Sequence[str], seeds: int, options: Sequence[str], workdir: pathlib.Path
) -> tuple[dict[str, Values], Cost]:
    """What became of each run in a sweep."""
    command = [sys.executable, "-m", "bertjax", "sweep", "--config", spec]
    command += ["--workdir", str(workdir), f"--seeds={seeds}", *options]
    cost = measure_cost(
        [*command, "--grid", f"optimizer.learning_rate={','.join(RATES)}", *extra_flags]
    )
    found: dict[str, Values] = {}
    for path in sorted(workdir.glob("parallel_runs/*/metrics.jsonl")):
        found |= {run: values for run, values in read_metric_values(path).items() if run}
    return found, cost


def run_separately(
    spec: str, extra_flags: Sequence[str], seeds: Sequence[int], directory: pathlib.Path
) -> tuple[dict[str, Values], list[Cost]]:
    """What became of each run alone."""
    found, costs = {}, []
    for rate in RATES:
        for seed in seeds:
            workdir = directory / f"{rate}-{seed}"
            command = [sys.executable, "-m", "bertjax", "train", "--config", spec]
            own = [f"--config.optimizer.learning_rate={rate}", f"--config.seed={seed}"]
            costs.append(measure_cost([*command, "--workdir", str(workdir), *extra_flags, *own]))
            found[f"learning_rate={rate},seed={seed}"] = read_metric_values(
                workdir / "metrics.jsonl"
            )[""]
            shutil.rmtree(workdir / "checkpoints")
    return found, costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=4, help="of each rate, from 0")
    parser.add_argument(
        "--runs-per-device", type=int, default=1, help="runs that a device has at once"
    )
    parser.add_argument("--devices", type=int, default=1, help="of the sweep")
    parser.add_argument("--cores", type=int, default=2)
    args, extra_flags = parser.parse_known_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    args.output.mkdir(parents=True)
    extra_flags = [*SINGLE_EVAL, *extra_flags]

    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(args.output.resolve() / "compiled-alone")
    alone, costs = run_separately(
        args.config, extra_flags, range(args.seeds), args.output / "alone"
    )
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(args.output.resolve() / "compiled-together")
    flags = os.environ.get("XLA_FLAGS", "")
    if args.devices > 1:
        count = f"--xla_force_host_platform_device_count={args.devices}"
        os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    options = [f"--runs-per-device={args.runs_per_device}"]
    together, cost = sweep(args.config, extra_flags, args.seeds, options, args.output / "sweep")

    whole = Cost(*(sum(each) for each in zip(*costs, strict=True)))
    names = sorted({name for values in alone.values() for *_, name in values})
    result: dict[str, Any] = {
        "runs": len(alone),
        "config": args.config,
        "overrides": extra_flags,
        "devices": args.devices,
        "together": args.runs_per_device,
        "sweep": cost._asdict(),
        "alone": whole._asdict(),
        "first alone": costs[0]._asdict(),
        "apart": {name: max_relative_difference(together, alone, name) for name in names},
    }
    (args.output / "result.json").write_text(json.dumps(result) + "\n")
    for name, each in (("one by one", whole), ("sweep", cost)):
        print(f"{name:12}{each.wall:9.1f} s {each.cpu_seconds:9.1f} of processor")
    ratios = whole.wall / cost.wall, whole.cpu_seconds / cost.cpu_seconds
    print("{} runs, faster by {:.2f} ({:.2f} processor)".format(len(alone), *ratios))
    print("apart at most, relatively: ", end="")
    print(", ".join(f"{name} {value:.2g}" for name, value in result["apart"].items()))


if __name__ == "__main__":
    main()
