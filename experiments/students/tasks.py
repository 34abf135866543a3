"""Teachers and students on several tasks: the table of docs/distillation.md.

    python -m experiments.students.tasks --data DIR --base DIR --output DIR \
      [--task NAME ...] [--seeds N] [--two-stage NAME ...]

Fine-tunes a teacher from the encoder `--base` for each task, stores its logits, and compares
students with and without it (`experiments.students`). A student has blocks 0, 2 and 4 of the base.
That of the task `few` is 2 layers of 128 at random, with ten labeled texts for each class of
banking77 and the other texts without labels. Each command is printed, and the same one resumes.
OUTPUT/TASK/students.md has the table of a task.
"""

import argparse
import collections
import csv
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path, override_flags, run_once, run_process

LABELED_PER_CLASS = 10  # of the task few
SMALL_ARTICLES = {"train": 15, "dev": 12}  # first articles of SQuAD
TAGGED_TRAIN, TAGGED_EVAL = "abefg", "h"  # files of the Broad Twitter Corpus

_BANKING77 = "sequence_classification:data={data}/classification/banking77,label=category"
_RANDOM_STUDENT = {
    "model.num_hidden_layers": 2,
    "model.hidden_size": 128,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 512,
}


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """Configurations of a task.

    Attributes:
      config: configuration of teacher and students; {data} and {made} are directories.
      fields: fields of both.
      teacher: fields of the teacher alone.
      student: fields of the students alone; without the shape of a model they have blocks of the
        base.
      distill: fields of `distill`.
    """

    config: str
    fields: Mapping[str, object]
    teacher: Mapping[str, object] = dataclasses.field(default_factory=dict)
    student: Mapping[str, object] = dataclasses.field(default_factory=dict)
    distill: Mapping[str, object] = dataclasses.field(default_factory=dict)


def _fields(steps: str, max_seq_length: int, **data: object) -> dict[str, object]:
    names = {f"data.{name}": value for name, value in data.items()}
    return {"steps": steps, "max_seq_length": max_seq_length, **names}


TASKS = {
    "banking77": TaskSettings(_BANKING77, _fields("3 epochs", 64, eval_file="test.csv")),
    "clinc150": TaskSettings(
        "sequence_classification:data={data}/classification/clinc150,text=sentence,label=label",
        _fields("3 epochs", 64, eval_file="test.tsv"),
    ),
    "mrpc": TaskSettings("glue:task=mrpc,data={data}/glue", _fields("3 epochs", 128)),
    "qnli": TaskSettings(
        "glue:task=qnli,data={data}/glue/QNLI",
        _fields("1 epochs", 128, train_file="train_derived.tsv"),
    ),
    "squad": TaskSettings(
        "squad:version=1,data={made}", _fields("1 epochs", 256, doc_stride=128, max_query_length=64)
    ),
    "btc": TaskSettings(
        "token_classification:data={made},train_file=train.conll,eval_file=dev.conll",
        _fields("2 epochs", 64),
    ),
    "few": TaskSettings(
        _BANKING77.replace("{data}/classification/banking77", "{made}"),
        _fields("3 epochs", 64, eval_file="test.csv"),
        teacher={"steps": "20 epochs"},
        student={"steps": 6000, "optimizer.learning_rate": 1e-3, **_RANDOM_STUDENT},
        distill={"unlabeled": "{made}/unlabeled.csv", "labels_weight": 0, "logits_weight": 1},
    ),
}
_SHARED: dict[str, object] = {
    "model.dtype": "float32",
    "batch_size": 32,
    "optimizer.learning_rate": 2e-4,
    "eval_every": "100%",
    "checkpoint_every": "50%",
}


def make_data(task: str, data: pathlib.Path, made: pathlib.Path) -> None:
    """Write the files of a task that are a part of published ones."""
    made.mkdir(parents=True, exist_ok=True)
    if task == "few":
        _split_banking77(data / "classification/banking77", made)
    elif task == "squad":
        for split, name in (("train", "train-v1.1.first44.json"), ("dev", "dev-v1.1.json")):
            content = json.loads((data / "squad" / name).read_text())
            content["data"] = content["data"][: SMALL_ARTICLES[split]]
            atomic_write_text(made / f"{split}-v1.1.json", json.dumps(content))
    elif task == "btc":
        for split, letters in (("train", TAGGED_TRAIN), ("dev", TAGGED_EVAL)):
            texts = [(data / f"ner/btc/{letter}.conll").read_text() for letter in letters]
            atomic_write_text(made / f"{split}.conll", "\n\n".join(texts))


def _split_banking77(source: pathlib.Path, made: pathlib.Path) -> None:
    with (source / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    seen: collections.Counter[str] = collections.Counter()
    files: dict[str, list[dict[str, str]]] = {"train.csv": [], "unlabeled.csv": []}
    for row in rows:
        seen[row["category"]] += 1
        is_labeled = seen[row["category"]] <= LABELED_PER_CLASS
        files["train.csv" if is_labeled else "unlabeled.csv"].append(row)
    for name, chosen in files.items():
        columns = ["text", "category"] if name == "train.csv" else ["text"]
        with (made / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(chosen)
    atomic_write_text(made / "test.csv", (source / "test.csv").read_text())


def compare(args: argparse.Namespace, task: str) -> None:
    """Fine-tune the teacher of a task and compare its students."""
    settings, output = TASKS[task], args.output / task
    made = output / "data"
    make_data(task, args.data, made)
    place = {"data": args.data, "made": made}
    config, fields = settings.config.format(**place), {**_SHARED, **settings.fields}
    teacher, logits = output / "teacher-run", output / "teacher.logits"
    distill = {
        "temperature": 1,
        **{name: str(value).format(**place) for name, value in settings.distill.items()},
    }
    student = {**fields, **settings.student}
    is_random = "model.hidden_size" in settings.student
    if is_random:
        student["data.vocab"] = args.base
    train = ["train", "--workdir", str(teacher), "--config", config, f"--config.init={args.base}"]
    save = ["predict", "--checkpoint", str(teacher), "--save-logits", str(logits)]
    taught = {name: value for name, value in distill.items() if name == "unlabeled"}
    stored = {"init": args.base, **fields, **{f"distill.{k}": v for k, v in taught.items()}}
    commands = [
        [*train, *override_flags({**fields, **settings.teacher})],
        [*save, "--config", config, *override_flags(stored)],
    ]
    run_once(output / "teacher-run.commands.json", commands)
    command = [sys.executable, "-m", "experiments.students", "--output", str(output)]
    command += ["--config", config, "--teacher", str(teacher), "--seeds", str(args.seeds)]
    command += ["--init="] if is_random else ["--init", args.base, "--init-layers", "0,2,4"]
    command += _repeat("--distill", {**distill, "logits": logits})
    command += _repeat("--set", student)
    command += ["--two-stage"] if task in args.two_stage else []
    if status := run_process(command):
        sys.exit(status)


def _repeat(flag: str, fields: Mapping[str, object]) -> Sequence[str]:
    return [word for name, value in fields.items() for word in (flag, f"{name}={value}")]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.students.tasks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--base", required=True, metavar="DIR")
    parser.add_argument("--output", required=True, type=local_path, metavar="DIR")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--two-stage", nargs="+", choices=TASKS, default=[])
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    args = parser.parse_args()
    for task in args.task:
        compare(args, task)


if __name__ == "__main__":
    main()
