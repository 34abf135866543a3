"""Sweep, compared with the same runs one after the other.

    python -m experiments.bench.sweep_speed --output DIR [--runs-per-device N] [--devices N] \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE --config.model.dtype=float32 \
      --config.steps=40 --config.log_every=1

Sixteen runs: four learning rates with four seeds each. A run on its own is a `bertjax train`. Both
ways evaluate and save once, at the end, and start with an empty cache of compiled programs; each
run on its own finds there what earlier ones compiled. --devices divides the CPU for the sweep only.
Printed are wall and CPU time, their ratios, and the largest differences of losses and scores
between the sweep and the runs on their own.
"""

import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bench.harness import Cost, limit_cores, make_parser, measure_cost

LEARNING_RATES = ("5e-5", "4e-5", "3e-5", "2e-5")  # the paper's
EVALUATE_AT_END = ["--config.eval_every=100%", "--config.checkpoint_every=100%"]
_IGNORED_METRICS = (
    "step",
    "epoch",
    "learning_rate",
    "sequences_per_second",
    "tokens_per_second",
    "mfu",
    "input_wait_fraction",
)

Metrics = dict[tuple[str, int, str], float]  # (split, step, name) -> value


def read_metrics(path: pathlib.Path) -> dict[str, Metrics]:
    """Return the metrics in a file by run; a run on its own has the name ''."""
    metrics: dict[str, Metrics] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        run, _, split = line.pop("split").rpartition("/")
        metrics.setdefault(run, {}).update(
            ((split, line["step"], name), float(value))
            for name, value in line.items()
            if name not in _IGNORED_METRICS and value is not None
        )
    return metrics


def max_relative_difference(
    sweep: Mapping[str, Metrics], separate: Mapping[str, Metrics], name: str
) -> float:
    """Return the largest relative difference of a metric over runs, splits and steps."""
    return max(
        abs(sweep[run][key] - value) / max(abs(value), 1e-9)
        for run, metrics in separate.items()
        for key, value in metrics.items()
        if key[-1] == name
    )


def run_sweep(
    spec: str, overrides: Sequence[str], seeds: int, runs_per_device: int, workdir: pathlib.Path
) -> tuple[dict[str, Metrics], Cost]:
    """Run the sweep and return the metrics of each run."""
    command = [sys.executable, "-m", "bertjax", "sweep", "--config", spec, f"--seeds={seeds}"]
    command += ["--workdir", str(workdir), f"--runs-per-device={runs_per_device}"]
    command += ["--grid", f"optimizer.learning_rate={','.join(LEARNING_RATES)}", *overrides]
    cost = measure_cost(command)
    metrics: dict[str, Metrics] = {}
    for path in sorted(workdir.glob("parallel_runs/*/metrics.jsonl")):
        metrics |= {run: values for run, values in read_metrics(path).items() if run}
    return metrics, cost


def run_separately(
    spec: str, overrides: Sequence[str], seeds: int, directory: pathlib.Path
) -> tuple[dict[str, Metrics], list[Cost]]:
    """Run each run on its own and return its metrics and cost."""
    metrics, costs = {}, []
    for rate in LEARNING_RATES:
        for seed in range(seeds):
            workdir = directory / f"{rate}-{seed}"
            command = [sys.executable, "-m", "bertjax", "train", "--config", spec, *overrides]
            command += [f"--config.optimizer.learning_rate={rate}", f"--config.seed={seed}"]
            costs.append(measure_cost([*command, "--workdir", str(workdir)]))
            metrics[f"learning_rate={rate},seed={seed}"] = read_metrics(workdir / "metrics.jsonl")[
                ""
            ]
            shutil.rmtree(workdir / "checkpoints")
    return metrics, costs


def use_compilation_cache(directory: pathlib.Path) -> None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(directory.resolve())


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each learning rate, from 0")
    parser.add_argument("--runs-per-device", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1, help="simulated devices of the sweep")
    args, overrides = parser.parse_known_args()
    limit_cores(args.cores)
    args.output.mkdir(parents=True)
    overrides = [*EVALUATE_AT_END, *overrides]

    use_compilation_cache(args.output / "cache-separate")
    separate, costs = run_separately(args.config, overrides, args.seeds, args.output / "separate")
    use_compilation_cache(args.output / "cache-sweep")
    if args.devices > 1:
        flags = os.environ.get("XLA_FLAGS", "")
        device_count = f"--xla_force_host_platform_device_count={args.devices}"
        os.environ["XLA_FLAGS"] = f"{flags} {device_count}".strip()
    sweep, sweep_cost = run_sweep(
        args.config, overrides, args.seeds, args.runs_per_device, args.output / "sweep"
    )

    total = Cost(*(sum(values) for values in zip(*costs, strict=True)))
    names = sorted({name for metrics in separate.values() for *_, name in metrics})
    result: dict[str, Any] = {
        "runs": len(separate),
        "config": args.config,
        "overrides": overrides,
        "devices": args.devices,
        "runs_per_device": args.runs_per_device,
        "sweep": sweep_cost._asdict(),
        "separate": total._asdict(),
        "first_separate": costs[0]._asdict(),
        "differences": {name: max_relative_difference(sweep, separate, name) for name in names},
    }
    (args.output / "result.json").write_text(json.dumps(result) + "\n")
    for name, cost in (("separate", total), ("sweep", sweep_cost)):
        print(f"{name:12}{cost.wall:9.1f} s {cost.cpu:9.1f} s of CPU time")
    speedups = total.wall / sweep_cost.wall, total.cpu / sweep_cost.cpu
    print("{} runs, speedup {:.2f} (CPU {:.2f})".format(len(separate), *speedups))
    differences = (f"{name} {value:.2g}" for name, value in result["differences"].items())
    print(f"largest relative differences: {', '.join(differences)}")


if __name__ == "__main__":
    main()
