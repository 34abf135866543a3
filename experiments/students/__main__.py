"""Students with and without their teacher, in one table.

    python -m experiments.students --output DIR --config NAME[:OPTIONS] --teacher DIR --init DIR \
      [--init-layers 0,2,4] [--seeds N] [--two-stage] [--distill FIELD=VALUE ...] \
      [--set FIELD=VALUE ...]

Evaluates the teacher, then fine-tunes students of one shape from the blocks `--init-layers` of
`--init`, N with the teacher and N without. Prints means and standard errors of the scores, how much
of the gap between the teacher and students without is recovered, failed runs, which no mean counts,
steps, parameters, latency of one text of 32 tokens, and texts per second. `--distill` sets fields
of `distill`, `--set` those of all students, such as steps. With `--two-stage`, N more students
learn hidden states of the teacher first, for the same number of steps; `hidden_loss` and
`layer_map` are then those of this stage, unless `--distill` has a `hidden_weight`. Every step is a
`bertjax` command, printed before it runs; the same one resumes. DIR/students.json and .md have the
table.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath

import bertjax
from bertjax.checkpointing.retention import BestMetric
from bertjax.config.loading import read_run_record
from bertjax.training.metrics_file import read_metrics
from data_pipelines.errors import InputError
from experiments.ablations.commands import local_path, override_flags, run_once

_TEXTS, _CALLS, _WORDS = 256, 30, 30  # with [CLS] and [SEP] a text has 32 tokens
# Parts of the names of what is in sweep.json beside scores of a model.
_NO_SCORES = ("loss", "majority", "total", "thresh")
_FIELDS_OF_BOTH_STAGES = ("distill.teacher", "distill.teacher_dtype", "distill.unlabeled")
_HIDDEN_OPTIONS = ("distill.hidden_loss", "distill.layer_map")
_HIDDEN_WEIGHTS: dict[str, object] = {
    "distill.hidden_weight": 1,
    "distill.labels_weight": 0,
    "distill.logits_weight": 0,
}


class Students(NamedTuple):
    """Trained students of a kind.

    Attributes:
      scores: scores of each run that has not failed, by their names.
      num_failed: number of the other runs.
      steps: train steps of a run, in all its stages.
      best: checkpoint of the best run.
    """

    scores: Mapping[str, Sequence[float]]
    num_failed: int
    steps: int
    best: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of model.

    Attributes:
      name: teacher, or student with or without it.
      scores: scores of each run by their names.
      num_failed: number of runs that failed, which have no scores.
      steps: train steps of a run; None for the teacher.
      parameters: number of parameters of encoder and heads.
      latency_ms: median time of one text of 32 tokens.
      texts_per_second: throughput of many such texts.
    """

    name: str
    scores: Mapping[str, Sequence[float]]
    num_failed: int
    steps: int | None
    parameters: int
    latency_ms: float
    texts_per_second: float


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and its standard error; 0 for one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def recovered(
    score: str, teacher: Sequence[float], without: Sequence[float], student: Sequence[float]
) -> str:
    """Return how much of the gap between teacher and students without it a student recovers."""
    if not (without and student):
        return "-"
    top, (base, error), (mean, _) = teacher[0], mean_and_error(without), mean_and_error(student)
    sign = -1 if BestMetric(score).is_minimized else 1
    if not sign * (top - base) > 2 * error:
        return "no gap of two standard errors"
    return f"{(mean - base) / (top - base):.0%}"


