"""The same fine-tuning on sentences, choices or tags by bertjax and by `transformers`.

    python -m experiments.bench.finetuning_peer --peer-python PYTHON --output DIR --seeds N \
      [--pad-to PIECES] [--group-by-length [QUESTIONS]] \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE [--config.FIELD=VALUE ...]

MODEL is an encoder in a directory of Hugging Face, the configuration one of `glue.py`,
`sequence_classification.py` (a class or a number), `multiple_choice.py` or `token_classification.py`. Both see the same examples in the
same steps and take the same rates, decay, clipping and dropout, in float32 on the same cores of the
CPU, the peer under PyTorch; each draws its own head and dropout. The peer pads a step to its
longest example, or with --pad-to to so many pieces; with --group-by-length a step goes through it in groups of
like length whose gradients add up to the step's. Both are scored once, at the end, by bertjax.

Seeds count from the configuration's. DIR gets a file of one line of JSON for each seed of each
contestant; what is there is not repeated, so that a series may be made in several goes, and
other ways to pad may be added to it. Times are of whole processes: of bertjax's, reading,
tokenising and compiling are part, of the peer's none of it. Examples a second are those of training
alone, after the first `log_every` steps. PYTHON needs torch and transformers (extra [bench]); it
may be the interpreter of another environment.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.bench import torch_finetuning
from experiments.bench.alternating_runs import Cost, measure_cost
from experiments.bench.torch_peer import TrainingInterval, peer_recipe

if TYPE_CHECKING:
    from bertjax.config.config import Config

OURS = "bertjax"
SINGLE_EVAL = ["--config.eval_every=100%", "--config.checkpoint_every=100%"]
FASTER = ("examples/s", "minutes", "processor minutes")


def load(spec: str, extra_flags: Sequence[str]) -> "Config":
    from bertjax.cli.config_args import parse_overrides
    from bertjax.config.loading import load_config
    from bertjax.formats.loading import find_bert_config
    from bertjax.tasks import registry

    return load_config(spec, parse_overrides(extra_flags), registry.data_fields(), find_bert_config)


def train_ours(
    spec: str, extra_flags: Sequence[str], work: pathlib.Path
) -> tuple[dict[str, float], Cost, list[TrainingInterval]]:
    """The scores of `bertjax train` on its held-out data, at the end."""
    command = [sys.executable, "-m", "bertjax", "train", "--config", spec]
    cost = measure_cost([*command, "--workdir", str(work), *extra_flags])
    lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    scores = [line for line in lines if line.pop("split") == "eval"][-1]
    trained = [line for line in lines if "sequences_per_second" in line]
    names = ("step", "loss", "sequences_per_second")
    return scores, cost, [[line[name] for name in names] for line in trained]


def train_theirs(
    config: "Config", python: str, work: pathlib.Path, options: Sequence[str]
) -> tuple[dict[str, float], Cost, list[TrainingInterval]]:
    """The scores of the peer."""
    from bertjax.tasks import registry

    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    head, steps = task.objective.heads[0], int(config.steps)
    kind = getattr(task.objective, "problem_type", head)
    if kind == "multi_label_classification":
        sys.exit(
            "problem_type=multi_label_classification: the peer has no such model. Choose another task."
        )
    recipe = peer_recipe(config) | {
        "kind": kind,
        "outputs": 1 if kind == "multiple_choice" else config.model.num_labels,
        "log_every": int(config.log_every),
    }
    task.prepare(steps)
    (held_out,) = task.eval_sets()
    work.mkdir(parents=True)
    (work / "recipe.json").write_text(json.dumps(recipe))
    for name, batches in (
        ("train", list(task.train_batches(0, steps))),
        ("eval", list(held_out.batches())),
    ):
        arrays: dict[str, Any] = {key: np.stack([b[key] for b in batches]) for key in batches[0]}
        np.savez(work / f"{name}.npz", allow_pickle=False, **arrays)
    cost = measure_cost([python, torch_finetuning.__file__, str(work), config.init, *options])
    logits = np.load(work / "logits.npz")["logits"]
    outputs = [{f"{head}_logits": values} for values in logits]
    windows = json.loads((work / "windows.json").read_text())
    return held_out.evaluation({}, outputs).scores, cost, windows


def collect_figures(
    scores: Mapping[str, float], cost: Cost, windows: list[TrainingInterval], batch_size: int
) -> dict[str, float]:
    """Scores and times by their names, as they are compared."""
    before = [0, *(step for step, *_ in windows)]
    counts = [
        (step - since) * batch_size for since, (step, *_) in zip(before, windows, strict=False)
    ]
    seconds = [count / speed for count, (*_, speed) in zip(counts, windows, strict=True)]
    kept = slice(1 if len(windows) > 1 else 0, None)
    return {name: value for name, value in scores.items() if name != "step"} | {
        "last training loss": windows[-1][1],
        "examples/s": sum(counts[kept]) / sum(seconds[kept]),
        "minutes": cost.wall / 60,
        "processor minutes": cost.cpu_seconds / 60,
        "minutes training": sum(seconds) / 60,
    }


def read_results(directory: pathlib.Path, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All that there are, which must be of this run."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    for each in results:
        if each.get("run") != run:
            sys.exit(f"{directory} has {each.get('run', 'something else')}: give another --output.")
    return results


def summary(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every figure that all contestants have, seed by seed, and the ratios of the times."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for each in results:
        found.setdefault(each["contestant"], {})[each["seed"]] = each["figures"]
    shared = [f for f in results[0]["figures"] if all(f in each["figures"] for each in results)]
    width = max(len(name) for name in (*found, *shared)) + 2
    for figure in shared:
        yield f"{figure:{width}}{'n':>3}{'mean':>11}{'deviation':>11}   of seeds in turn"
        for name, runs in found.items():
            values = [runs[seed][figure] for seed in sorted(runs)]
            spread = f"{statistics.stdev(values):11.4f}" if len(values) > 1 else f"{'-':>11}"
            listed = " ".join(f"{value:.4f}" for value in values)
            mean = statistics.fmean(values)
            yield f"  {name:{width - 2}}{len(values):3}{mean:11.4f}{spread}   {listed}"
    for name, runs in found.items():
        if both := [seed for seed in runs if name != OURS and seed in found.get(OURS, {})]:
            pairs = {f: [(found[OURS][s][f], runs[s][f]) for s in both] for f in FASTER}
            ratios = {
                f: statistics.median((a / b) if f == "examples/s" else (b / a) for a, b in each)
                for f, each in pairs.items()
            }
            said = ", ".join(f"{ratio:.2f} by {figure}" for figure, ratio in ratios.items())
            yield f"bertjax is faster than {name}: {said} (medians over the seeds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--pad-to", type=int, default=0, metavar="PIECES")
    parser.add_argument(
        "--group-by-length", type=int, default=0, nargs="?", const=8, metavar="QUESTIONS"
    )
    parser.add_argument("--only", choices=["ours", "theirs"])
    args, extra_flags = parser.parse_known_args()

    from bertjax.cli.jax_setup import skip_missing_tpu

    skip_missing_tpu()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    args.output.mkdir(parents=True, exist_ok=True)
    options = [str(args.cores), str(args.pad_to), str(args.group_by_length)]
    theirs = (
        "torch"
        + f"-sorted{args.group_by_length}" * bool(args.group_by_length)
        + f"-pad{args.pad_to}" * bool(args.pad_to)
    )
    names = {"ours": [OURS], "theirs": [theirs]}.get(args.only, [OURS, theirs])
    run = {"config": args.config, "overrides": extra_flags, "cores": args.cores}
    read_results(args.output, run)
    first = load(args.config, extra_flags).seed
    for seed in range(first, first + args.seeds):
        own = ["--config.model.dtype=float32", *SINGLE_EVAL, *extra_flags, f"--config.seed={seed}"]
        config = load(args.config, own)
        for name in names:
            path, work = args.output / f"{name}-{seed}.json", args.output / "work"
            if path.exists():
                continue
            shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
            if name == OURS:
                found = train_ours(args.config, own, work)
            else:
                found = train_theirs(config, args.peer_python, work, options)
            figures = collect_figures(*found, config.batch_size)
            result = {"contestant": name, "seed": seed, "run": run}
            result |= {"figures": figures, "windows": found[-1]}
            path.write_text(json.dumps(result) + "\n")
            shutil.rmtree(work)

    print("\n".join(summary(read_results(args.output, run))))


if __name__ == "__main__":
    main()
