"""Sweep, compared with the same runs one after the other.

    python -m experiments.bench.sweep_speed --output DIR [--devices N] \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE --config.model.dtype=float32 \
      --config.steps=40 --config.log_every=1

Sixteen runs: four learning rates with four seeds each. A run on its own is a `bertjax train`. Both
ways evaluate and save once, at the end, and start with an empty cache of compiled programs; each
run on its own finds there what earlier ones compiled. --devices divides the CPU for the sweep only.
Printed are wall and CPU time, their ratios, and the largest differences of losses and scores
between the sweep and the runs on their own.
"""

import os
import pathlib
import shutil
import sys
from collections import defaultdict

from bertjax.training.metrics_file import read_metrics
from bertjax.workdir.goodput import PARTS
from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.harness import Cost

LEARNING_RATES = ("5e-5", "4e-5", "3e-5", "2e-5")  # the paper's
IGNORED_METRICS = {"step", "split", "epoch", "learning_rate", "mfu", "input_wait_fraction"}
IGNORED_METRICS |= {"sequences_per_second", "examples_per_second", "tokens_per_second", "goodput"}
IGNORED_METRICS |= {f"{part}_fraction" for part in PARTS}

Metrics = dict[tuple[str, str, int, str], float]  # (run, split, step, name) -> value


def collect_metrics(workdir: pathlib.Path, run: str = "") -> Metrics:
    """Return the metrics of a run, or of the runs that were trained together."""
    metrics = {}
    for line in read_metrics(workdir):
        parallel_run, _, split = line["split"].rpartition("/")
        if name := run or parallel_run:
            for metric in line.keys() - IGNORED_METRICS:
                if line[metric] is not None:
                    metrics[name, split, line["step"], metric] = line[metric]
    return metrics


def use_compilation_cache(directory: pathlib.Path) -> None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(directory.resolve())


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=4, help="seeds of each learning rate, from 0")
    parser.add_argument("--devices", type=int, default=1, help="simulated devices of the sweep")
    args, overrides = parser.parse_known_args()
    if args.output.exists():
        sys.exit(f"--output={args.output}: exists. Name a new directory.")
    harness.limit_cores(args.cores)
    args.output.mkdir(parents=True)
    config = ["--config", args.config, *harness.EVALUATE_AT_END, *overrides]

    use_compilation_cache(args.output / "cache-separate")
    costs: list[Cost] = []
    separate: Metrics = {}
    for rate in LEARNING_RATES:
        for seed in range(args.seeds):
            workdir = args.output / "separate" / f"{rate}-{seed}"
            fields = [f"--config.optimizer.learning_rate={rate}", f"--config.seed={seed}"]
            command = ["train", "--workdir", str(workdir), *config, *fields]
            costs.append(harness.measure_cost(harness.bertjax_command(*command)))
            separate |= collect_metrics(workdir, f"learning_rate={rate},seed={seed}")
            shutil.rmtree(workdir / "checkpoints")

    use_compilation_cache(args.output / "cache-sweep")
    if args.devices > 1:
        device_count = f"--xla_force_host_platform_device_count={args.devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {device_count}".strip()
    grid = ["--grid", f"optimizer.learning_rate={','.join(LEARNING_RATES)}"]
    command = ["sweep", "--workdir", str(args.output / "sweep"), f"--seeds={args.seeds}", *grid]
    sweep_cost = harness.measure_cost(harness.bertjax_command(*command, *config))
    sweep: Metrics = {}
    for path in sorted(args.output.glob("sweep/parallel_runs/*/metrics.jsonl")):
        sweep |= collect_metrics(path.parent)

    differences: dict[str, float] = defaultdict(float)
    for key, value in separate.items():
        difference = abs(sweep[key] - value) / max(abs(value), 1e-9)
        differences[key[-1]] = max(differences[key[-1]], difference)
    total = Cost(*map(sum, zip(*costs, strict=True)))
    for name, cost in (("separate", total), ("sweep", sweep_cost)):
        print(f"{name:12}{cost.wall:9.1f} s {cost.cpu:9.1f} s of CPU time")
    speedups = total.wall / sweep_cost.wall, total.cpu / sweep_cost.cpu
    print("{} runs, speedup {:.2f} (CPU {:.2f})".format(len(costs), *speedups))
    listed = (f"{name} {difference:.2g}" for name, difference in sorted(differences.items()))
    print(f"largest relative differences: {', '.join(listed)}")


if __name__ == "__main__":
    main()
