"""The paper's ablations by one command: pre-trains what is missing, fine-tunes, and tabulates.

    python -m experiments.ablations TABLE --output DIR --corpus CORPUS --size SIZE --steps N \
      --task NAME=DATA [--task ...] [--seeds N] [--recipe NAME] [--pretrain FIELD=VALUE ...] \
      [--finetune NAME.FIELD=VALUE ...]

TABLE is objectives, masking, sizes or steps. NAME is a task of `tables.TASKS`, DATA its directory.
Everything it does is a `bertjax` command, printed before it runs; each resumes by itself, so the
same line again goes on after whatever ended it, and more tasks, seeds or tables may be added to the
same DIR, which refuses other settings. Models that tables share are pre-trained once. On a pod it
is run on every host, as `bertjax train` is. DIR/TABLE.json, .md and .html have the scores, mean and
standard deviation over the seeds, with the held-out perplexity beside them, and say which of the
paper's findings show; nothing is chosen among runs.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from experiments import pretraining
from experiments.ablations.commands import bertjax, override_flags, run_once
from experiments.ablations.results import VariantResult, read_row, write_results
from experiments.ablations.tables import TABLES, TASKS, Variant

MILESTONES = "0.1,0.2,0.4,0.7,1"


def parse_assignments(arguments: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE as a dictionary."""
    found = {}
    for each in arguments:
        name, equals, value = each.partition("=")
        if not equals:
            sys.exit(f"{option} {each} has no '=': write NAME=VALUE.")
        found[name] = value
    return found


class Ablation:
    """One table.

    Args:
      args: of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._shares = sorted(float(share) for share in args.milestones.split(","))
        self._options = {"model": args.size, "recipe": args.recipe, "data": args.corpus}
        table = TABLES[args.table](args.sizes.split(","), self._shares)
        variants = [each.without_shared_options(self._options) for each in table.variants]
        self.table = dataclasses.replace(table, variants=variants)
        self._tasks = parse_assignments(args.task, "--task")
        for name in self._tasks:
            if name not in TASKS:
                sys.exit(f"--task {name} is unknown: choose among {', '.join(TASKS)}.")
        self._finetune = parse_assignments(args.finetune, "--finetune")
        self._check_shares()

    def run(self) -> list[VariantResult]:
        """Trains what is not trained; a row for each variant."""
        rows = []
        for variant in self.table.variants:
            model = self._pretrain(variant)
            sweeps = {name: self._fine_tune(variant, model, name) for name in self._tasks}
            rows.append(read_row(variant, self._workdir(variant), model, sweeps))
        return rows

    def _workdir(self, variant: Variant) -> pathlib.Path:
        return self._args.output / "pretraining" / variant.pretraining

    def _pretrain(self, variant: Variant) -> pathlib.Path:
        """The checkpoint that the variant is."""
        args, workdir, own = (
            self._args,
            self._workdir(variant),
            parse_assignments(self._args.pretrain, ""),
        )
        options = {**self._options, **variant.options}
        spec = ",".join(f"{name}={value}" for name, value in options.items())
        every = round(args.steps * self._milestone_unit())
        fields = {
            "steps": str(args.steps),
            "keep_period": str(every),
            "checkpoint_every": str(every),
            "eval_every": str(every),
        }
        fields |= {**own, **variant.fields}
        config = ["--config", f"pretraining:{spec}"]
        bertjax("train", "--workdir", str(workdir), *config, *override_flags(fields))
        return workdir / "checkpoints" / f"{round(args.steps * variant.share):08}"

    def _check_shares(self) -> None:
        for share in self._shares:
            if not 0 < share <= 1 or not _is_whole(1000 * share):
                sys.exit(f"--milestones {share:g}: write thousandths, above 0 and up to 1.")
        if self._args.table == "steps" and not _is_whole(self._args.steps * self._milestone_unit()):
            sys.exit(
                f"--steps {self._args.steps} is not a multiple of {round(1 / self._milestone_unit())}, and "
                "some --milestones would lie between two steps: choose another one."
            )

    def _milestone_unit(self) -> float:
        """The largest share of the steps of which every milestone is a multiple."""
        return next(
            1 / parts
            for parts in range(1, 1001)
            if all(_is_whole(share * parts) for share in self._shares)
        )

    def _fine_tune(self, variant: Variant, model: pathlib.Path, name: str) -> pathlib.Path:
        """The workdir of the restarts of a task."""
        args, task = self._args, TASKS[name]
        shape = pretraining.get_config(**{"model": args.size, **variant.options}).model
        told = {"width": shape.hidden_size, "depth": min(4, shape.num_hidden_layers)}
        head = {field: each.format(**told) for field, each in variant.finetuning.items()}
        fixed = {field: each.format(**told) for field, each in task.fields.items()}
        parts = [variant.pretraining, f"{variant.share:g}", *head.values(), name]
        workdir = args.output / "finetuning" / "-".join(parts)
        joint = "" if task.config.endswith(":") else ","
        spec = f"{task.config}{joint}init={model},data={self._tasks[name]}"
        own = {
            field.partition(".")[2]: value
            for field, value in self._finetune.items()
            if field.partition(".")[0] in (name, "all")
        }
        fields = override_flags({**fixed, **head, **own})
        command = ["sweep", "--config", spec, "--workdir", str(workdir), f"--seeds={args.seeds}"]
        run_once(workdir / "record.json", [[*command, *fields]])
        return workdir


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--sizes", default="2-128,4-256,6-384", help="of the table of sizes")
    parser.add_argument("--milestones", default=MILESTONES, help="shares of the steps")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", action="append", default=[], metavar="NAME=DATA")
    parser.add_argument("--pretrain", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--finetune", action="append", default=[], metavar="NAME.FIELD=VALUE")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    ablation = Ablation(args)
    rows = ablation.run()
    print(write_results(args.output / args.table, ablation.table, rows))


if __name__ == "__main__":
    main()
