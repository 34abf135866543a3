"""The same fine-tuning on SQuAD by bertjax and by `transformers` under PyTorch, on the same CPU.

    python -m experiments.bench.squad_peer --peer-python PYTHON --output DIR [--seeds N] \
      --config experiments/squad.py:version=1,init=MODEL,data=DIR [--config.FIELD=VALUE ...]

MODEL is a directory of Hugging Face. Both see the same windows in the same steps and take the same
rates, decay, clipping and dropout; each draws its own span head and dropout. The peer is
`AutoModelForQuestionAnswering` with its own loss, in float32 with PyTorch's fused AdamW. So that it
need not pad short windows to the longest of a step, each step goes through it in groups of like
length, whose gradients add up to the step's. What it pads takes part in its softmax: with
`--group=1`, a MODEL with a span head and no dropout, the losses of both are the same. Both are
decoded and scored by bertjax. Times are of whole processes, evaluation included; to cut passages
into windows counts for bertjax alone. PYTHON needs torch and transformers (extra [bench]); it may
be the interpreter of another environment.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.alternating_runs import Cost, measure_cost
from experiments.bench.torch_peer import make_torch_optimizer, peer_recipe


class WindowLocation(NamedTuple):
    """Where a window lies in a batch."""

    row: int
    slot: int
    columns: np.ndarray


def list_windows(batch: dict[str, np.ndarray]) -> list[WindowLocation]:
    """The windows of a batch, by length."""
    found = [
        WindowLocation(row, slot, np.flatnonzero(batch["example_ids"][row] == slot + 1))
        for row, slot in np.argwhere(batch["answer_positions_weights"] > 0)
    ]
    return sorted(found, key=lambda cell: len(cell.columns))


def peer(directory: pathlib.Path, init: str, threads: int, size: int) -> None:
    """Trains on DIRECTORY/train.npz; writes what becomes of eval.npz as logits.npz.

    Args:
      size: of a group, in windows.
    """
    import torch
    import transformers

    recipe = json.loads((directory / "recipe.json").read_text())
    torch.manual_seed(recipe["seed"])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(init).float().train()
    optimizer, rates = make_torch_optimizer(model, recipe)

    def inputs_of(batch: dict[str, np.ndarray], cells: Sequence[WindowLocation]) -> dict[str, Any]:
        length = max(len(cell.columns) for cell in cells)
        names = ("input_ids", "token_type_ids", "attention_mask")
        inputs = {name: torch.zeros((len(cells), length), dtype=torch.long) for name in names}
        for number, (row, _, columns) in enumerate(cells):
            tokens = len(columns)
            for name, field in zip(names, ("input_ids", "token_type_ids"), strict=False):
                inputs[name][number, :tokens] = torch.from_numpy(batch[field][row, columns])
            inputs["attention_mask"][number, :tokens] = 1
        return inputs

    training = np.load(directory / "train.npz")
    arrays = {name: training[name] for name in training.files}
    steps, started = len(arrays["input_ids"]), time.perf_counter()
    recent: list[float] = []
    for step in range(1, steps + 1):
        batch = {name: array[step - 1] for name, array in arrays.items()}
        cells = list_windows(batch)
        for first in range(0, len(cells), size):
            group = cells[first : first + size]
            places = [batch["answer_positions"][c.row, c.slot] - c.columns[0] for c in group]
            start, end = torch.from_numpy(np.array(places)).long().T
            out = model(**inputs_of(batch, group), start_positions=start, end_positions=end)
            loss = out.loss * (len(group) / len(cells))
            loss.backward()
            recent.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["max_grad_norm"])
        optimizer.step()
        rates.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == steps:
            speed = step * len(cells) / (time.perf_counter() - started)
            loss = sum(recent) / ((step - 1) % 20 + 1)
            print(f"step {step}/{steps}  loss {loss:.7g}  {speed:.2f} seq/s", flush=True)
            recent.clear()

    model.eval()
    evaluation = np.load(directory / "eval.npz")
    arrays = {name: evaluation[name] for name in evaluation.files}
    logits = np.zeros((*arrays["input_ids"].shape, 2), np.float32)
    with torch.inference_mode():
        for step in range(len(logits)):
            batch = {name: array[step] for name, array in arrays.items()}
            cells = list_windows(batch)
            for first in range(0, len(cells), size):
                group = cells[first : first + size]
                out = model(**inputs_of(batch, group))
                found = torch.stack([out.start_logits, out.end_logits], -1).numpy()
                for (row, _, columns), values in zip(group, found, strict=True):
                    logits[step, row, columns] = values[: len(columns)]
    np.savez(directory / "logits.npz", logits=logits)


def train_ours(spec: str, extra_flags: Sequence[str], workdir: pathlib.Path) -> tuple[dict, Cost]:
    """The scores of `bertjax train` on its held-out data, at the end."""
    command = [sys.executable, "-m", "bertjax", "train", "--config", spec]
    cost = measure_cost([*command, "--workdir", str(workdir), *extra_flags])
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == "eval"][-1], cost


def train_theirs(
    spec: str,
    extra_flags: Sequence[str],
    python: str,
    directory: pathlib.Path,
    options: Sequence[str],
) -> tuple[dict, Cost]:
    """The scores of the peer."""
    from bertjax.cli.config_args import parse_overrides
    from bertjax.config.loading import load_config
    from bertjax.formats.loading import find_bert_config
    from bertjax.inference import inspection
    from bertjax.tasks import registry

    config = load_config(
        spec, parse_overrides(extra_flags), registry.data_fields(), find_bert_config
    )
    task = registry.find_task(config.task)(config)
    config = config.resolve(task.examples_per_epoch)
    directory.mkdir(parents=True)
    (directory / "recipe.json").write_text(json.dumps(peer_recipe(config)))
    inspection.save_batches(config, 0, int(config.steps), 1, 0, directory / "train.npz")
    (held_out,) = task.eval_sets()
    batches = list(held_out.batches())
    arrays: dict[str, Any] = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    np.savez(directory / "eval.npz", allow_pickle=False, **arrays)
    command = [python, __file__, "--work", str(directory), "--config", config.init]
    cost = measure_cost([*command, *options])
    logits = np.load(directory / "logits.npz")["logits"]
    return held_out.evaluation(
        {}, [{"question_answering_logits": values} for values in logits]
    ).scores, cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, metavar="FILE[:ARG]")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR", help="a new directory")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    # 4 are as fast as 8, and twice as fast as 16 on two cores.
    parser.add_argument("--group", type=int, default=4, help="windows the peer has at once")
    parser.add_argument("--only", choices=["ours", "theirs"])
    parser.add_argument("--work", type=pathlib.Path, help=argparse.SUPPRESS)
    args, extra_flags = parser.parse_known_args()
    if args.work:
        return peer(args.work, args.config, args.cores, args.group)

    options = [f"--cores={args.cores}", f"--group={args.group}"]
    for seed in range(args.seeds):
        own = [*extra_flags, f"--config.seed={seed}", "--config.model.dtype=float32"]
        for name in [args.only] if args.only else ["ours", "theirs"]:
            directory = args.output / f"{name}-{seed}"
            if name == "ours":
                scores, cost = train_ours(args.config, own, directory)
            else:
                scores, cost = train_theirs(args.config, own, args.peer_python, directory, options)
            found = {
                key: round(value, 2) for key, value in scores.items() if key in ("exact", "f1")
            }
            print(
                f"seed {seed} {name}: {found}, {cost.wall / 60:.1f} minutes, "
                f"{cost.cpu_seconds / 60:.1f} of processor",
                flush=True,
            )


if __name__ == "__main__":
    main()
