"""Students with and without their teacher, in one table.

    python -m experiments.students --output DIR --config NAME[:OPTIONS] --teacher DIR --init DIR \
      [--init-layers 0,2,4] [--seeds N] [--distill FIELD=VALUE ...] [--set FIELD=VALUE ...]

Evaluates the teacher, then fine-tunes students of one shape from the blocks `--init-layers` of
`--init`, N with the teacher and N without. Prints means and standard errors of the scores, how much
of the gap between the teacher and students without is recovered, parameters, latency of one text of
32 tokens, and texts per second. `--distill` sets fields of `distill`, `--set` those of both kinds
of students, such as steps. Every step is a `bertjax` command, printed before it runs; the same one
resumes. DIR/students.json and .md have the table.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence

import jax

import bertjax
from experiments.ablations.commands import override_flags, run_once

_TEXTS, _CALLS, _WORDS = 256, 30, 30  # with [CLS] and [SEP] a text has 32 tokens


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
    gaps = [recovered(*(row.scores[name] for row in rows)) for name in names]
    lines.append(["recovered", *gaps, "", "", ""])
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


def train_students(
    args: argparse.Namespace, name: str, fields: Mapping[str, object]
) -> dict[str, list[float]]:
    """Train the students of a kind and return the scores of each."""
    workdir = args.output / name
    command = ["sweep", "--config", args.config, "--workdir", str(workdir)]
    command += ["--seeds", str(args.seeds), *override_flags(fields)]
    run_once(args.output / f"{name}.commands.json", [command])
    runs = json.loads((workdir / "sweep.json").read_text())["runs"]
    names = [name for name in runs[0]["scores"] if "loss" not in name and "majority" not in name]
    return {name: [run["scores"][name] for run in runs] for name in names}


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
    parser.add_argument("--distill", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    evaluation = args.output / "teacher"
    settings = dict(item.split("=", 1) for item in args.set)
    command = ["evaluate", "--checkpoint", args.teacher, "--config", args.config]
    command += override_flags(settings)
    run_once(args.output / "teacher.commands.json", [[*command, "--output", str(evaluation)]])
    shared = {"init": args.init, **settings}
    if args.init_layers:
        shared["init_layers"] = args.init_layers
    distill = {f"distill.{name}": v for name, v in (item.split("=", 1) for item in args.distill)}
    teaching = {"distill.teacher": args.teacher, **distill}
    without = train_students(args, "without", shared)
    with_teacher = train_students(args, "with", shared | teaching)
    scores = json.loads((evaluation / "scores.json").read_text())
    rows = [
        measure("teacher", {name: [scores[name]] for name in without}, pathlib.Path(args.teacher)),
        measure("student without", without, args.output / "without" / "best"),
        measure("student with", with_teacher, args.output / "with" / "best"),
    ]
    table = format_table(rows)
    (args.output / "students.md").write_text(table)
    content = [dataclasses.asdict(row) for row in rows]
    (args.output / "students.json").write_text(json.dumps(content, indent=1))
    print(table, end="")


if __name__ == "__main__":
    main()
