"""The side of `finetuning_peer` that runs under PyTorch, in an interpreter of its own.

PYTHON experiments/bench/torch_finetuning.py WORK MODEL CORES PAD SORTED
"""

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.torch_peer import TrainingInterval, make_torch_optimizer


class PackedExample(NamedTuple):
    """One of a batch.

    Attributes:
      place: batch, row and slot.
      pieces: batch, row and columns.
    """

    place: tuple[int, int, int]
    tokens: tuple[int, int, np.ndarray]
    ids: np.ndarray
    types: np.ndarray


def group_by_question(arrays: Mapping[str, np.ndarray], number: int) -> list[list[PackedExample]]:
    """The examples of a batch, those of one choice together."""
    found: dict[tuple[int, int], list[PackedExample]] = {}
    for row, packs in enumerate(arrays["example_ids"][number]):
        for slot in range(packs.max()):
            tokens = number, row, np.flatnonzero(packs == slot + 1)
            given = (arrays[name][tokens] for name in ("input_ids", "token_type_ids"))
            group = arrays["group_ids"][number, row, slot] if "group_ids" in arrays else slot
            example = PackedExample((number, row, slot), tokens, *given)
            found.setdefault((row, int(group)), []).append(example)
    return list(found.values())


def batched_by_length(
    questions: list[list[PackedExample]], size: int, alike: bool
) -> Iterator[list]:
    """So many questions at once, of like length or as they come."""
    if alike:
        questions = sorted(questions, key=lambda each: max(len(e.ids) for e in each))
    for first in range(0, len(questions), size):
        yield questions[first : first + size]


