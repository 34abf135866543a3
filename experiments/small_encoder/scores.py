"""Fine-tuned scores of an encoder, of the same shape at random, and of a larger one.

    python -m experiments.small_encoder.scores --model DIR --data DIR --output DIR \
      [--upper DIR] [--task NAME ...] [--seeds N]

--model and --upper are directories in the layout of `transformers`. --data has `glue/` with MRPC,
STS-B and QNLI (`train_derived.tsv`: training pairs made of SQuAD), `squad/` with the first 44
articles of SQuAD 1.1 for training, and `ner/wnut17/`. Each task and model is one `bertjax sweep` of
N seeds, printed before it runs; the same command resumes. OUTPUT/scores.md has the table.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path, override_flags, run_once
from experiments.students.__main__ import collect_scores, read_runs

SHAPE = (  # fields of config.json that a model at random takes over
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SHARED: Mapping[str, object] = {
    "model.dtype": "float32",
    "batch_size": 32,
    "max_seq_length": 128,
    "optimizer.learning_rate": 2e-4,
    "eval_every": "100%",
    "checkpoint_every": "50%",
    "max_to_keep": 1,
}


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the table.

    Attributes:
      config: configuration; {data} is a directory.
      fields: further fields.
      score: name of its score.
    """

    config: str
    fields: Mapping[str, object]
    score: str


TASKS = {
    "qnli": Task(
        "glue:task=qnli,data={data}/glue/QNLI",
        {"data.train_file": "train_derived.tsv", "steps": "3 epochs"},
        "accuracy",
    ),
    "squad": Task(
        "squad:version=1,data={data}/squad",
        {
            "data.train_file": "train-v1.1.first44.json",
            "data.eval_file": "dev-v1.1.json",
            "max_seq_length": 256,
            "data.max_query_length": 64,
            "steps": "3 epochs",
        },
        "f1",
    ),
    "stsb": Task("glue:task=stsb,data={data}/glue", {"steps": "5 epochs"}, "pearson"),
    "mrpc": Task("glue:task=mrpc,data={data}/glue", {"steps": "5 epochs"}, "accuracy"),
    "wnut17": Task(
        "token_classification:data={data}/ner/wnut17,train_file=wnut17train.conll,"
        "eval_file=emerging.test.annotated",
        {"steps": "5 epochs"},
        "f1",
    ),
}


def model_fields(name: str, model: pathlib.Path, upper: str) -> dict[str, object]:
    """Return the fields that choose the encoder of a row: "model", "random" or "upper"."""
    if name == "upper":
        return {"init": upper}
    if name == "model":
        return {"init": str(model)}
    shape = json.loads((model / "config.json").read_text())
    return {"data.vocab": str(model), **{f"model.{field}": shape[field] for field in SHAPE}}


def score_task(args: argparse.Namespace, name: str, task: str) -> Sequence[float]:
    """Fine-tune an encoder for a task, and return the score of each seed."""
    settings, workdir = TASKS[task], args.output / name / task
    fields = {**SHARED, **settings.fields, **model_fields(name, args.model, args.upper)}
    command = ["sweep", "--config", settings.config.format(data=args.data)]
    command += ["--workdir", str(workdir), "--seeds", str(args.seeds), *override_flags(fields)]
    run_once(args.output / name / f"{task}.commands.json", [command])
    scores, _ = collect_scores(read_runs(workdir))
    return scores[settings.score]


def format_table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the table in Markdown.

    Args:
      rows: scores of each seed, by encoder and task.
    """
    tasks = list(next(iter(rows.values())))
    lines = [["", *(f"{task} {TASKS[task].score}" for task in tasks)], ["---"] * (len(tasks) + 1)]
    lines += [
        [name, *(_format_score(scores[task]) for task in tasks)] for name, scores in rows.items()
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _format_score(values: Sequence[float]) -> str:
    if not values:
        return "failed"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.small_encoder.scores",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--model", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--data", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--upper", default="", metavar="DIR")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    args = parser.parse_args()
    rows: dict[str, dict[str, Sequence[float]]] = {}
    for name in ("model", "random", *(["upper"] if args.upper else [])):
        rows[name] = {task: score_task(args, name, task) for task in args.task}
        atomic_write_text(args.output / "scores.md", format_table(rows))
    print(format_table(rows), end="")


if __name__ == "__main__":
    main()
