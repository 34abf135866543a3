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
import tempfile
from collections.abc import Callable, Sequence

from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Cost

LabelTexts = Callable[[], list[str]]


def make_bertjax_work(checkpoint: str, texts: Sequence[str]) -> LabelTexts:
    """Return a function that returns the label of each text."""
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.pipeline import PredictInput

    predictor = Predictor(checkpoint)
    inputs = [PredictInput("text", {"text": text}) for text in texts]
    return lambda: [answer["label"] for answer in predictor.predict(inputs)]


def make_torch_work(
    model: str, texts: Sequence[str], max_length: int, batch_size: int, cores: int
) -> LabelTexts:
    """Return the same of the peer."""
    import torch
    import transformers

    torch.set_num_threads(cores)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, model_max_length=max_length)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    options = {"batch_size": batch_size, "truncation": True}
    return lambda: [answer["label"] for answer in pipeline(texts, **options)]


def convert(checkpoint: str, path: str) -> int:
    """Convert a checkpoint for `transformers` and return its `max_seq_length`."""
    from bertjax.workdir.run_config import make_run_config

    command = harness.bertjax_command("convert", "--to", "hf", checkpoint, path)
    subprocess.run(command, check=True, env=harness.child_environment())
    return make_run_config(None, {}, checkpoint=checkpoint).max_seq_length


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--data", required=True, metavar="FILE", help=".csv with a column text")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--max-length", type=int, help="of the worker")
    parser.add_argument("--output", type=local_path, metavar="FILE", help="of the worker")
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    with open(args.data, encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    programs: dict[str, Callable[[], LabelTexts]]
    programs = {BERTJAX: functools.partial(make_bertjax_work, args.checkpoint, texts)}
    for size in args.batch_sizes:
        work = args.checkpoint, texts, args.max_length, size, args.cores
        programs[f"pipeline, batch size {size}"] = functools.partial(make_torch_work, *work)
    if args.output:
        answers = [json.dumps({"label": label}) for label in programs[args.worker]()()]
        args.output.write_text("\n".join(answers), encoding="utf-8")
        return
    harness.serve_measurements(args, programs)

    with tempfile.TemporaryDirectory() as directory:
        converted, output = f"{directory}/hf", pathlib.Path(directory, "labels.jsonl")
        max_length = convert(args.checkpoint, converted)
        peer_options = ["--checkpoint", converted, f"--max-length={max_length}"]
        commands = {name: harness.worker_command(args, name, *peer_options) for name in programs}
        commands[BERTJAX] = harness.worker_command(args, BERTJAX)
        predict = ["predict", "--checkpoint", args.checkpoint, "--input", args.data]
        to_output = ["--output", str(output)]
        whole = {name: [*command, *to_output] for name, command in commands.items()}
        whole[BERTJAX] = harness.bertjax_command(*predict, *to_output)
        rounds: list[dict[str, Cost]] = []
        labels: dict[str, list[str]] = {}
        for _ in range(args.rounds):
            rounds.append({})
            for name, command in whole.items():
                rounds[-1][name] = harness.measure_cost(command)
                lines = output.read_text(encoding="utf-8").splitlines()
                labels[name] = [json.loads(line)["label"] for line in lines]
        harness.print_comparison("with start-up", "texts", len(texts), rounds)
        for name in programs:
            differing = sum(a != b for a, b in zip(labels[BERTJAX], labels[name], strict=True))
            print(f"{name}: {differing} of {len(texts)} labels differ from those of bertjax")
        warm = harness.take_turns(commands, args.rounds)
        harness.print_comparison("without start-up", "texts", len(texts), warm)


if __name__ == "__main__":
    main()
