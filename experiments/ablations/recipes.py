"""Effect of each change to the paper's recipe at a small budget, and of `recipe=modern`.

    python -m experiments.ablations.recipes --output DIR --corpus CORPUS --steps N \
      [--size SIZE] [--seeds N] [--only NAME ...] [--config.FIELD=VALUE ...]

Every row is `bertjax train` with the same number of steps, for each seed, printed before it runs.
The same command resumes after an interruption. The column "degenerate" counts the runs that
diverged. "CLM first" spends a fraction of the steps on CLM and initializes the MLM run from it. The
last rows are `recipe=modern`, which combines the useful changes, CLM first included, with all steps
and with a third of them.
DIR/recipes.json, .md and .html have the MLM loss on the eval split, always with 15% masked in
80/10/10, and the CPU minutes of a run, with start and compilation; after an interruption only those
since.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import EXIT_DIVERGED
from bertjax.training.metrics_file import read_metrics
from experiments.ablations.commands import check_seeds, local_path, override_flags, run_once
from experiments.ablations.results import VariantResult, write_results
from experiments.ablations.tables import Finding

CLM_FIRST = "CLM first"
CLM_FRACTION = 0.2  # of the steps
CHANGES: dict[str, dict[str, Any]] = {
    "Muon": {"optimizer.name": "muon"},
    "no dropout": {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
    "one cycle": {"optimizer.schedule": "one_cycle", "optimizer.warmup": "25%"},
    "b2 of 0.98": {"optimizer.b2": 0.98},
    "no NSP": {"data.objective": "mlm"},
    "30% masked": {"data.mlm_probability": 0.3},
    "batch size ramp-up": {"batch_size_rampup": 4},
    "local attention init": {"model.attention_init": "local"},
    CLM_FIRST: {},
}
PAPER, MODERN, MODERN_THIRD = "the paper's", "modern", "modern, a third of the steps"
LOSS, MINUTES = "mlm loss", "CPU minutes"


def train(
    workdir: pathlib.Path,
    options: str,
    stages: Mapping[str, int],
    fields: Mapping[str, Any],
    extra_flags: Sequence[str],
) -> tuple[float | None, float]:
    """Train the missing runs of a row, each initialized from the one before.

    Args:
      workdir: directory of the row and seed.
      options: options of `experiments/pretraining.py`.
      stages: steps of each run by its objective.
      fields: configuration fields of every run, which may override the objective.
      extra_flags: flags that override those of the row.

    Returns:
      The final MLM loss, None if a run diverged, and the CPU minutes.
    """
    commands, init = [], ""
    for objective, steps in stages.items():
        stage = workdir / objective.removesuffix("_nsp")
        config = f"pretraining:{options},objective={objective},init={init}"
        target = ["--workdir", str(stage), "--config", config, f"--config.steps={steps}"]
        commands.append(["train", *target, *override_flags(fields), *extra_flags])
        init = str(stage)
    status, minutes = run_once(workdir / "record.json", commands, [EXIT_DIVERGED])
    if status == EXIT_DIVERGED:
        return None, minutes
    return float(read_metrics(init)[-1]["mlm_loss"]), minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", default=[], help="rows to run, by a part of their names"
    )
    args, extra_flags = parser.parse_known_args()
    check_seeds(args.seeds)
    variants: dict[str, dict[str, Any]] = {PAPER: {}, **CHANGES, MODERN: {}, MODERN_THIRD: {}}
    for part in args.only:
        if not any(part in name for name in variants):
            sys.exit(f"--only {part}: no row has this name. Rows are {', '.join(variants)}.")
    shared: dict[str, Any] = {"data.max_predictions_per_seq": None, "eval_every": "100%"}
    shared |= {"optimizer.warmup": "10%", "optimizer.decay_steps": 0}
    shared |= {"eval_batches": 0, "checkpoint_every": "50%", "keep_period": 0}
    rows = []
    for name, fields in variants.items():
        if args.only and not any(part in name for part in args.only):
            continue
        steps = args.steps // 3 if name == MODERN_THIRD else args.steps
        clm_steps = round(CLM_FRACTION * steps) if name in (CLM_FIRST, MODERN, MODERN_THIRD) else 0
        stages = {"clm": clm_steps} if clm_steps else {}
        stages["mlm_nsp"] = steps - clm_steps
        recipe = "modern" if name in (MODERN, MODERN_THIRD) else "paper"
        options = f"model={args.size},recipe={recipe},data={args.corpus}"
        directory = args.output / name.replace(" ", "-").replace("'", "").replace(",", "")
        losses, minutes = [], []
        for seed in range(args.seeds):
            run_fields = shared | {"seed": seed} | fields
            workdir = directory / str(seed)
            loss, cpu_minutes = train(workdir, options, stages, run_fields, extra_flags)
            losses.append(loss)
            minutes.append(cpu_minutes)
        rows.append(VariantResult(name, None, {LOSS: losses, MINUTES: minutes}, losses.count(None)))
    findings = [
        Finding(f"{row.name}: lower than {rows[0].name}", i, 0, ("mlm",), lower_is_better=True)
        for i, row in enumerate(rows[1:], 1)
    ]
    stem = args.output / "recipes"
    print(write_results(stem, "Recipes for small budgets.", rows, findings))


if __name__ == "__main__":
    main()