def train(directory: pathlib.Path, init: str, threads: int, pad: int, alike: int) -> None:
    """Trains on DIRECTORY/train.npz; writes windows.json, and logits.npz of eval.npz.

    Args:
      pad: pieces that every example is padded to, at least.
      alike: questions of like length that it has at once; 0 for those of a step as they come.
    """
    import torch
    import transformers
    from torch.nn import functional

    recipe = json.loads((directory / "recipe.json").read_text())
    torch.manual_seed(recipe["seed"])
    torch.set_num_threads(threads)
    name = {"multiple_choice": "choice_labels", "token_classification": "token_labels"}.get(
        recipe["kind"], "labels"
    )
    options = {key: value for key, value in recipe.items() if key.endswith("_prob")}
    if name != "choice_labels":
        options["num_labels"] = recipe["outputs"]
    kind = {
        "choice_labels": transformers.AutoModelForMultipleChoice,
        "token_labels": transformers.AutoModelForTokenClassification,
        "labels": transformers.AutoModelForSequenceClassification,
    }[name]
    model = kind.from_pretrained(init, **options).float().train()
    optimizer, rates = make_torch_optimizer(model, recipe)

    def inputs_of(group: Sequence[Sequence[PackedExample]]) -> dict[str, Any]:
        examples = [example for question in group for example in question]
        length = max(pad, *(len(example.ids) for example in examples))
        fields = ("input_ids", "token_type_ids", "attention_mask")
        inputs = {field: torch.zeros((len(examples), length), dtype=torch.long) for field in fields}
        for row, (_, _, ids, types) in enumerate(examples):
            for field, values in zip(fields, (ids, types, np.ones_like(ids)), strict=True):
                inputs[field][row, : len(ids)] = torch.from_numpy(values)
        # A question of one answer each: not all have as many.
        shape = (-1, 1, length) if name == "choice_labels" else (-1, length)
        return {field: values.view(shape) for field, values in inputs.items()}

    def losses_of(logits: Any, sizes: list[int], targets: Any) -> Any:
        """Of each question, or of each piece."""
        if name == "token_labels":
            logits = logits.flatten(0, 1)
        if recipe["kind"] == "regression":
            return functional.mse_loss(logits[:, 0], targets, reduction="none")
        if name == "choice_labels":
            each = logits[:, 0].split(sizes)
            logits = torch.nn.utils.rnn.pad_sequence(each, True, -torch.inf)
            targets = torch.stack([own.argmax() for own in targets.split(sizes)])
        return functional.cross_entropy(logits, targets, reduction="none")

    def prepared(arrays: Mapping[str, np.ndarray], step: int) -> list[tuple[Any, ...]]:
        """Inputs, answers of each question, targets, and shares in the loss, of each group."""
        questions, group_ids = group_by_question(arrays, step), list[tuple[Any, ...]]()
        if name == "token_labels":
            whole = arrays["token_labels_weights"][step].sum()
            for group in batched_by_length(questions, alike or len(questions), bool(alike)):
                inputs = inputs_of(group)
                targets, weights = (torch.zeros(inputs["input_ids"].shape) for _ in range(2))
                for row, (example,) in enumerate(group):
                    size, at = len(example.ids), example.tokens
                    targets[row, :size] = torch.from_numpy(arrays["token_labels"][at])
                    weights[row, :size] = torch.from_numpy(
                        arrays["token_labels_weights"][at] / whole
                    )
                group_ids.append((inputs, [], targets.long().flatten(), weights.flatten()))
            return group_ids
        whole = sum(arrays[f"{name}_weights"][each[0].place] for each in questions)
        for group in batched_by_length(questions, alike or len(questions), bool(alike)):
            targets = [arrays[name][e.place] for each in group for e in each]
            weights = [arrays[f"{name}_weights"][each[0].place] / whole for each in group]
            dtype = torch.float32 if recipe["kind"] == "regression" else torch.long
            wanted = torch.tensor(np.array(targets), dtype=dtype)
            sizes = [len(each) for each in group]
            group_ids.append((inputs_of(group), sizes, wanted, torch.tensor(np.array(weights))))
        return group_ids

    training = np.load(directory / "train.npz")
    arrays = {field: training[field] for field in training.files}
    steps = [prepared(arrays, step) for step in range(len(arrays["input_ids"]))]
    windows: list[TrainingInterval] = []
    recent: list[float] = []
    began = time.perf_counter()
    for step, group_ids in enumerate(steps, 1):
        recent.append(0.0)
        for inputs, sizes, targets, weights in group_ids:
            loss = losses_of(model(**inputs).logits, sizes, targets) @ weights
            loss.backward()
            recent[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["max_grad_norm"])
        optimizer.step()
        rates.step()
        optimizer.zero_grad(set_to_none=True)
        if step % recipe["log_every"] == 0 or step == len(steps):
            seconds, began = time.perf_counter() - began, time.perf_counter()
            speed = len(recent) * recipe["batch_size"] / seconds
            windows.append([step, statistics.fmean(recent), speed])
            print("step {:g}  loss {:.7g}  {:.2f} examples/s".format(*windows[-1]), flush=True)
            recent.clear()
    (directory / "windows.json").write_text(json.dumps(windows))

    model.eval()
    evaluation = np.load(directory / "eval.npz")
    arrays = {field: evaluation[field] for field in evaluation.files}
    logits = np.zeros((*arrays[f"{name}_weights"].shape, recipe["outputs"]), np.float32)
    questions = [each for batch in range(len(logits)) for each in group_by_question(arrays, batch)]
    with torch.inference_mode():
        for group in batched_by_length(questions, alike or recipe["batch_size"], bool(alike)):
            examples = [example for question in group for example in question]
            for example, found in zip(examples, model(**inputs_of(group)).logits, strict=True):
                at, size = (
                    (example.tokens, len(example.ids))
                    if name == "token_labels"
                    else (example.place, None)
                )
                logits[at] = found[:size].numpy()
    np.savez(directory / "logits.npz", logits=logits)


if __name__ == "__main__":
    _, work, init, *numbers = sys.argv
    train(pathlib.Path(work), init, *map(int, numbers))
