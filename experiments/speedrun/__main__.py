"""Speedrun: the lowest masked LM loss after a fixed time of training.

    python -m experiments.speedrun --text wiki_en.txt.xz novels_en.txt.xz --data DIR \
      --output DIR [--device-class cpu] [--seed N] [--stage PERCENT CONFIG ...] \
      [--config.FIELD=VALUE ...]

README.md of this directory has the rules and the records. The first run trains the vocabulary and
prepares the corpus in the data directory. Each stage is a `bertjax train` with a share of the time,
initialized from the stage before. CONFIG is a name of `bertjax config` or FILE.py, with options;
flags override fields of all stages. Without stages the reference runs: CLM, then masked LM. The
same command resumes after an interruption; the pause and compilation do not count.
OUTPUT/record.json has the score and what determines it.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata

from bertjax.tasks.pretraining import PretrainingTask
from bertjax.training.metrics_file import read_metrics
from bertjax.version import __version__
from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.paths import atomic_write_text
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions
from experiments.ablations.commands import override_flags, run_bertjax

MINUTES = {"cpu": 45.0, "gpu": 2.5}  # of training, on two cores or one GPU
VOCAB_SIZE = 8192
MAX_SEQ_LENGTH = 128  # of the eval split; training may use another
EVAL_BATCH_SIZE = 64
DIGESTS = {
    "corpus": "1c26f75bb07223a718d148001925afee",  # training text, eval text and vocabulary
    "eval_batches": "c2023a3b081ec40bf2831dc1441efbd4",  # tokens and masks of the eval split
}

REFERENCE_MODELS = {"cpu": "mini", "gpu": "6-512"}
CLASS_FIELDS: dict[str, dict[str, object]] = {
    "cpu": {"model.dtype": "float32"},
    # A save of a hundredth of the time would take longer than the steps between two.
    "gpu": {"batch_size": 512, "checkpoint_every": "25%"},
}


def prepare_data(texts: Sequence[str], directory: pathlib.Path) -> pathlib.Path:
    """Return the corpus in a directory, made from the texts if it is missing."""
    corpus, vocab = directory / "corpus", directory / "vocab.txt"
    if not (corpus / MANIFEST).exists():
        if not texts:
            sys.exit(f"--data={directory}: no corpus. Name the texts with --text.")
        directory.mkdir(parents=True, exist_ok=True)
        if not vocab.exists():
            size = ["--vocab-size", str(VOCAB_SIZE)]
            run_bertjax("vocab", "--input", *texts, *size, "--output", str(vocab))
        run_bertjax("prepare", "--input", *texts, "--vocab", str(vocab), "--output", str(corpus))
    return corpus


def compute_digests(corpus: pathlib.Path) -> dict[str, str]:
    """Return hex digests of text and vocabulary, and of the eval batches with their masks."""
    options = PretrainingOptions(MAX_SEQ_LENGTH, EVAL_BATCH_SIZE, objective="mlm")
    data, content = PretrainingData(corpus, options, "eval"), hashlib.blake2b(digest_size=16)
    for step in range(data.steps or 0):
        for name, array in sorted(data.batch(step).items()):
            content.update(name.encode() + array.tobytes())
    (opened,) = data.corpora.values()
    manifest = opened.manifest
    shards = [dataclasses.astuple(info) for info in (*manifest.train_shards, *manifest.eval_shards)]
    text = json.dumps([data.tokenizer.tokens, shards]).encode()
    text_digest = hashlib.blake2b(text, digest_size=16)
    return {"corpus": text_digest.hexdigest(), "eval_batches": content.hexdigest()}


def train(args: argparse.Namespace, corpus: pathlib.Path, flags: Sequence[str]) -> list[dict]:
    """Train the stages that have not ended, and return a description of each."""
    stages, init = [], ""
    reference = f"pretraining:model={REFERENCE_MODELS[args.device_class]},recipe=modern"
    default = (("20", f"{reference},objective=clm"), ("80", reference))
    for number, (percent, config) in enumerate(args.stage or default):
        workdir = args.output / f"stage-{number}"
        minutes = args.minutes * float(percent) / 100
        rules = {
            "steps": f"{minutes:g} minutes",
            "seed": args.seed,
            "init": init,
            "model.vocab_size": VOCAB_SIZE,
            "data.dir": corpus,
        }
        target = ["--workdir", str(workdir), "--config", config]
        run_bertjax("train", *target, *flags, *override_flags(rules))
        last = read_metrics(workdir)[-1]
        stages.append({"minutes": minutes, "config": config, "steps": last["step"]})
        init = str(workdir)
    return stages


def evaluate(workdir: pathlib.Path, scores: pathlib.Path) -> Mapping[str, float]:
    """Return the scores of a run on the whole eval split.

    No option of the run's `data` but the corpus, and no weight of its losses, has an effect.
    """
    data_fields = PretrainingTask.DATA_FIELDS.items()
    rules = {f"data.{name}": field.default for name, field in data_fields if name != "dir"} | {
        "max_seq_length": MAX_SEQ_LENGTH,
        "eval_batch_size": EVAL_BATCH_SIZE,
        "eval_batches": 0,
        "packing": True,
        "loss_weights": "",
        "data.objective": "mlm",
    }
    target = ["--checkpoint", str(workdir), "--output", str(scores)]
    run_bertjax("evaluate", *target, *override_flags(rules))
    return json.loads((scores / "scores.json").read_text())


def describe_machine() -> dict[str, object]:
    """Return the processor, the cores that this process may use, and versions."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jaxlib": metadata.version("jaxlib"),
        "bertjax": __version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--device-class", choices=MINUTES, default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=2, action="append", metavar=("PERCENT", "CONFIG"))
    parser.add_argument("--minutes", type=float, help="time of a trial, which is no record")
    args, flags = parser.parse_known_args()
    for percent, config in args.stage or ():
        if not re.fullmatch(r"\d+(\.\d+)?", percent):
            parser.error(f"--stage {percent} {config}: {percent!r} is no percentage. Use 80.")
    if args.stage and sum(float(percent) for percent, _ in args.stage) != 100:
        parser.error("--stage: the shares do not add up to 100 percent.")
    if unknown := [flag for flag in flags if not flag.startswith("--config.")]:
        parser.error(f"{unknown[0]}: unknown argument.")
    is_trial = args.minutes is not None
    args.minutes = args.minutes if is_trial else MINUTES[args.device_class]
    corpus = prepare_data(args.text, args.data)
    if (digests := compute_digests(corpus)) != DIGESTS:
        is_trial = True
        print(f"{corpus}: not the text, vocabulary or masks of the records. This is a trial.")
    start = datetime.datetime.now(datetime.UTC)
    class_flags = override_flags(CLASS_FIELDS[args.device_class])
    stages = train(args, corpus, [*class_flags, *flags])
    scores = evaluate(args.output / f"stage-{len(stages) - 1}", args.output / "scores")
    record = {
        "mlm_loss": scores["mlm_loss"],
        "is_trial": is_trial,
        "device_class": args.device_class,
        "seed": args.seed,
        "stages": stages,
        "flags": flags,
        "digests": digests,
        "date": f"{start:%Y-%m-%d}",
        **describe_machine(),
    }
    atomic_write_text(args.output / "record.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
