"""Adaptation to a domain with and without a detour through a causal LM, and with replay.

    python -m experiments.ablations.adaptation --output DIR --init BASE --domain CORPUS \
      --general CORPUS --steps N [--seeds N] [--config.FIELD=VALUE ...]

The rows are the untouched BASE and four ways of continued pre-training by `adapt`, each of N steps:
masked LM, masked LM with a tenth of general text, and a fraction of the steps (0.2 or 0.5) as CLM
before the masked LM. Those without replay train on the domain alone. Each run is evaluated by
`bertjax evaluate` on the eval splits of both corpora, with 15% masked. Commands are printed before
they run. The same command resumes after an interruption. The column "degenerate" counts the runs
that diverged.
DIR/adaptation.json, .md and .html have the MLM loss on both corpora and the CPU minutes of a run,
with start, compilation and evaluation; after an interruption only those since.
"""

import argparse
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertjax.errors import EXIT_DIVERGED
from experiments.ablations.commands import check_seeds, local_path, override_flags, run_once
from experiments.ablations.results import VariantResult, write_results
from experiments.ablations.tables import Finding

CAPTION = "Adaptation to a domain: MLM loss on the eval splits of domain and general text."
DOMAIN, GENERAL, MINUTES = "domain mlm_loss", "general mlm_loss", "CPU minutes"
BASE = "base"
# `bertjax evaluate` reads the eval splits; a training run has to evaluate once.
CADENCE = {"checkpoint_every": "50%", "keep_period": 0, "eval_every": "100%", "eval_batches": 1}


class Way(NamedTuple):
    """A way to continue pre-training.

    Attributes:
      name: name of the row.
      clm_fraction: fraction of the steps with the causal LM, which come first.
      is_replayed: whether general text is among the training data.
    """

    name: str
    clm_fraction: float = 0.0
    is_replayed: bool = False


WAYS = (
    Way("masked LM"),
    Way("masked LM with replay", is_replayed=True),
    Way("CLM first, 20% of the steps", 0.2),
    Way("CLM first, 50% of the steps", 0.5),
)
FINDINGS = [  # row 0 is BASE
    Finding(f"{way.name}: lower loss", row, 1, ("domain", "general"), lower_is_better=True)
    for row, way in enumerate(WAYS[1:], 2)
]


def adapt_commands(
    way: Way, workdir: pathlib.Path, args: argparse.Namespace, flags: Sequence[str]
) -> list[list[str]]:
    """Return the commands that train a run; the last one's workdir is `workdir`/mlm.

    Args:
      way: row of the run.
      workdir: directory of the run.
      args: parsed arguments of the command line.
      flags: flags of all commands.
    """
    clm_steps = round(way.clm_fraction * args.steps)
    stages = {"clm": clm_steps} if clm_steps else {}
    stages["mlm"] = args.steps - clm_steps
    replay = f",general={args.general}" if way.is_replayed else ""
    commands, init = [], args.init
    for objective, steps in stages.items():
        config = f"adapt:objective={objective},init={init},data={args.domain}{replay}"
        init = str(workdir / objective)
        fields = override_flags({**CADENCE, "steps": steps})
        commands.append(["train", "--workdir", init, "--config", config, *flags, *fields])
    return commands


def run_row(
    name: str,
    output: pathlib.Path,
    model: str,
    training: Sequence[Sequence[str]],
    args: argparse.Namespace,
    flags: Sequence[str],
) -> tuple[dict[str, float] | None, float]:
    """Train and evaluate a model, unless its record shows that this is done.

    Args:
      name: name of the record and of the scores in `output`.
      output: directory of the row.
      model: model to evaluate.
      training: commands that train it.
      args: parsed arguments of the command line.
      flags: flags of all commands.

    Returns:
      The scores of both eval splits, None if the run diverged, and the CPU minutes.
    """
    scores = output / f"{name}.scores"
    config = f"adapt:init={args.init},data={args.domain},general={args.general}"
    evaluation = ["evaluate", "--checkpoint", model, "--output", str(scores), "--config", config]
    commands = [*training, [*evaluation, "--config.eval_batches=0", *flags]]
    status, minutes = run_once(output / f"{name}.record.json", commands, [EXIT_DIVERGED])
    if status == EXIT_DIVERGED:
        return None, minutes
    return json.loads((scores / "scores.json").read_text()), minutes


def make_row(
    name: str, columns: Mapping[str, str], results: Sequence[tuple[dict[str, float] | None, float]]
) -> VariantResult:
    """Return the row of the results of `run_row`, one of each seed.

    Args:
      name: name of the row.
      columns: title of a column -> name of its score.
      results: scores and CPU minutes.
    """
    scores: dict[str, list[float | None]] = {
        title: [run[score] if run else None for run, _ in results]
        for title, score in columns.items()
    }
    scores[MINUTES] = [minutes for _, minutes in results]
    return VariantResult(name, None, scores, sum(run is None for run, _ in results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--init", required=True, metavar="BASE", help="model with an MLM head")
    parser.add_argument("--domain", required=True, metavar="CORPUS")
    parser.add_argument("--general", required=True, metavar="CORPUS")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    args, flags = parser.parse_known_args()
    check_seeds(args.seeds)
    corpora = {DOMAIN: args.domain, GENERAL: args.general}
    columns = {title: f"{pathlib.Path(path).name}/mlm_loss" for title, path in corpora.items()}
    rows = [make_row(BASE, columns, [run_row(BASE, args.output, args.init, [], args, flags)])]
    for way in WAYS:
        directory = args.output / re.sub(r"\W+", "-", way.name)
        results = []
        for seed in range(args.seeds):
            workdir = directory / str(seed)
            training = adapt_commands(way, workdir, args, [f"--config.seed={seed}", *flags])
            model = str(workdir / "mlm")
            results.append(run_row(str(seed), directory, model, training, args, flags))
        rows.append(make_row(way.name, columns, results))
    print(write_results(args.output / "adaptation", CAPTION, rows, FINDINGS))


if __name__ == "__main__":
    main()
