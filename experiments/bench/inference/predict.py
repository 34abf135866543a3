"""Classification of a file of texts, compared with the pipeline of `transformers`.

    bertjax train --workdir runs/banking --config.model.dtype=float32 --config \
      sequence_classification:init=MODEL,data=banking77,train_file=train.csv,eval_file=test.csv,label=category
    python -m experiments.bench.inference.predict --peer-python PYTHON --checkpoint runs/banking \
      --data banking77/test.csv

bertjax runs `bertjax predict` on the file. The peer is `pipeline("text-classification")` of the
same model, converted, at several batch sizes, told to truncate at `max_seq_length` as bertjax does.
With start-up: whole processes, from the file to JSON lines, bertjax with its cache of compiled
programs (the first round may compile). Without: in processes that have classified all texts once.
Programs take turns; ratios are medians over the rounds. All labels are compared. PYTHON is an
interpreter with torch and transformers (extra [bench]).
"""

import csv
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

from experiments.bench.harness import (
    BERTJAX,
    Cost,
    child_environment,
    comparison_table,
    limit_cores,
    make_parser,
    measure_cost,
    serve_measurements,
    take_turns,
)


def read_texts(data: str, column: str) -> list[str]:
    with open(data, encoding="utf-8", newline="") as file:
        dialect = "excel-tab" if data.endswith(".tsv") else "excel"
        return [row[column] for row in csv.DictReader(file, dialect=dialect)]


def make_bertjax_work(checkpoint: str, data: str, column: str) -> Callable[[], list[str]]:
    """Return a function that returns the label of each text."""
    from bertjax.cli.jax_setup import skip_missing_tpu
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.pipeline import PredictInput

    skip_missing_tpu()
    predictor = Predictor(checkpoint)
    inputs = [PredictInput("text", {column: text}) for text in read_texts(data, column)]
    return lambda: [answer["label"] for answer in predictor.predict(inputs)]


def make_torch_work(
    model: str, data: str, column: str, batch_size: int, cores: int
) -> Callable[[], list[str]]:
    """Return the same of the peer."""
    import torch
    import transformers

    torch.set_num_threads(cores)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.model_max_length = json.loads((pathlib.Path(model) / "bench.json").read_text())
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    texts = read_texts(data, column)
    return lambda: [
        answer["label"] for answer in pipeline(texts, batch_size=batch_size, truncation=True)
    ]


def write_labels(labels: list[str], output: pathlib.Path) -> None:
    lines = (json.dumps({"label": label}) for label in labels)
    output.write_text("\n".join(lines), encoding="utf-8")


def export(checkpoint: str, path: pathlib.Path) -> None:
    """Convert a checkpoint for `transformers`, with its `max_seq_length` beside it."""
    from bertjax.checkpointing.lookup import find_checkpoint
    from bertjax.config.loading import read_config
    from bertjax.tasks import registry

    command = [sys.executable, "-m", "bertjax", "convert", "--to", "hf", checkpoint, str(path)]
    subprocess.run(command, check=True, env=child_environment())
    config = read_config(find_checkpoint(checkpoint) / "config.json", registry.data_fields())
    (path / "bench.json").write_text(json.dumps(config.max_seq_length))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--data", required=True, metavar="FILE", help=".csv or .tsv")
    parser.add_argument("--text", default="text", metavar="COLUMN")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="of the worker")
    args = parser.parse_args()
    limit_cores(args.cores)
    if args.worker:
        make = functools.partial(make_bertjax_work, args.checkpoint, args.data, args.text)
        if args.worker != BERTJAX:
            make = functools.partial(
                make_torch_work,
                *(args.checkpoint, args.data, args.text),
                batch_size=int(args.worker),
                cores=args.cores,
            )
        return write_labels(make()(), args.output) if args.output else serve_measurements(make)

    with tempfile.TemporaryDirectory() as directory:
        exported, output = pathlib.Path(directory) / "hf", pathlib.Path(directory) / "labels.jsonl"
        export(args.checkpoint, exported)
        options = ["--data", args.data, "--text", args.text, f"--cores={args.cores}"]
        commands = {BERTJAX: [sys.executable, __file__, "--worker", BERTJAX, *options]}
        commands[BERTJAX] += ["--checkpoint", args.checkpoint]
        for size in args.batch_sizes:
            command = [args.peer_python, __file__, "--worker", str(size), *options]
            commands[f"pipeline, batch size {size}"] = [*command, "--checkpoint", str(exported)]
        whole = {name: [*command, "--output", str(output)] for name, command in commands.items()}
        predict = [sys.executable, "-m", "bertjax", "predict", "--checkpoint", args.checkpoint]
        whole[BERTJAX] = [*predict, "--input", args.data, "--output", str(output)]

        rounds: list[dict[str, Cost]] = []
        labels: dict[str, list[str]] = {}
        for _ in range(args.rounds):
            rounds.append({})
            for name, command in whole.items():
                rounds[-1][name] = measure_cost(command)
                lines = output.read_text(encoding="utf-8").splitlines()
                labels[name] = [json.loads(line)["label"] for line in lines]
        count = len(labels[BERTJAX])
        print("\n".join(comparison_table("with start-up", "texts", count, rounds)), flush=True)
        for name in commands:
            differing = sum(a != b for a, b in zip(labels[BERTJAX], labels[name], strict=True))
            print(f"{name}: {differing} of {count} labels differ from those of bertjax", flush=True)
        warm = list(take_turns(commands, args.rounds))
        print("\n".join(comparison_table("without start-up", "texts", count, warm)))
    return None


if __name__ == "__main__":
    main()
