"""The same fine-tuning by bertjax and by `transformers` under PyTorch.

    python -m experiments.bench.finetuning_peer --peer-python PYTHON --output DIR --seeds N \
      [--pad-to TOKENS] [--group-by-length [EXAMPLES]] [--shared-head] \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE [--config.FIELD=VALUE ...]

MODEL is an encoder in a directory of Hugging Face, the configuration one of `glue`, `squad`,
`sequence_classification`, `multiple_choice`, `token_classification` or `generation`. Both see the
same examples in the same steps with the same learning rates, weight decay, clipping and dropout, in
float32 on the same CPU cores; each draws its own head and dropout masks. For generation MODEL has a
masked LM head, and the decoder is the encoder. The peer pads a step to its longest example, or with
--pad-to to at least that length. With --group-by-length a step passes in groups of similar length,
whose gradients are accumulated. Both are evaluated once, at the end.

With --shared-head, for `squad`, the peer and a second run of bertjax start from one head.

Seeds count from the configuration's. DIR gets a JSON file for each seed of each program. What is
there is not repeated, so a series can be extended, also by other ways to pad. Times are of whole
processes: bertjax's include reading, tokenizing and compiling, the peer's do not. Examples per
second are of training alone, after the first `log_every` steps. PYTHON is an interpreter with torch
and transformers (extra [bench]).
"""

import dataclasses
import json
import pathlib
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertjax.cli.config_args import parse_overrides
from bertjax.formats.detection import WEIGHTS
from experiments.ablations.commands import local_path
from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Cost
from experiments.bench.peers import torch_finetuning
from experiments.bench.peers.torch_finetuning import TrainingInterval

if TYPE_CHECKING:
    from bertjax.config.config import Config

HEAD, SHARED = "qa_outputs", "-shared-head"
SPEEDS = ("examples/s", "minutes", "CPU minutes")

Result = tuple[dict[str, float], Cost, list[TrainingInterval]]


