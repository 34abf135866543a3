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
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction

from bertjax.config.loading import load_config
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from data_pipelines.errors import InputError
from data_pipelines.paths import check_exists, is_remote
from data_pipelines.text.tfds import TFDS
from experiments import pretraining
from experiments.ablations.architectures import TABLE_FIELDS, make_table
from experiments.ablations.commands import (
    check_seeds,
    local_path,
    override_flags,
    run_bertjax,
    run_once,
)
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
        if name in assignments:
            sys.exit(f"{option} {argument}: {name} has a value already. Give it once.")
        assignments[name] = value
    return assignments


class Ablation:
    """The runs of one table.

    Args:
      args: parsed arguments of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        check_seeds(args.seeds)
        milestones = _parse_milestones(args.milestones)
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
        for name, data in self._tasks.items():
            if name not in TASKS:
                sys.exit(f"--task {name}: unknown. Use one of {', '.join(TASKS)}.")
            _check_data(name, data)
        self._pretrain_fields = parse_assignments(args.pretrain, "--pretrain")
        self._finetune = parse_assignments(args.finetune, "--finetune")
        kinds = ["all", *self._tasks, *filter(None, {row.way: None for row in variants})]
        for field, value in self._finetune.items():
            kind, dot, _ = field.partition(".")
            if not dot or kind not in kinds:
                sys.exit(
                    f"--finetune {field}={value}: no runs of {kind}. Write NAME.FIELD=VALUE with "
                    f"one of {', '.join(kinds)}."
                )
        if args.steps < 1:
            sys.exit(f"--steps {args.steps}: no step. Train for one or more.")
        if args.table == "steps" and args.steps % self._num_parts:
            sys.exit(
                f"--steps {args.steps}: some --milestones lie between two steps. Use a multiple of "
                f"{self._num_parts}."
            )
        self._check_configurations()

    def _check_configurations(self) -> None:
        """Exit if a run has an invalid field or option, which would end the table at that run."""
        fields = registry.data_fields()
        try:
            for variant in self.table.variants:
                for run in variant.directions() if variant.is_pair else (variant,):
                    load_config(*self._pretraining_config(run), fields)
                for name in self._tasks:
                    load_config(*self._finetuning_config(variant, "model", name), fields)
        except ValueError as error:  # InputError is one
            sys.exit(str(error))

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
        workdir = self._workdir(variant)
        spec, fields = self._pretraining_config(variant)
        config = ["--config", spec, *override_flags(fields)]
        run_bertjax("train", "--workdir", str(workdir), *config)
        return workdir / "checkpoints" / f"{self._last_step(variant):08}"

    def _pretraining_config(self, variant: Variant) -> tuple[str, dict[str, str]]:
        """Return the configuration of the pre-training of one encoder, and its fields."""
        options = {**self._options, **variant.options}
        spec = ",".join(f"{name}={value}" for name, value in options.items())
        interval = str(max(1, round(self._args.steps / self._num_parts)))
        fields = {"steps": str(self._args.steps), "keep_period": interval}
        fields |= {"checkpoint_every": interval, "eval_every": interval}
        return f"pretraining:{spec}", {**fields, **self._pretrain_fields, **variant.fields}

    def _fine_tune(self, variant: Variant, model: pathlib.Path, name: str) -> pathlib.Path:
        """Fine-tune on a task with every seed and return the workdir of the sweep."""
        head, _ = self._head_and_fixed_fields(variant, name)
        parts = ["pair"] if variant.is_pair else []
        parts += [variant.pretraining_name, f"{variant.step_fraction:g}"]
        parts += [variant.way] if variant.way else head.values()
        workdir = self._args.output / "finetuning" / "-".join([*parts, name])
        spec, fields = self._finetuning_config(variant, str(model), name)
        command = ["sweep", "--config", spec, "--workdir", str(workdir)]
        command += [f"--seeds={self._args.seeds}", *override_flags(fields)]
        run_once(workdir / "record.json", [command])
        return workdir

    def _head_and_fixed_fields(
        self, variant: Variant, name: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the fields of fine-tuning that the variant and the task have."""
        shape = pretraining.get_config(**{"model": self._args.size, **variant.options}).model
        num_layers = int(variant.fields.get("model.num_hidden_layers", shape.num_hidden_layers))
        sizes = {"width": shape.hidden_size, "depth": min(4, num_layers)}
        head = {field: text.format(**sizes) for field, text in variant.finetuning.items()}
        fixed = {field: text.format(**sizes) for field, text in TASKS[name].fields.items()}
        return head, fixed

    def _finetuning_config(
        self, variant: Variant, model: str, name: str
    ) -> tuple[str, dict[str, str]]:
        """Return the configuration of the fine-tuning of a model on a task, and its fields."""
        task = TASKS[name]
        head, fixed = self._head_and_fixed_fields(variant, name)
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
        return spec, {**usual, **given[name], **given[variant.way]}


def _parse_milestones(text: str) -> list[Fraction]:
    """Return the fractions of the steps in ascending order; exit if one is invalid."""
    milestones = []
    for word in text.split(","):
        try:
            milestone = Fraction(word)
        except (ValueError, ZeroDivisionError):
            sys.exit(f"--milestones {text}: {word!r} is no number. Write them as {MILESTONES}.")
        if not 0 < milestone <= 1 or 1000 % milestone.denominator:
            sys.exit(f"--milestones {float(milestone):g}: not in (0, 1]. Write thousandths.")
        milestones.append(milestone)
    return sorted(milestones)


def _check_data(name: str, data: str) -> None:
    """Exit if the data of a task are local and do not exist."""
    if data.startswith(TFDS) or is_remote(data):
        return
    try:
        for path in [data] if os.path.exists(data) else data.split("+"):
            check_exists(path, "Name a directory.")
    except InputError as error:
        sys.exit(f"--task {name}={error}")


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
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
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
    ablation = Ablation(args)
    args.output.mkdir(parents=True, exist_ok=True)
    rows, table = ablation.run(), ablation.table
    print(write_results(args.output / args.table, table.caption, rows, table.findings))


if __name__ == "__main__":
    main()
