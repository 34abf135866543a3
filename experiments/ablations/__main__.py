"""Ablations of the paper in one command: pre-train, fine-tune, tabulate.

    python -m experiments.ablations TABLE --output DIR --corpus CORPUS --size SIZE --steps N \
      --task NAME=DATA [--task ...] [--seeds N] [--recipe NAME] [--pretrain FIELD=VALUE ...] \
      [--finetune NAME.FIELD=VALUE ...]

TABLE is objectives, masking, sizes, steps or architectures (ELMo, GPT and BERT at equal size).
NAME is a task of `tables.TASKS`, DATA its directory. Every step is a `bertjax` command, printed
before it runs. The same command resumes after an interruption, and tasks, seeds or tables may be
added to the same DIR; other settings are rejected. Tables share their pre-trained models. On a pod
run it in every process, like `bertjax train`; architectures in one.
DIR/TABLE.json, .md and .html have mean and standard deviation of the scores over the seeds, the
perplexity on the eval split, and the paper's findings that are reproduced. No run is selected.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction

from bertjax.model.bert_config import BertConfig
from experiments import pretraining
from experiments.ablations.architectures import TABLE_FIELDS, make_table
from experiments.ablations.commands import override_flags, run_bertjax, run_once
from experiments.ablations.results import VariantResult, read_row, write_results
from experiments.ablations.tables import TABLES, TASKS, AblationTable, Variant, make_tables

ARCHITECTURES = "architectures"
MILESTONES = "0.1,0.2,0.4,0.7,1"


def parse_assignments(arguments: Sequence[str], option: str) -> dict[str, str]:
    """Return NAME=VALUE arguments as a dictionary."""
    assignments = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            sys.exit(f"{option} {argument}: no value. Write NAME=VALUE.")
        assignments[name] = value
    return assignments


class Ablation:
    """The runs of one table.

    Args:
      args: parsed arguments of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        milestones = sorted(map(Fraction, args.milestones.split(",")))
        # The smallest number of parts of the steps that end at every milestone.
        self._num_parts = math.lcm(*(milestone.denominator for milestone in milestones))
        self._options = {"model": args.size, "recipe": args.recipe, "data": args.corpus}
        if args.table == ARCHITECTURES:
            table = _make_architectures(args.size, parse_assignments(args.pretrain, "--pretrain"))
        else:
            table = make_tables(args.sizes.split(","), list(map(float, milestones)))[args.table]
        variants = [v.without_shared_options(self._options) for v in table.variants]
        self.table = dataclasses.replace(table, variants=variants)
        self._tasks = parse_assignments(args.task, "--task")
        for name in self._tasks:
            if name not in TASKS:
                sys.exit(f"--task {name}: unknown. Use one of {', '.join(TASKS)}.")
        self._finetune = parse_assignments(args.finetune, "--finetune")
        for milestone in milestones:
            if not 0 < milestone <= 1 or 1000 % milestone.denominator:
                sys.exit(f"--milestones {float(milestone):g}: not in (0, 1]. Write thousandths.")
        if args.steps < 1:
            sys.exit(f"--steps {args.steps}: no step. Train for one or more.")
        if args.table == "steps" and args.steps % self._num_parts:
            sys.exit(
                f"--steps {args.steps}: some --milestones lie between two steps. Use a multiple of "
                f"{self._num_parts}."
            )

    def run(self) -> list[VariantResult]:
        """Train the missing runs and return a row for each variant."""
        rows = []
        for variant in self.table.variants:
            model = self._pretrain(variant)
            sweeps = {name: self._fine_tune(variant, model, name) for name in self._tasks}
            runs = variant.directions() if variant.is_pair else (variant,)
            workdirs = [self._workdir(run) for run in runs]
            rows.append(read_row(variant, workdirs, self._last_step(variant), sweeps))
        return rows

    def _workdir(self, variant: Variant) -> pathlib.Path:
        return self._args.output / "pretraining" / variant.pretraining_name

    def _last_step(self, variant: Variant) -> int:
        return round(self._args.steps * variant.step_fraction)

    def _pretrain(self, variant: Variant) -> pathlib.Path:
        """Pre-train a variant and return its checkpoint."""
        if variant.is_pair:
            left_to_right, right_to_left = map(self._pretrain, variant.directions())
            pair = self._workdir(variant).with_name(f"pair+{variant.pretraining_name}")
            if not pair.exists():
                sources = ["--right-to-left", str(right_to_left), str(left_to_right), str(pair)]
                run_bertjax("convert", "--to", "bertjax", *sources)
            return pair
        args, workdir = self._args, self._workdir(variant)
        options = {**self._options, **variant.options}
        spec = ",".join(f"{name}={value}" for name, value in options.items())
        interval = str(max(1, round(args.steps / self._num_parts)))
        fields = {"steps": str(args.steps), "keep_period": interval}
        fields |= {"checkpoint_every": interval, "eval_every": interval}
        fields |= {**parse_assignments(args.pretrain, "--pretrain"), **variant.fields}
        config = ["--config", f"pretraining:{spec}"]
        run_bertjax("train", "--workdir", str(workdir), *config, *override_flags(fields))
        return workdir / "checkpoints" / f"{self._last_step(variant):08}"

    def _fine_tune(self, variant: Variant, model: pathlib.Path, name: str) -> pathlib.Path:
        """Fine-tune on a task with every seed and return the workdir of the sweep."""
        args, task = self._args, TASKS[name]
        shape = pretraining.get_config(**{"model": args.size, **variant.options}).model
        num_layers = int(variant.fields.get("model.num_hidden_layers", shape.num_hidden_layers))
        sizes = {"width": shape.hidden_size, "depth": min(4, num_layers)}
        head = {field: text.format(**sizes) for field, text in variant.finetuning.items()}
        fixed = {field: text.format(**sizes) for field, text in task.fields.items()}
        parts = ["pair"] if variant.is_pair else []
        parts += [variant.pretraining_name, f"{variant.step_fraction:g}"]
        parts += [variant.way] if variant.way else head.values()
        workdir = args.output / "finetuning" / "-".join([*parts, name])
        separator = "" if task.config.endswith(":") else ","
        spec = f"{task.config}{separator}init={model},data={self._tasks[name]}"
        given = {
            kind: {
                field.partition(".")[2]: value
                for field, value in self._finetune.items()
                if field.partition(".")[0] == kind
            }
            for kind in ("all", name, variant.way)
        }
        # A way has fields of its own, which those of all rows do not replace.
        usual = (
            {**fixed, **given["all"], **head} if variant.way else {**fixed, **head, **given["all"]}
        )
        fields = override_flags({**usual, **given[name], **given[variant.way]})
        command = ["sweep", "--config", spec, "--workdir", str(workdir), f"--seeds={args.seeds}"]
        run_once(workdir / "record.json", [[*command, *fields]])
        return workdir


def _make_architectures(size: str, fields: Mapping[str, str]) -> AblationTable:
    """Return the table of architectures for the fields of pre-training; exit if there is none."""
    try:
        sizes = {
            name: int(fields.get(f"model.{name}", getattr(BertConfig, name)))
            for name in TABLE_FIELDS
        }
        return make_table(size, sizes)
    except ValueError as error:  # InputError is one
        sys.exit(f"--size {size}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=[*TABLES, ARCHITECTURES])
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--sizes", default="2-128,4-256,6-384", help="rows of the table sizes")
    parser.add_argument("--milestones", default=MILESTONES, help="fractions of the steps")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--task", action="append", default=[], metavar="NAME=DATA")
    parser.add_argument("--pretrain", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--finetune", action="append", default=[], metavar="NAME.FIELD=VALUE")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    ablation = Ablation(args)
    rows, table = ablation.run(), ablation.table
    print(write_results(args.output / args.table, table.caption, rows, table.findings))


if __name__ == "__main__":
    main()
