"""The same training of embeddings by bertjax and by sentence-transformers.

    python -m experiments.bench.embeddings_peer --peer-python PYTHON --output DIR --seeds N \
      --config experiments/embeddings.py:init=MODEL,data=DIR [--config.FIELD=VALUE ...]

MODEL is a directory of sentence-transformers. The loss is multiple negatives ranking or CoSENT, as
the data choose it. Both see the same examples in the same steps with the same learning rates,
weight decay, clipping, dropout and length, in float32 on the same CPU cores. Each draws its own
dropout masks, and with --config.reinit_layers=N the parameters of the N highest layers. The peer
tokenizes beforehand and pads the texts of a column to the longest of the step. Each evaluates its
own model at the end: pairs with scores, or a data set in BEIR's layout, for which the figures
before training are computed too, once.

Seeds count from the configuration's. DIR gets a JSON file for each seed of each program. What is
there is not repeated, so a series can be extended. Times are of whole processes: bertjax's include
reading, tokenizing and compiling, the peer's tokenizing. Both include the evaluation at the end.
PYTHON is an interpreter with torch and sentence-transformers (extra [bench]).
"""

import dataclasses
import json
import pathlib
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertjax.cli.config_args import parse_overrides
from experiments.ablations.commands import local_path
from experiments.bench import finetuning_peer, harness
from experiments.bench.finetuning_peer import Result, read_results, train_bertjax
from experiments.bench.harness import BERTJAX, Cost
from experiments.bench.peers import torch_embeddings
from experiments.bench.peers.torch_finetuning import TrainingInterval

if TYPE_CHECKING:
    from bertjax.config.config import Config

PEER = "sentence-transformers"
TEXTS_PER_SECOND = "texts/CPU s"


def make_recipe(config: "Config") -> dict[str, Any]:
    """Return what the peer needs: texts, their order, learning rates, the eval set."""
    from bertjax.steps.schedules import learning_rate_schedule
    from bertjax.tasks.embeddings.losses import LOSSES, REGRESSION_LOSS
    from bertjax.tasks.embeddings.task import EmbeddingsTask
    from data_pipelines.finetuning.embeddings.beir import RetrievalDataset
    from data_pipelines.finetuning.embeddings.distinct_batches import TupleBatches

    task = EmbeddingsTask(config)
    data = task.train_data
    config = task.config.resolve(task.examples_per_epoch)
    optimizer, steps = config.optimizer_config(), int(config.steps)
    loss = task.objective.loss
    if optimizer.name != "adamw" or optimizer.layerwise_lr_decay < 1 or optimizer.frozen_layers:
        sys.exit("The peer only has AdamW, with one learning rate for all layers.")
    if loss.loss == REGRESSION_LOSS or loss.dims or loss.symmetric or data.is_unlabeled:
        sys.exit(f"The peer has {LOSSES[0]} and {LOSSES[1]} of pairs and negatives alone.")
    if config.data["query_prompt"] or config.data["document_prompt"]:
        sys.exit("The peer has no prompts. Leave them out.")
    task.prepare(steps)
    batches = task._batches
    assert isinstance(batches, TupleBatches)
    schedule = learning_rate_schedule(optimizer)
    recipe = dataclasses.asdict(optimizer) | {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "max_seq_length": config.max_seq_length,
        "hidden_dropout_prob": config.model.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.model.attention_probs_dropout_prob,
        "reinit_layers": config.reinit_layers,
        "initializer_range": config.model.initializer_range,
        "learning_rates": [float(schedule(step)) for step in range(steps + 1)],
        "log_every": int(config.log_every),
        "loss": loss.loss,
        "scale": loss.scale,
        "texts": data.texts,
        "scores": data.scores if task.objective.reads_scores else None,
        "steps": [batches.rows(step).tolist() for step in range(steps)],
    }
    ((_, eval_data),) = task.read_sets(config, "eval")
    if isinstance(eval_data, RetrievalDataset):
        documents = dict(zip(eval_data.document_ids, eval_data.documents, strict=True))
        queries = dict(zip(eval_data.query_ids, eval_data.queries, strict=True))
        top_k = config.data["top_k"]
        recipe["retrieval"] = {"documents": documents, "queries": queries, "top_k": top_k}
        recipe["retrieval"]["qrels"] = eval_data.qrels
    elif eval_data.scores:
        recipe["pairs"] = {"texts": eval_data.texts, "scores": eval_data.scores}
    else:
        sys.exit("Evaluate pairs with scores, or a directory in BEIR's layout.")
    return recipe