def format_table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    names = list(rows[-1].scores)
    lines = [["", *names, "failed", "steps", "parameters", "ms a text", "texts/s"]]
    for row in rows:
        cells = [_format_scores(row.scores[name]) for name in names]
        cells += [str(row.num_failed), "" if row.steps is None else f"{row.steps:,}"]
        cells += [f"{row.parameters / 1e6:.1f}M"]
        cells += [f"{row.latency_ms:.1f}", f"{row.texts_per_second:.0f}"]
        lines.append([row.name, *cells])
    teacher, without, *students = rows
    for row in students:
        compared = (teacher, without, row)
        shares = [recovered(name, *(r.scores[name] for r in compared)) for name in names]
        lines.append([f"recovered, {row.name}", *shares, *[""] * 5])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _format_scores(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, error = mean_and_error(values)
    return f"{mean:.4f}" + (f" ± {error:.4f}" if len(values) > 1 else "")


def measure(
    name: str,
    scores: Mapping[str, Sequence[float]],
    num_failed: int,
    steps: int | None,
    path: epath.PathLike,
) -> Row:
    """Return the row of a model, whose encoder is timed."""
    model = bertjax.load(path)
    word = max((token for token in model.tokenizer.tokens if token.isalpha()), key=len)
    text = " ".join([word] * _WORDS)
    times = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        model.encode(text)
        times.append(time.perf_counter() - start)
    model.encode([text] * _TEXTS)
    start = time.perf_counter()
    model.encode([text] * _TEXTS)
    seconds = time.perf_counter() - start
    num_params = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    latency = 1e3 * statistics.median(times)
    return Row(name, scores, num_failed, steps, num_params, latency, _TEXTS / seconds)


def read_runs(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Return the runs of a sweep, with their seeds and scores."""
    runs: list[dict[str, Any]] = json.loads((workdir / "sweep.json").read_text())["runs"]
    return runs


def collect_scores(runs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[float]], int]:
    """Return the scores by name of each run that has not failed, and the number of the others.

    Losses, counts, thresholds and scores of the majority class are left out.

    Args:
      runs: the runs of a sweep; a score that is not finite is None.
    """
    names = [name for name in runs[0]["scores"] if not any(part in name for part in _NO_SCORES)]
    complete = [run for run in runs if not run["failed"] and None not in run["scores"].values()]
    scores = {name: [run["scores"][name] for run in complete] for name in names}
    return scores, len(runs) - len(complete)


def collect_students(
    runs: Sequence[Mapping[str, Any]], workdir: pathlib.Path, earlier_steps: int = 0
) -> Students:
    """Return the students of some runs.

    Args:
      runs: the runs.
      workdir: directory of a sweep, whose best run is timed.
      earlier_steps: steps of the stages before it.
    """
    best = workdir / "best"
    steps = earlier_steps + read_run_record(epath.Path(best))["step"]
    return Students(*collect_scores(runs), steps, best)


def train_students(args: argparse.Namespace, name: str, fields: Mapping[str, object]) -> Students:
    """Train the students of a kind."""
    workdir = args.output / name
    command = ["sweep", "--config", args.config, "--workdir", str(workdir)]
    command += ["--seeds", str(args.seeds), *override_flags(fields)]
    run_once(args.output / f"{name}.commands.json", [command])
    return collect_students(read_runs(workdir), workdir)


def split_stages(
    teaching: Mapping[str, object],
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the fields of `distill` of the stage of hidden states, and those of predictions.

    Stored logits have no hidden states, and a temperature has no effect on these.

    Args:
      teaching: fields of both stages.
    """
    kept = (*_FIELDS_OF_BOTH_STAGES, *_HIDDEN_OPTIONS)
    first = {name: value for name, value in teaching.items() if name in kept}
    # A configuration rejects a field that no loss reads.
    unread = [] if "distill.hidden_weight" in teaching else [*_HIDDEN_OPTIONS]
    unread += ["distill.teacher_dtype"] if "distill.logits" in teaching else []
    second = {name: value for name, value in teaching.items() if name not in unread}
    return first | _HIDDEN_WEIGHTS, second


def train_in_two_stages(
    args: argparse.Namespace,
    shared: dict[str, object],
    hidden_states: dict[str, object],
    predictions: dict[str, object],
) -> Students:
    """Train students on hidden states, then on predictions.

    Args:
      args: the arguments; the students have the seeds of those without the teacher.
      shared: fields of all students.
      hidden_states: fields of the first stage.
      predictions: fields of the second stage.
    """
    first_stage = shared | hidden_states
    second_stage = {name: v for name, v in shared.items() if name != "init_layers"} | predictions
    directory, runs = args.output / "two-stage", []
    for seed in (run["seed"] for run in read_runs(args.output / "without")):
        hidden, workdir = directory / f"hidden-{seed}", directory / f"predictions-{seed}"
        first, second = (
            [command, "--config", args.config, "--workdir", str(path), *override_flags(fields)]
            for command, path, fields in (
                ("train", hidden, first_stage | {"seed": seed}),
                ("sweep", workdir, second_stage | {"init": hidden, "seed": seed}),
            )
        )
        run_once(directory / f"{seed}.commands.json", [first, second])
        runs += read_runs(workdir)
    return collect_students(runs, workdir, read_metrics(hidden)[-1]["step"])


def parse_fields(flag: str, items: Sequence[str]) -> dict[str, str]:
    """Return the fields of `FIELD=VALUE` by name.

    Raises:
      InputError: an item of the flag has another form.
    """
    for item in items:
        if not re.match("[^=]+=", item):
            raise InputError(f"{flag} {item}: not of the form FIELD=VALUE. Add a value.")
    return dict(item.split("=", 1) for item in items)


def check_steps(settings: Mapping[str, str], distill: Mapping[str, str]) -> None:
    """Check that all students are trained for the same number of steps.

    Raises:
      InputError: examples without labels make the epochs of students with the teacher longer.
    """
    unlabeled, steps = distill.get("unlabeled"), settings.get("steps", "")
    if unlabeled and not re.fullmatch(r"\d+( steps?)?", steps):
        raise InputError(
            f"--distill unlabeled={unlabeled}: makes epochs of the students with the teacher "
            "longer. Give all a number of steps, such as --set steps=6000."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.students", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--config", required=True, metavar="NAME[:OPTIONS]")
    parser.add_argument("--teacher", required=True, metavar="DIR")
    parser.add_argument("--init", required=True, metavar="DIR")
    parser.add_argument("--init-layers", default="", metavar="N,N,...")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--two-stage", action="store_true")
    parser.add_argument("--distill", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    args = parser.parse_args()
    settings, distill = parse_fields("--set", args.set), parse_fields("--distill", args.distill)
    check_steps(settings, distill)
    args.output.mkdir(parents=True, exist_ok=True)
    evaluation = args.output / "teacher"
    command = ["evaluate", "--checkpoint", args.teacher, "--config", args.config]
    # The other fields of the model are the student's shape; the teacher has its own.
    is_shape = {name: name.startswith("model.") and name != "model.dtype" for name in settings}
    command += override_flags({name: v for name, v in settings.items() if not is_shape[name]})
    run_once(args.output / "teacher.commands.json", [[*command, "--output", str(evaluation)]])
    shared: dict[str, object] = {"init": args.init, **settings}
    if args.init_layers:
        shared["init_layers"] = args.init_layers
    teaching: dict[str, object] = {"distill.teacher": args.teacher}
    teaching |= {f"distill.{name}": value for name, value in distill.items()}
    hidden_states, predictions = split_stages(teaching) if args.two_stage else ({}, teaching)
    without = train_students(args, "without", shared)
    with_teacher = train_students(args, "with", shared | predictions)
    teacher_scores = json.loads((evaluation / "scores.json").read_text())
    students = {"student without": without, "student with": with_teacher}
    if args.two_stage:
        students["student with, two stages"] = train_in_two_stages(
            args, shared, hidden_states, predictions
        )
    scores = {name: [teacher_scores[name]] for name in without.scores}
    rows = [measure("teacher", scores, 0, None, args.teacher)]
    rows += [measure(name, *kind) for name, kind in students.items()]
    table = format_table(rows)
    (args.output / "students.md").write_text(table)
    content = [dataclasses.asdict(row) for row in rows]
    (args.output / "students.json").write_text(json.dumps(content, indent=1))
    print(table, end="")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
