"""Speedrun: the lowest masked LM loss after a fixed time of training.

    python -m experiments.speedrun --text wiki_en.txt.xz novels_en.txt.xz --data DIR \
      --output DIR [--device-class cpu] [--seed N] \
      [--stage PERCENT CONFIG [FIELD=VALUE ...] ...] [--config.FIELD=VALUE ...]

README.md of this directory has the rules and the records. The first run trains the vocabulary and
prepares the corpus in the data directory. Each stage is a `bertjax train` with a share of the time,
initialized from the stage before. CONFIG is a name of `bertjax config` or FILE.py, with options;
fields follow it, and flags override fields of all stages. Without stages the reference runs: CLM,
then masked LM. The same command resumes after an interruption; the pause and compilation do not
count. OUTPUT/record.json has the score and what determines it.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from bertjax.training.metrics_file import read_metrics
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import local_path, override_flags, run_bertjax
from experiments.speedrun.eval_split import (
    DIGESTS,
    VOCAB_SIZE,
    check_evaluation,
    compute_digests,
    evaluate,
    prepare_data,
)
from experiments.speedrun.machine import is_one_gpu, read_start, reject_machine

SECONDS = ("steps", "data", "evaluation", "saving")  # of goodput.json, that the clock counts
# Fields that the rules set, and those that read other models or the eval split.
RULES = ("steps", "seed", "data_seed", "init", "data.dir", "model.vocab_size")
EXCLUDED = ("distill.teacher", "distill.logits", "best_metric")


@dataclasses.dataclass(frozen=True)
class DeviceClass:
    """A class of devices.

    Attributes:
      minutes: time of training.
      model: size of the reference.
      fields: fields of the reference beside those of its recipe.
      topology: the devices on which preflight estimates the time of a step, which decides the
        number of steps; "" if the clock does.
    """

    minutes: float
    model: str
    fields: Mapping[str, object]
    topology: str = ""


# Evaluations that do not decide anything take time, and a save of a hundredth of the time would
# take longer than the steps between two.
_RARE = {"eval_every": "50%", "checkpoint_every": "25%"}
DEVICE_CLASSES = {
    "cpu": DeviceClass(45, "mini", {"model.dtype": "float32", "eval_every": "50%"}),
    "gpu": DeviceClass(2.5, "6-512", {"batch_size": 512, **_RARE}),
    "tpu": DeviceClass(3, "6-512", {"batch_size": 512, **_RARE}, topology="v5e:2x2"),
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes:
      percent: share of the time.
      config: configuration as of `bertjax train --config`.
      fields: overridden fields, those of the rules included.
      resolved: the configuration with them.
    """

    percent: float
    config: str
    fields: Mapping[str, object]
    resolved: Config


def reference_stages(device_class: DeviceClass) -> list[list[str]]:
    """Return the stages of the reference, as of `--stage`."""
    masked = f"pretraining:model={device_class.model},recipe=modern"
    fields = [f"{name}={value}" for name, value in device_class.fields.items()]
    return [["20", f"{masked},objective=clm", *fields], ["80", masked, *fields]]


def parse_stages(args: argparse.Namespace, flags: Sequence[str]) -> list[Stage]:
    """Return the stages, checked before the first of them runs.

    Raises:
      InputError: a share, field or configuration is invalid, or a rule is broken.
    """
    stages: list[Stage] = []
    for number, (percent, *rest) in enumerate(args.stage or reference_stages(args.device_class)):
        if not re.fullmatch(r"\d+(\.\d+)?", percent) or not rest:
            raise InputError(f"--stage {' '.join((percent, *rest))}: not of the form 80 CONFIG.")
        minutes, fields = args.minutes * float(percent) / 100, dict[str, object]()
        for item in (*rest[1:], *(flag.removeprefix("--config.") for flag in flags)):
            name, equals, fields[name] = item.partition("=")
            if not equals:
                raise InputError(f"{item}: not of the form FIELD=VALUE.")
            if name in (*RULES, *EXCLUDED):
                raise InputError(f"{item}: the rules exclude it. Leave it out.")
        fields |= {
            "steps": f"{minutes:g} minutes",
            "seed": args.seed,
            "data_seed": 1000 * args.seed + number,  # each stage reads in an order of its own
            "init": str(args.output / f"stage-{number - 1}") if number else "",
            "data.dir": str(args.data / "corpus"),
            "model.vocab_size": VOCAB_SIZE,
        }
        resolved = _resolve(rest[0], fields, stages[-1].resolved if stages else None)
        stages.append(Stage(float(percent), rest[0], fields, resolved))
    if not math.isclose(sum(stage.percent for stage in stages), 100):
        raise InputError("--stage: the shares do not add up to 100 percent.")
    check_evaluation(stages[-1].resolved)
    return stages