def train_peer(
    config: "Config", python: str, directory: pathlib.Path, cores: int, steps: int | None = None
) -> Result:
    """Return the final scores of the peer; with `steps=0` those of the model before training."""
    directory.mkdir(parents=True)
    recipe = make_recipe(config)
    if steps is not None:
        recipe |= {"steps": recipe["steps"][:steps], "reinit_layers": 0}
    (directory / "recipe.json").write_text(json.dumps(recipe))
    command = [python, torch_embeddings.__file__, str(directory), config.init, str(cores)]
    cost = harness.measure_cost(command)
    output = json.loads((directory / "output.json").read_text())
    return output["scores"], cost, output["intervals"]


def evaluate_bertjax(
    config: "Config", spec: str, flags: Sequence[str], directory: pathlib.Path
) -> Result:
    """Return the scores of the model before training."""
    command = ["evaluate", "--checkpoint", config.init, "--config", spec]
    command += ["--output", str(directory), *flags]
    cost = harness.measure_cost(harness.bertjax_command(*command))
    return json.loads((directory / "scores.json").read_text()), cost, []


def collect_figures(
    scores: Mapping[str, float],
    cost: Cost,
    intervals: list[TrainingInterval],
    batch_size: int,
    num_texts: int,
) -> dict[str, float]:
    """Return scores and times by name; texts are those of all steps."""
    figures = finetuning_peer.collect_figures(scores, cost, intervals, batch_size)
    last_step = intervals[-1][0]
    return figures | {TEXTS_PER_SECOND: last_step * batch_size * num_texts / cost.cpu}


def summarize(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the figures by seed, the speedup by processor time, and the scores before training."""
    trained = [result for result in results if result["intervals"]]
    yield from finetuning_peer.summarize(trained)
    rates: dict[str, list[float]] = {}
    for result in trained:
        rates.setdefault(result["program"], []).append(result["figures"][TEXTS_PER_SECOND])
    for program, values in rates.items():
        yield f"{program}: {statistics.fmean(values):.1f} {TEXTS_PER_SECOND}"
    for result in results:
        if not result["intervals"]:
            listed = ", ".join(f"{name} {value:.4f}" for name, value in result["figures"].items())
            yield f"{result['program']}: {listed}"


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1)
    args, overrides = parser.parse_known_args()
    harness.limit_cores(args.cores)
    harness.set_up_process()
    args.output.mkdir(parents=True, exist_ok=True)
    run = {"config": args.config, "overrides": overrides, "cores": args.cores}
    read_results(args.output, run)
    shared = ["--config.model.dtype=float32", *harness.EVALUATE_AT_END, *overrides]
    first = harness.load(args.config, parse_overrides(shared)).seed
    work = args.output / "work"

    def write(program: str, seed: int, outcome: Result, figures: Mapping[str, float]) -> None:
        result = {"program": program, "seed": seed, "run": run, "intervals": outcome[-1]}
        path = args.output / f"{program}-{seed}.json"
        path.write_text(json.dumps(result | {"figures": figures}) + "\n")
        shutil.rmtree(work)

    for seed in range(first, first + args.seeds):
        flags = [*shared, f"--config.seed={seed}"]
        config = harness.load(args.config, parse_overrides(flags))
        recipe = make_recipe(config)
        num_texts, is_retrieval = len(recipe["texts"][0]), "retrieval" in recipe
        for program in (BERTJAX, PEER):
            shutil.rmtree(work, ignore_errors=True)  # of a killed run
            if not (args.output / f"{program}-{seed}.json").exists():
                if program == BERTJAX:
                    outcome = train_bertjax(args.config, flags, work)
                else:
                    outcome = train_peer(config, args.peer_python, work, args.cores)
                figures = collect_figures(*outcome, config.batch_size, num_texts)
                write(program, seed, outcome, figures)
            before = f"{program} before training"
            if is_retrieval and not (args.output / f"{before}-{first}.json").exists():
                if program == BERTJAX:
                    outcome = evaluate_bertjax(config, args.config, flags, work)
                else:
                    outcome = train_peer(config, args.peer_python, work, args.cores, steps=0)
                write(before, first, outcome, outcome[0])
    print("\n".join(summarize(read_results(args.output, run))))


if __name__ == "__main__":
    main()