def write_shared_head(init: str, seed: int, output: pathlib.Path) -> None:
    """Copy a model directory of Hugging Face, with a head for answers drawn by the seed."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(init, output)
    encoder = load_file(output / WEIGHTS)
    arrays = {key if key.startswith("bert.") else f"bert.{key}": encoder[key] for key in encoder}
    model = json.loads((output / "config.json").read_text())
    shape = 2, model["hidden_size"]
    head = np.random.default_rng(seed).normal(0, model["initializer_range"], shape)
    arrays |= {f"{HEAD}.weight": head.astype(np.float32), f"{HEAD}.bias": np.zeros(2, np.float32)}
    save_file(arrays, output / WEIGHTS, {"format": "pt"})
    model["architectures"] = ["BertForQuestionAnswering"]
    (output / "config.json").write_text(json.dumps(model))


def train_bertjax(spec: str, flags: Sequence[str], workdir: pathlib.Path) -> Result:
    """Return the final scores of `bertjax train`."""
    from bertjax.training.metrics_file import read_metrics

    command = ["train", "--config", spec, "--workdir", str(workdir), *flags]
    cost = harness.measure_cost(harness.bertjax_command(*command))
    lines = read_metrics(workdir)
    scores = [line for line in lines if line.pop("split") == "eval"][-1]
    names = ("step", "loss", "examples_per_second")
    intervals = [[line[name] for name in names] for line in lines if names[-1] in line]
    return scores, cost, intervals


def train_torch(
    config: "Config",
    python: str,
    directory: pathlib.Path,
    options: Sequence[str],
    program: str = torch_finetuning.__file__,
    **fields: Any,
) -> Result:
    """Return the final scores of the peer.

    Args:
      program: the peer's side.
      **fields: further fields of its recipe.
    """
    from bertjax.steps.schedules import learning_rate_schedule
    from bertjax.tasks import registry

    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    head, steps = task.objective.heads[0], int(config.steps)
    problem_type = getattr(task.objective, "problem_type", "")
    optimizer = config.optimizer_config()
    if problem_type == "multi_label_classification":
        sys.exit(f"problem_type={problem_type}: the peer lacks it. Choose another task.")
    if optimizer.name != "adamw" or optimizer.layerwise_lr_decay < 1 or optimizer.frozen_layers:
        sys.exit("The peer only has AdamW, with one learning rate for all layers.")
    if config.reinit_layers:
        sys.exit("The peer keeps all layers of init. Leave out reinit_layers.")
    if config.model.has_cross_attention:
        sys.exit("decoder=cross_attention: the peer lacks it. Use prefix or masked_prefix.")
    schedule = learning_rate_schedule(optimizer)
    num_outputs = {"multiple_choice": 1, "question_answering": 2}
    recipe = dataclasses.asdict(optimizer) | {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "hidden_dropout_prob": config.model.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.model.attention_probs_dropout_prob,
        "learning_rates": [float(schedule(step)) for step in range(steps + 1)],
        "head": head,
        "problem_type": problem_type,
        "num_outputs": num_outputs.get(head, config.model.num_labels),
        "log_every": int(config.log_every),
        "label_smoothing": config.data.get("label_smoothing", 0.0),
        **fields,
    }
    task.prepare(steps)
    (eval_set,) = task.eval_sets()
    directory.mkdir(parents=True)
    (directory / "recipe.json").write_text(json.dumps(recipe))
    all_batches = {"train": task.train_batches(0, steps), "eval": eval_set.batches()}
    for split, split_batches in all_batches.items():
        batches = list(split_batches)
        arrays: dict[str, Any] = {key: np.stack([b[key] for b in batches]) for key in batches[0]}
        np.savez(directory / f"{split}.npz", allow_pickle=False, **arrays)
    command = [python, program, str(directory), config.init, *options]
    cost = harness.measure_cost(command)
    intervals = json.loads((directory / "intervals.json").read_text())
    if head == "mlm":
        means = json.loads((directory / "means.json").read_text())
        return means | eval_set.evaluation(means, []).scores, cost, intervals
    logits = np.load(directory / "logits.npz")["logits"]
    outputs = [{f"{head}_logits": values} for values in logits]
    return eval_set.evaluation({}, outputs).scores, cost, intervals


def collect_figures(
    scores: Mapping[str, float], cost: Cost, intervals: list[TrainingInterval], batch_size: int
) -> dict[str, float]:
    """Return scores and times by name."""
    steps, losses, rates = zip(*intervals, strict=True)
    counts = batch_size * np.diff(steps, prepend=0)
    seconds = counts / rates
    measured = slice(1 if len(intervals) > 1 else 0, None)
    return {name: value for name, value in scores.items() if name != "step"} | {
        "final training loss": losses[-1],
        "examples/s": counts[measured].sum() / seconds[measured].sum(),
        "minutes": cost.wall / 60,
        "CPU minutes": cost.cpu / 60,
        "minutes of training": seconds.sum() / 60,
    }


def read_results(directory: pathlib.Path, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all results in the directory, which must be of this run."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    for result in results:
        if result.get("run") != run:
            sys.exit(f"--output={directory}: has results of another run. Name another directory.")
    return results


def summarize(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the figures that all programs have, by seed, and the speedups."""
    runs: dict[str, dict[int, dict[str, float]]] = {}
    for result in results:
        runs.setdefault(result["program"], {})[result["seed"]] = result["figures"]
    shared = [name for name in results[0]["figures"] if all(name in r["figures"] for r in results)]
    width = max(len(name) for name in (*runs, *shared)) + 2
    for figure in shared:
        yield f"{figure:{width}}{'n':>3}{'mean':>11}{'deviation':>11}   by seed"
        for program, seeds in runs.items():
            values = [seeds[seed][figure] for seed in sorted(seeds)]
            deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
            listed = " ".join(f"{value:.4f}" for value in values)
            mean = statistics.fmean(values)
            yield f"  {program:{width - 2}}{len(values):3}{mean:11.4f}{deviation:>11}   {listed}"
    ours = runs.pop(BERTJAX, {})
    for program, seeds in runs.items():
        if program == BERTJAX + SHARED:
            continue
        if both := seeds.keys() & ours.keys():
            ratios = {n: statistics.median(ours[s][n] / seeds[s][n] for s in both) for n in SPEEDS}
            speedups = (f"{r if n == SPEEDS[0] else 1 / r:.2f} ({n})" for n, r in ratios.items())
            yield f"speedup over {program}, median over seeds: {', '.join(speedups)}"


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pad-to", type=int, default=0, metavar="TOKENS")
    parser.add_argument(
        "--group-by-length", type=int, default=0, nargs="?", const=8, metavar="EXAMPLES"
    )
    parser.add_argument("--shared-head", action="store_true")
    args, overrides = parser.parse_known_args()
    harness.limit_cores(args.cores)
    harness.set_up_process()
    args.output.mkdir(parents=True, exist_ok=True)
    options = [str(args.cores), str(args.pad_to), str(args.group_by_length)]
    torch_name = f"torch-grouped{args.group_by_length}" if args.group_by_length else "torch"
    torch_name += f"-padded{args.pad_to}" if args.pad_to else ""
    programs = [BERTJAX, torch_name]
    if args.shared_head:
        programs = [BERTJAX, BERTJAX + SHARED, torch_name + SHARED]
    run = {"config": args.config, "overrides": overrides, "cores": args.cores}
    read_results(args.output, run)
    first = harness.load(args.config, parse_overrides(overrides)).seed
    workdir, init = args.output / "work", args.output / "init"
    for seed in range(first, first + args.seeds):
        flags = ["--config.model.dtype=float32", *harness.EVALUATE_AT_END, *overrides]
        flags.append(f"--config.seed={seed}")
        config = harness.load(args.config, parse_overrides(flags))
        if args.shared_head and config.task != "question_answering":
            sys.exit(f"--shared-head: task {config.task} has none. Leave it out.")
        for program in programs:
            path = args.output / f"{program}-{seed}.json"
            if path.exists():
                continue
            for directory in (workdir, init):
                shutil.rmtree(directory, ignore_errors=True)  # of a killed run
            run_flags = list(flags)
            if program.endswith(SHARED):
                write_shared_head(config.init, seed, init)
                run_flags.append(f"--config.init={init}")
            run_config = harness.load(args.config, parse_overrides(run_flags))
            if program.startswith(BERTJAX):
                outcome = train_bertjax(args.config, run_flags, workdir)
            else:
                outcome = train_torch(run_config, args.peer_python, workdir, options)
            result = {"program": program, "seed": seed, "run": run, "intervals": outcome[-1]}
            result["figures"] = collect_figures(*outcome, config.batch_size)
            path.write_text(json.dumps(result) + "\n")
            shutil.rmtree(workdir)

    print("\n".join(summarize(read_results(args.output, run))))


if __name__ == "__main__":
    main()
