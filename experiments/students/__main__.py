"""Students with and without their teacher, in one table.

    python -m experiments.students --output DIR --config NAME[:OPTIONS] --teacher DIR --init DIR \
      [--init-layers 0,2,4] [--seeds N] [--two-stage] [--distill FIELD=VALUE ...] \
      [--set FIELD=VALUE ...]

Evaluates the teacher, then fine-tunes students of one shape from the blocks `--init-layers` of
`--init`, N with the teacher and N without. Prints means and standard errors of the scores, how much
of the gap between the teacher and students without is recovered, parameters, latency of one text of
32 tokens, and texts per second. `--distill` sets fields of `distill`, `--set` those of all
students, such as steps. With `--two-stage`, N more students learn hidden states of the teacher
first, for the same number of steps. Every step is a `bertjax` command, printed before it runs; the
same one resumes. DIR/students.json and .md have the table.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

import bertjax
from experiments.ablations.commands import override_flags, run_once

_TEXTS, _CALLS, _WORDS = 256, 30, 30  # with [CLS] and [SEP] a text has 32 tokens
_DATA_OF_BOTH_STAGES = ("distill.teacher", "distill.unlabeled")
_HIDDEN_STATES: dict[str, object] = {
    "distill.hidden_weight": 1,
    "distill.labels_weight": 0,
    "distill.logits_weight": 0,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of model.

    Attributes:
      name: teacher, or student with or without it.
      scores: scores of each run by their names.
      parameters: number of parameters of encoder and heads.
      latency_ms: median time of one text of 32 tokens.
      texts_per_second: throughput of many such texts.
    """

    name: str
    scores: Mapping[str, Sequence[float]]
    parameters: int
    latency_ms: float
    texts_per_second: float


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and its standard error; 0 for one value."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def recovered(teacher: Sequence[float], without: Sequence[float], student: Sequence[float]) -> str:
    """Return how much of the gap between teacher and students without it a student recovers."""
    top, (base, error), (mean, _) = teacher[0], mean_and_error(without), mean_and_error(student)
    if not top - base > 2 * error:
        return "no gap of two standard errors"
    return f"{(mean - base) / (top - base):.0%}"


def format_table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    names = list(rows[-1].scores)
    lines = [["", *names, "parameters", "ms a text", "texts/s"]]
    for row in rows:
        cells = []
        for name in names:
            mean, error = mean_and_error(row.scores[name])
            cells.append(f"{mean:.4f}" + (f" ± {error:.4f}" if len(row.scores[name]) > 1 else ""))
        parameters = f"{row.parameters / 1e6:.1f}M"
        speed = f"{row.latency_ms:.1f}", f"{row.texts_per_second:.0f}"
        lines.append([row.name, *cells, parameters, *speed])
    teacher, without, *students = rows
    for row in students:
        triples = [(r.scores[name] for r in (teacher, without, row)) for name in names]
        lines.append([f"recovered, {row.name}", *(recovered(*t) for t in triples), "", "", ""])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def measure(name: str, scores: Mapping[str, Sequence[float]], path: pathlib.Path) -> Row:
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
    return Row(name, scores, num_params, 1e3 * statistics.median(times), _TEXTS / seconds)


def read_runs(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Return the runs of a sweep, with their seeds and scores."""
    runs: list[dict[str, Any]] = json.loads((workdir / "sweep.json").read_text())["runs"]
    return runs


def collect_scores(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the scores of each run by name, without losses and those of the majority class."""
    names = [name for name in runs[0]["scores"] if "loss" not in name and "majority" not in name]
    return {name: [run["scores"][name] for run in runs] for name in names}


def train_students(
    args: argparse.Namespace, name: str, fields: Mapping[str, object]
) -> dict[str, list[float]]:
    """Train the students of a kind and return the scores of each."""
    workdir = args.output / name
    command = ["sweep", "--config", args.config, "--workdir", str(workdir)]
    command += ["--seeds", str(args.seeds), *override_flags(fields)]
    run_once(args.output / f"{name}.commands.json", [command])
    return collect_scores(read_runs(workdir))


def train_in_two_stages(
    args: argparse.Namespace, shared: dict[str, object], teaching: dict[str, object]
) -> tuple[dict[str, list[float]], pathlib.Path]:
    """Train students on hidden states, then on predictions; return scores and a workdir.

    Args:
      args: the arguments; the students have the seeds of those without the teacher.
      shared: fields of all students.
      teaching: fields of students with the teacher.
    """
    # Stored logits have no hidden states, and a temperature has no effect on these.
    kept = {name: teaching[name] for name in _DATA_OF_BOTH_STAGES if name in teaching}
    first_stage = shared | kept | _HIDDEN_STATES
    second_stage = {name: v for name, v in shared.items() if name != "init_layers"} | teaching
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
    return collect_scores(runs), workdir


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.students", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--output", required=True, type=pathlib.Path, metavar="DIR")
    parser.add_argument("--config", required=True, metavar="NAME[:OPTIONS]")
    parser.add_argument("--teacher", required=True, metavar="DIR")
    parser.add_argument("--init", required=True, metavar="DIR")
    parser.add_argument("--init-layers", default="", metavar="N,N,...")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--two-stage", action="store_true")
    parser.add_argument("--distill", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    evaluation = args.output / "teacher"
    settings = dict(item.split("=", 1) for item in args.set)
    command = ["evaluate", "--checkpoint", args.teacher, "--config", args.config]
    # The other fields of the model are the student's shape; the teacher has its own.
    is_shape = {name: name.startswith("model.") and name != "model.dtype" for name in settings}
    command += override_flags({name: v for name, v in settings.items() if not is_shape[name]})
    run_once(args.output / "teacher.commands.json", [[*command, "--output", str(evaluation)]])
    shared: dict[str, object] = {"init": args.init, **settings}
    if args.init_layers:
        shared["init_layers"] = args.init_layers
    distill = {f"distill.{name}": v for name, v in (item.split("=", 1) for item in args.distill)}
    teaching = {"distill.teacher": args.teacher, **distill}
    without = train_students(args, "without", shared)
    with_teacher = train_students(args, "with", shared | teaching)
    teacher_scores = json.loads((evaluation / "scores.json").read_text())
    rows = [
        measure(
            "teacher",
            {name: [teacher_scores[name]] for name in without},
            pathlib.Path(args.teacher),
        ),
        measure("student without", without, args.output / "without" / "best"),
        measure("student with", with_teacher, args.output / "with" / "best"),
    ]
    if args.two_stage:
        scores, workdir = train_in_two_stages(args, shared, teaching)
        rows.append(measure("student with, two stages", scores, workdir / "best"))
    table = format_table(rows)
    (args.output / "students.md").write_text(table)
    content = [dataclasses.asdict(row) for row in rows]
    (args.output / "students.json").write_text(json.dumps(content, indent=1))
    print(table, end="")


if __name__ == "__main__":
    main()
