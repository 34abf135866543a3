"""What each change to the paper's recipe brings where there is little compute, and all together.

    python -m experiments.ablations.recipes --output DIR --corpus CORPUS --steps N \
      [--size SIZE] [--seeds N] [--only NAME ...] [--config.FIELD=VALUE ...]

Every row is a `bertjax sweep` of as many steps, over seeds of parameters and data, printed before
it runs; what is there is not repeated, so the same line again goes on after whatever ended it, and
the last row is all changes in a third of the steps. DIR/recipes.json, .md and .html have the loss
of held-out masked pieces, always of 15% masked in 80/10/10, and the processor minutes of a run,
start and compiling included.
"""

import argparse
import json
import pathlib
import resource
from typing import Any

from experiments.ablations.commands import bertjax, overrides
from experiments.ablations.results import Row, write_results
from experiments.ablations.tables import Finding, Table, Variant

CHANGES: dict[str, dict[str, Any]] = {
    "Muon": {"optimizer.name": "muon"},
    "no dropout": {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0},
    "one cycle": {"optimizer.schedule": "one_cycle", "optimizer.warmup": "25%"},
    "a faster second moment": {"optimizer.b2": 0.98},
    "no next sentences": {"data.objective": "mlm"},
    "30% masked": {"data.mask_prob": 0.3},
    "a growing batch": {"batch_growth": 4},
}
PAPER, ALL, THIRD = "the paper's", "all together", "all together, a third of the steps"
LOSS = "mlm loss"


def processor_seconds() -> float:
    """Of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="rows, by a word of their names")
    args, rest = parser.parse_known_args()
    together = {name: value for fields in CHANGES.values() for name, value in fields.items()}
    variants: dict[str, dict[str, Any]] = {PAPER: {}, **CHANGES, ALL: together, THIRD: together}
    rows = []
    for name, fields in variants.items():
        if args.only and not any(word in name for word in args.only):
            continue
        workdir = args.output / name.replace(" ", "-").replace("'", "").replace(",", "")
        took = workdir.with_suffix(".seconds")
        steps = args.steps // 3 if name == THIRD else args.steps
        options = f"model={args.size},recipe=paper,data={args.corpus}"
        own = {
            "optimizer.warmup": "1%",
            "optimizer.decay_steps": "0",
            **fields,
            "steps": steps,
            "data.max_predictions": None,
            "eval_every": "25%",
            "checkpoint_every": "50%",
            "keep_every": "0",
        }
        own = {field: str(value) for field, value in own.items()}
        if not took.exists():
            before = processor_seconds()
            given = ["--config", f"experiments/pretrain.py:{options}", "--workdir", str(workdir)]
            bertjax("sweep", *given, f"--seeds={args.seeds}", *overrides(own), *rest)
            took.write_text(str(processor_seconds() - before))
        runs = json.loads((workdir / "sweep.json").read_text())["runs"]
        minutes = float(took.read_text()) / 60 / args.seeds
        losses = [run["scores"]["mlm_loss"] for run in runs]
        rows.append(Row(name, None, {LOSS: losses, "processor minutes": [minutes]}, 0))
    names = [row.name for row in rows]
    findings = [
        Finding(f"{name}: less than {names[0]}", i, 0, ("mlm",), less=True)
        for i, name in enumerate(names[1:], 1)
    ]
    table = Table("Recipes for little compute.", [*map(Variant, names)], findings)
    print(write_results(args.output / "recipes", table, rows))


if __name__ == "__main__":
    main()
