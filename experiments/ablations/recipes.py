"""What each change to the paper's recipe brings where there is little compute, and `modern`.

    python -m experiments.ablations.recipes --output DIR --corpus CORPUS --steps N \
      [--size SIZE] [--seeds N] [--only NAME ...] [--config.FIELD=VALUE ...]

Every row is `bertjax train` of as many steps, for each seed, printed before it runs; what is there
is not repeated, so the same line again goes on after whatever ended it. A run that diverges counts
as failed. "Left to right first" gives a part of the steps to a run from left to right that the
masks go on from. The last rows are `recipe=modern`, which has what proved useful of the changes, in
as many steps and in a third of them. DIR/recipes.json, .md and .html have the loss of held-out
masked pieces, always of 15% masked in 80/10/10, and the processor minutes of a run, start and
compiling included; of one that was interrupted, those since.
"""

import argparse
import pathlib
from typing import Any

from bertjax.errors import EXIT_DIVERGED
from bertjax.training.metric_writers import read_metrics
from experiments.ablations.commands import override_flags, run_once
from experiments.ablations.results import VariantResult, write_results
from experiments.ablations.tables import AblationTable, Finding, Variant

CLM_FIRST = "left to right first"
CLM_FRACTION = 0.2  # of the steps
CHANGES: dict[str, dict[str, Any]] = {
    "Muon": {"optimizer.name": "muon"},
    "no dropout": {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
    "one cycle": {"optimizer.schedule": "one_cycle", "optimizer.warmup": "25%"},
    "a faster second moment": {"optimizer.b2": 0.98},
    "no next sentences": {"data.objective": "mlm"},
    "30% masked": {"data.mlm_probability": 0.3},
    "a growing batch": {"batch_size_rampup": 4},
    "heads that look aside": {"model.initialization": "neighbours"},
    CLM_FIRST: {},
}
PAPER, MODERN, MODERN_THIRD = "the paper's", "modern", "modern, a third of the steps"
LOSS, MINUTES = "mlm loss", "processor minutes"


def training_stages(name: str, steps: int) -> dict[str, tuple[str, int]]:
    """Objective and steps of the runs of a row, each of which goes on where the last one ended."""
    if name not in (CLM_FIRST, MODERN, MODERN_THIRD):
        return {"masks": ("mlm_nsp", steps)}
    left = round(CLM_FRACTION * steps)
    return {"left": ("clm", left), "masks": ("mlm_nsp", steps - left)}


def train(
    workdir: pathlib.Path,
    options: str,
    runs: dict[str, tuple[str, int]],
    fields: dict[str, Any],
    extra_flags: list[str],
) -> tuple[float | None, float]:
    """Trains what is missing of a row's runs.

    Args:
      options: of `experiments/pretraining.py`.
      fields: of the configuration of every run.
      rest: flags that come last, and so win over those of the row.
    Returns:
      The loss at the end, None where a run diverged, and the minutes of the processor.
    """
    commands, init = [], ""
    for stage, (objective, steps) in runs.items():
        config = f"pretraining:{options},objective={objective},init={init}"
        given = override_flags({field: str(value) for field, value in fields.items()})
        to = ["--workdir", str(workdir / stage), "--config", config, f"--config.steps={steps}"]
        commands.append(["train", *to, *given, *extra_flags])
        init = str(workdir / stage)
    ended = run_once(workdir / "record.json", commands, [EXIT_DIVERGED])
    if ended.status == EXIT_DIVERGED:
        return None, ended.minutes
    return float(read_metrics(workdir / "masks")[-1]["mlm_loss"]), ended.minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="rows, by a word of their names")
    args, extra_flags = parser.parse_known_args()
    variants: dict[str, dict[str, Any]] = {PAPER: {}, **CHANGES, MODERN: {}, MODERN_THIRD: {}}
    every: dict[str, Any] = {"data.max_predictions_per_seq": None, "eval_every": "100%"}
    every |= {"optimizer.warmup": "10%", "optimizer.decay_steps": 0}
    every |= {"eval_batches": 0, "checkpoint_every": "50%", "keep_period": 0}
    rows = []
    for name, fields in variants.items():
        if args.only and not any(word in name for word in args.only):
            continue
        steps = args.steps // 3 if name == MODERN_THIRD else args.steps
        losses, minutes = [], []
        for seed in range(args.seeds):
            workdir = args.output / name.replace(" ", "-").replace("'", "").replace(",", "")
            workdir /= str(seed)
            recipe = "modern" if name in (MODERN, MODERN_THIRD) else "paper"
            options = f"model={args.size},recipe={recipe},data={args.corpus}"
            own = every | {"seed": seed} | fields
            loss, took = train(workdir, options, training_stages(name, steps), own, extra_flags)
            losses.append(loss)
            minutes.append(took)
        rows.append(VariantResult(name, None, {LOSS: losses, MINUTES: minutes}, losses.count(None)))
    names = [row.name for row in rows]
    findings = [
        Finding(f"{name}: less than {names[0]}", i, 0, ("mlm",), less=True)
        for i, name in enumerate(names[1:], 1)
    ]
    table = AblationTable("Recipes for little compute.", [*map(Variant, names)], findings)
    print(write_results(args.output / "recipes", table, rows))


if __name__ == "__main__":
    main()