def _resolve(name: str, fields: Mapping[str, object], previous: Config | None) -> Config:
    """Return the configuration of a stage, which may take over the model of the previous one."""

    def load_model_config(init: str) -> BertConfig:
        assert previous is not None
        return previous.model

    config = load_config(name, fields, registry.data_fields(), load_model_config)
    if config.task != "pretraining":
        raise InputError(f"--stage {name}: task={config.task}. Use pretraining.")
    for field in EXCLUDED:
        section, _, key = field.rpartition(".")
        if value := getattr(getattr(config, section) if section else config, key):
            raise InputError(f"--stage {name}: {field}={value}: the rules exclude it. Remove it.")
    registry.make_objective(config)  # checks the fields of data
    return config


def train(args: argparse.Namespace, stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Train the stages that have not ended, and return a description of each."""
    descriptions = []
    for number, stage in enumerate(stages):
        workdir = args.output / f"stage-{number}"
        minutes, fields = args.minutes * stage.percent / 100, dict(stage.fields)
        if topology := args.device_class.topology:
            fields["steps"] = estimated_steps(workdir, stage, minutes, topology)
        target = ["--workdir", str(workdir), "--config", stage.config]
        run_bertjax("train", *target, *override_flags(fields))
        sessions = json.loads((workdir / "goodput.json").read_text())
        seconds = sum(session["seconds"][name] for session in sessions for name in SECONDS)
        descriptions.append(
            {
                "minutes": minutes,
                "config": stage.config,
                "steps": read_metrics(workdir)[-1]["step"],
                "counted_seconds": round(seconds, 1),
                "devices": json.loads((workdir / "run.json").read_text())["devices"],
                "resolved": json.loads((workdir / "config.json").read_text()),
            }
        )
    return descriptions


def estimated_steps(workdir: pathlib.Path, stage: Stage, minutes: float, topology: str) -> int:
    """Return the steps that a slice computes in a time, by the compiler's account."""
    report = workdir.with_name(f"{workdir.name}.preflight.json")
    if not report.exists():
        fields = {**stage.fields, "steps": 1000, "init": ""}
        target = ["--topology", topology, "--config", stage.config, "--json", str(report)]
        run_bertjax("preflight", *target, *override_flags(fields))
    seconds = json.loads(report.read_text())["train"]["estimated_step_seconds"]
    return max(1, int(60 * minutes / seconds))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speedrun", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--text", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--data", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--device-class", choices=DEVICE_CLASSES, default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--stage", nargs="+", action="append", metavar=("PERCENT CONFIG", "FIELD=VALUE")
    )
    parser.add_argument("--minutes", type=float, help="time of a trial, which is no record")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser()
    args, flags = parser.parse_known_args(argv)
    if unknown := [flag for flag in flags if not flag.startswith("--config.")]:
        parser.error(f"{unknown[0]}: unknown argument.")
    name, args.device_class = args.device_class, DEVICE_CLASSES[args.device_class]
    is_trial = args.minutes is not None
    args.minutes = args.minutes if is_trial else args.device_class.minutes
    stages = parse_stages(args, flags)
    if problem := reject_machine(name):
        is_trial = True
        print(f"{problem} This is a trial.")
    corpus = prepare_data(args.text, args.data)
    if (digests := compute_digests(corpus)) != DIGESTS:
        is_trial = True
        print(f"{corpus}: not the text, vocabulary or masks of the records. This is a trial.")
    if name == "cpu":  # of the commands
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # one a core is faster than one for both
    start, changed = read_start(args.output)
    if changed and not (args.output / "record.json").exists():
        is_trial = True
        print(f"{args.output}: started with another {', '.join(changed)}. This is a trial.")
    descriptions = train(args, stages)
    if name == "gpu" and any(not is_one_gpu(stage["devices"]) for stage in descriptions):
        is_trial = True
        print(f"{descriptions[-1]['devices']}: not one GPU. This is a trial.")
    last = args.output / f"stage-{len(stages) - 1}"
    scores = evaluate(last, args.output / "scores", corpus)
    if not (args.output / "model").exists():
        run_bertjax("convert", "--to", "hf", str(last), str(args.output / "model"))
    record = {
        "mlm_loss": scores["mlm_loss"],
        "is_trial": is_trial,
        "device_class": name,
        "seed": args.seed,
        "stages": descriptions,
        "digests": digests,
        **start,
    }
    atomic_write_text(args.output / "record.json", json.dumps(record, indent=1) + "\n")
    shown = {key: value for key, value in record.items() if key != "stages"}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
