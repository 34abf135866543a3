"""How fast a file of texts is classified, beside the pipeline of `transformers`, on the same CPU.

    bertjax train --workdir runs/banking --config.model.dtype=float32 --config \
      experiments/sequence_classification.py:init=MODEL,data=banking77,train_file=train.csv,eval_file=test.csv,label=category
    python -m experiments.bench.sequence_classification_speed --peer-python PYTHON --checkpoint runs/banking \
      --data banking77/test.csv

bertjax is `bertjax predict` of the file, the peer `pipeline("text-classification")` of the same
model, converted, with texts one by one and several at once. With start-up: whole processes, from
the file to JSON lines, bertjax with its cache of compiled programs as a user has it (the first
round may compile). Without: in processes that have answered all texts once already. Contestants
take turns; ratios are medians over the rounds. The labels of all texts are compared. The pipeline
is told to cut texts at `max_seq_length`, as bertjax does. PYTHON needs torch and transformers (extra
[bench]); it may be the interpreter of another environment.
"""

import argparse
import csv
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from experiments.bench.alternating_runs import (
    Cost,
    child_environment,
    measure_cost,
    serve_measurements,
    take_turns,
)

OURS = "bertjax"


def read_texts(data: str, column: str) -> list[str]:
    with open(data, encoding="utf-8", newline="") as file:
        dialect = "excel-tab" if data.endswith(".tsv") else "excel"
        return [row[column] for row in csv.DictReader(file, dialect=dialect)]


def bertjax_work(checkpoint: str, data: str, column: str) -> Callable[[], list[str]]:
    """A function that gives the label of each text."""
    from bertjax.cli.jax_setup import skip_missing_tpu
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.pipeline import PredictInput

    skip_missing_tpu()
    predictor = Predictor(checkpoint)
    inputs = [PredictInput("text", {column: text}) for text in read_texts(data, column)]
    return lambda: [answer["label"] for answer in predictor.predict(inputs)]


def peer_work(model: str, data: str, column: str, together: int, cores: int) -> Callable[[], list]:
    """The same by the peer, so many texts at once."""
    import torch
    import transformers

    torch.set_num_threads(cores)
    options = {"batch_size": together, "truncation": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = json.loads((pathlib.Path(model) / "bench.json").read_text())
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = read_texts(data, column)
    return lambda: [answer["label"] for answer in pipe(texts, **options)]


def once(command: Sequence[str], output: pathlib.Path) -> tuple[Cost, list[str]]:
    """The cost of a whole process that writes JSON lines, and the labels in them."""
    cost = measure_cost(command)
    lines = output.read_text(encoding="utf-8").splitlines()
    return cost, [json.loads(line)["label"] for line in lines]


def speed_table(title: str, count: int, rounds: Sequence[Mapping[str, Cost]]) -> Iterator[str]:
    """Texts a second, by the clock and by processor time, and ratios; medians over the rounds."""
    yield f"\n{title:24}{'texts/s':>10}{'processor s':>13}{'bertjax is faster by':>30}"
    for name in rounds[0]:
        wall, cpu_seconds = (statistics.median(costs[name][i] for costs in rounds) for i in (0, 1))
        ratios = (
            statistics.median(costs[name][i] / costs[OURS][i] for costs in rounds) for i in (0, 1)
        )
        times = "" if name == OURS else "{:.2f} ({:.2f} processor)".format(*ratios)
        yield f"{name:24}{count / wall:10.1f}{cpu_seconds:13.2f}{times:>30}"


def describe_label_differences(labels: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """How many labels of each contestant are others than ours."""
    for name, own in labels.items():
        if name != OURS:
            count = sum(a != b for a, b in zip(labels[OURS], own, strict=True))
            yield f"{name}: {count} of {len(own)} labels differ from bertjax's"


def answer(work: Callable[[], Iterable[str]], output: pathlib.Path) -> None:
    lines = (json.dumps({"label": label}) for label in work())
    output.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--data", required=True, metavar="FILE", help=".csv or .tsv")
    parser.add_argument("--text", default="text", metavar="COLUMN")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)  # 0 for ours
    parser.add_argument("--answers", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    given = args.checkpoint, args.data, args.text
    if args.work is not None:
        make = functools.partial(bertjax_work, *given)
        if args.work:
            make = functools.partial(peer_work, *given, args.work, args.cores)
        return answer(make(), args.answers) if args.answers else serve_measurements(make)

    with tempfile.TemporaryDirectory() as directory:
        exported, output = pathlib.Path(directory) / "hf", pathlib.Path(directory) / "labels.jsonl"
        bertjax = [sys.executable, "-m", "bertjax"]
        convert = [*bertjax, "convert", "--to", "hf", args.checkpoint, str(exported)]
        subprocess.run(convert, check=True, env=child_environment())
        from bertjax.checkpointing.lookup import find_checkpoint
        from bertjax.config.loading import read_config
        from bertjax.tasks import registry

        file = find_checkpoint(args.checkpoint) / "config.json"
        max_seq_length = read_config(file, registry.data_fields()).max_seq_length
        (exported / "bench.json").write_text(json.dumps(max_seq_length))
        rest = ["--data", args.data, "--text", args.text, f"--cores={args.cores}"]
        commands = {OURS: [sys.executable, __file__, "--checkpoint", args.checkpoint, "--work=0"]}
        for size in args.runs_per_device:
            name = "pipeline, one by one" if size == 1 else f"pipeline, {size} at once"
            start = [args.peer_python, __file__, "--checkpoint", str(exported)]
            commands[name] = [*start, f"--work={size}"]
        commands = {name: [*command, *rest] for name, command in commands.items()}
        whole = {name: [*own, "--answers", str(output)] for name, own in commands.items()}
        predict = [*bertjax, "predict", "--checkpoint", args.checkpoint, "--input", args.data]
        whole[OURS] = [*predict, "--output", str(output)]

        rounds: list[dict[str, Cost]] = []
        labels: dict[str, list[str]] = {}
        for _ in range(args.rounds):
            rounds.append({})
            for name, command in whole.items():
                rounds[-1][name], labels[name] = once(command, output)
        count = len(labels[OURS])
        print("\n".join(speed_table("with start-up", count, rounds)), flush=True)
        print("\n".join(["", *describe_label_differences(labels)]), flush=True)
        warm = list(take_turns(commands, args.rounds, 1, warm_up=1))
        print("\n".join(speed_table("without start-up", count, warm)), flush=True)


if __name__ == "__main__":
    main()
