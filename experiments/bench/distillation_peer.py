"""The same distillation by bertjax and by a published recipe under PyTorch.

    python -m experiments.bench.distillation_peer --peer-python PYTHON --output DIR --seeds N \
      [--pad-to TOKENS] [--group-by-length [EXAMPLES]] --teacher DIR \
      --config experiments/glue.py:task=mrpc,init=MODEL,data=GLUE [--config.FIELD=VALUE ...]

Both read one teacher and begin with one student, head included. They see the same examples in the
same steps, with the same losses, learning rates, weight decay and clipping, in float32 on the same
CPU cores. The losses are those of TextBrewer (`peers/torch_distillation.py`): of labels, and of the
teacher's softened predictions at `distill.temperature`. The task is the classification of texts;
the student has the shape of `init` or of its `init_layers`. Without --dropout no program draws
anything, and the largest difference of a step's losses is printed. With it each program draws its
own masks, and seeds show the deviation of scores. bertjax evaluates both. For padding and times see
`finetuning_peer`.
"""

import json
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertjax.cli.config_args import parse_overrides
from experiments.ablations.commands import local_path
from experiments.bench import finetuning_peer, harness
from experiments.bench.harness import BERTJAX
from experiments.bench.peers import torch_distillation

if TYPE_CHECKING:
    from bertjax.config.config import Config

TORCH, STUDENT, TEACHER = "torch", "student", "teacher"
NO_DROPOUT = [
    "--config.model.hidden_dropout_prob=0.0",
    "--config.model.attention_probs_dropout_prob=0.0",
    "--config.log_every=1",
]


def write_models(config: "Config", directory: pathlib.Path) -> None:
    """Write the student before its first step, and the teacher, for the peer to read."""
    import jax

    from bertjax.formats import huggingface
    from bertjax.formats.loading import read_model
    from bertjax.formats.tensors import NumpyModel
    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry
    from bertjax.training.initialization import PretrainedModel

    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    functions = StepFunctions(config, task.objective, jax.devices()[:1])
    init = PretrainedModel(config.init)
    init.select_layers(config.init_layers)
    params = functions.init(init.load_init_params(functions.init_shapes)).params
    student = NumpyModel(config.model, jax.device_get(params), task.tokenizer, labels=task.labels)
    for name, model in ((STUDENT, student), (TEACHER, read_model(config.distill.teacher))):
        (directory / name).mkdir()
        huggingface.write(model, directory / name)


def train_torch(
    config: "Config", python: str, directory: pathlib.Path, options: Sequence[str]
) -> finetuning_peer.Result:
    """Return the final scores of the peer."""
    distill = config.distill
    if (
        config.task != "sequence_classification"
        or distill.hidden_weight
        or distill.relations_weight
    ):
        sys.exit("The peer only learns logits of classified text. Choose another configuration.")
    weights = ("temperature", "labels_weight", "logits_weight")
    fields = {name: float(getattr(distill, name)) for name in weights}
    teacher = {"teacher": str(directory / TEACHER), **fields}
    return finetuning_peer.train_torch(
        config, python, directory / TORCH, options, torch_distillation.__file__, distill=teacher
    )


def largest_difference(results: Sequence[Mapping[str, Any]]) -> float:
    """Return the largest relative difference of the losses of a step, over all seeds.

    Steps before bertjax logs a speed are left out: those of its first two intervals.
    """
    losses: dict[tuple[str, int], dict[int, float]] = {
        (result["program"], result["seed"]): {step: loss for step, loss, _ in result["intervals"]}
        for result in results
    }
    return max(
        abs(loss / losses[TORCH, seed][step] - 1)
        for (program, seed), values in losses.items()
        if program == BERTJAX and (TORCH, seed) in losses
        for step, loss in values.items()
    )


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--teacher", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--output", type=local_path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--pad-to", type=int, default=0, metavar="TOKENS")
    parser.add_argument(
        "--group-by-length", type=int, default=0, nargs="?", const=8, metavar="EXAMPLES"
    )
    args, overrides = parser.parse_known_args()
    harness.limit_cores(args.cores)
    harness.set_up_process()
    args.output.mkdir(parents=True, exist_ok=True)
    settings = [f"--config.distill.teacher={args.teacher}", *harness.EVALUATE_AT_END, *overrides]
    settings += ["--config.model.dtype=float32", *([] if args.dropout else NO_DROPOUT)]
    options = [str(args.cores), str(args.pad_to), str(args.group_by_length)]
    run = {"config": args.config, "overrides": settings, "options": options}
    finetuning_peer.read_results(args.output, run)
    first = harness.load(args.config, parse_overrides(settings)).seed
    work = args.output / "work"
    for seed in range(first, first + args.seeds):
        paths = {name: args.output / f"{name}-{seed}.json" for name in (BERTJAX, TORCH)}
        if all(path.exists() for path in paths.values()):
            continue
        shutil.rmtree(work, ignore_errors=True)  # of a killed run
        work.mkdir()
        flags = [*settings, f"--config.seed={seed}"]
        config = harness.load(args.config, parse_overrides(flags))
        write_models(config, work)
        # The student is complete: its directory has the blocks that init_layers selected.
        flags += [f"--config.init={work / STUDENT}", "--config.init_layers="]
        config = harness.load(args.config, parse_overrides(flags))
        for program, path in paths.items():
            if path.exists():
                continue
            if program == BERTJAX:
                outcome = finetuning_peer.train_bertjax(args.config, flags, work / program)
            else:
                outcome = train_torch(config, args.peer_python, work, options)
            result = {"program": program, "seed": seed, "run": run, "intervals": outcome[-1]}
            result["figures"] = finetuning_peer.collect_figures(*outcome, config.batch_size)
            path.write_text(json.dumps(result) + "\n")
        shutil.rmtree(work)

    results = finetuning_peer.read_results(args.output, run)
    print("\n".join(finetuning_peer.summarize(results)))
    if not args.dropout:
        print(f"largest relative difference of a step's loss: {largest_difference(results):.1e}")


if __name__ == "__main__":
    main()
