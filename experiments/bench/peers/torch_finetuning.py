"""Fine-tuning under PyTorch: the peer's side of `finetuning_peer`, in its own interpreter.

    PYTHON experiments/bench/peers/torch_finetuning.py DIR MODEL CORES PAD_TO GROUP_BY_LENGTH

Trains on DIR/train.npz after DIR/recipe.json; writes intervals.json, and of eval.npz logits.npz, or
for generation means.json.
"""

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.bench.peers.torch_pretraining import parameter_groups

TrainingInterval = list[float]  # last step, mean loss, examples/s
Arrays = Mapping[str, np.ndarray]
# Head -> name of its targets in a batch, and class of `transformers`.
HEADS = {
    "sequence_classification": ("labels", "AutoModelForSequenceClassification"),
    "multiple_choice": ("choice_labels", "AutoModelForMultipleChoice"),
    "token_classification": ("token_labels", "AutoModelForTokenClassification"),
    "question_answering": ("answer_positions", "AutoModelForQuestionAnswering"),
    "mlm": ("masked_lm_ids", "AutoModelForMaskedLM"),  # of generation, with the mask of UniLM
}
LABELS_OF_TOKENS = ("token_classification", "mlm")


class PackedExample(NamedTuple):
    """An example of a batch.

    Attributes:
      slot: index of the example's label: batch, sequence, slot.
      tokens: index of the example's tokens: batch, sequence, columns.
      input_ids, token_type_ids: its tokens.
    """

    slot: tuple[int, int, int]
    tokens: tuple[int, int, np.ndarray]
    input_ids: np.ndarray
    token_type_ids: np.ndarray


Question = list[PackedExample]  # the choices of a question; elsewhere one example
# Arguments of the model, examples of each question, targets, and their weights in the step's loss.
MicroBatch = tuple[dict[str, Any], list[int], Any, Any]


def unpack(arrays: Arrays, index: int) -> list[Question]:
    """Return the questions of a batch."""
    questions: dict[tuple[int, int], Question] = {}
    for sequence, example_ids in enumerate(arrays["example_ids"][index]):
        for slot in range(example_ids.max()):
            tokens = index, sequence, np.flatnonzero(example_ids == slot + 1)
            ids = (arrays[name][tokens] for name in ("input_ids", "token_type_ids"))
            group = arrays["group_ids"][index, sequence, slot] if "group_ids" in arrays else slot
            example = PackedExample((index, sequence, slot), tokens, *ids)
            questions.setdefault((sequence, int(group)), []).append(example)
    return list(questions.values())


def split_questions(
    questions: list[Question], size: int, by_length: bool
) -> Iterator[list[Question]]:
    """Yield the questions in groups, of similar length if asked for."""
    if by_length:
        questions = sorted(questions, key=lambda question: max(len(e.input_ids) for e in question))
    for first in range(0, len(questions), size):
        yield questions[first : first + size]


def pad_inputs(examples: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, Any]:
    """Return the model's arguments for examples of token ids and types, padded to a length."""
    import torch

    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = {name: torch.zeros((len(examples), length), dtype=torch.long) for name in names}
    for row, (ids, types) in enumerate(examples):
        for name, values in zip(names, (ids, types, np.ones_like(ids)), strict=True):
            inputs[name][row, : len(ids)] = torch.from_numpy(values)
    return inputs


def prefix_mask(input_ids: Any, token_type_ids: Any, attention_mask: Any) -> Any:
    """Return the mask [rows, queries, keys] of sources (type 0) and targets (type 1).

    Args:
      input_ids: token ids [rows, tokens].
      token_type_ids: their types.
      attention_mask: 1 for tokens, 0 for padding.
    """
    import torch

    is_before = torch.tril(torch.ones(2 * (input_ids.shape[1],), dtype=torch.long))
    return attention_mask[:, None] * ((token_type_ids[:, None] == 0) | (is_before[None] == 1))


def predictions(arrays: Arrays, example: PackedExample) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return the places of an example's predicted tokens in it, and their index in the arrays."""
    index, sequence, columns = example.tokens
    positions = arrays["masked_lm_positions"][index, sequence]
    slots = np.isin(positions, columns) & (arrays["masked_lm_weights"][index, sequence] > 0)
    return positions[slots] - columns[0], (index, sequence, np.flatnonzero(slots))


class Peer:
    """Model of `transformers` with the loss of its task.

    Args:
      recipe: what `finetuning_peer` writes.
      init: directory of Hugging Face.
      pad_to: minimum length of a padded example.
    """

    def __init__(self, recipe: dict[str, Any], init: str, pad_to: int) -> None:
        import transformers

        self.head, self.pad_to = recipe["head"], pad_to
        self.is_regression = recipe["problem_type"] == "regression"
        self.target, model_class = HEADS[self.head]
        self.weights = "masked_lm_weights" if self.head == "mlm" else f"{self.target}_weights"
        self.label_smoothing = recipe["label_smoothing"]
        options = {name: value for name, value in recipe.items() if name.endswith("_prob")}
        if self.head.endswith("classification"):
            options["num_labels"] = recipe["num_outputs"]
        self.model = getattr(transformers, model_class).from_pretrained(init, **options).float()

    def inputs(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return the model's arguments, padded to the longest example."""
        examples = [example for question in questions for example in question]
        length = max(self.pad_to, *(len(example.input_ids) for example in examples))
        inputs = pad_inputs([(e.input_ids, e.token_type_ids) for e in examples], length)
        if self.head == "mlm":
            inputs["attention_mask"] = prefix_mask(**inputs)
            return inputs
        # Questions differ in their number of choices, so each choice is a question of its own.
        shape = (-1, 1, length) if self.head == "multiple_choice" else (-1, length)
        return {name: values.view(shape) for name, values in inputs.items()}

    def total_weight(self, arrays: Arrays, index: int, questions: list[Question]) -> float:
        """Return the weight of a batch in its loss: of tokens, or of questions."""
        weights = arrays[self.weights]
        if self.head in LABELS_OF_TOKENS:
            return float(weights[index].sum())
        return float(sum(weights[question[0].slot] for question in questions))

    def micro_batch(self, arrays: Arrays, questions: list[Question], total: float) -> MicroBatch:
        """Return a group of questions with targets; `total` is the weight of the whole step."""
        import torch

        inputs = self.inputs(questions)
        examples = [example for question in questions for example in question]
        weights = arrays[self.weights]
        if self.head in LABELS_OF_TOKENS:
            shape = inputs["input_ids"].shape
            targets, token_weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
            for row, example in enumerate(examples):
                if self.head == "mlm":
                    places, slots = predictions(arrays, example)
                    targets[row, places] = arrays[self.target][slots]
                    token_weights[row, places] = weights[slots]
                    continue
                length = len(example.input_ids)
                targets[row, :length] = arrays[self.target][example.tokens]
                token_weights[row, :length] = weights[example.tokens]
            flat = torch.from_numpy(token_weights / total).flatten()
            return inputs, [], torch.from_numpy(targets).flatten(), flat
        values = np.array([arrays[self.target][example.slot] for example in examples])
        if self.head == "question_answering":
            values = values - np.array([[example.tokens[2][0]] for example in examples])
        targets = torch.tensor(values, dtype=torch.float32 if self.is_regression else torch.long)
        shares = np.array([weights[question[0].slot] for question in questions]) / total
        return inputs, [len(question) for question in questions], targets, torch.tensor(shares)

    def logits(self, inputs: dict[str, Any]) -> Any:
        """Return the logits; of answers start and end, `(batch, tokens, 2)`."""
        import torch

        outputs = self.model(**inputs)
        if self.head == "question_answering":
            logits = torch.stack([outputs.start_logits, outputs.end_logits], -1)
            # Without this, positions of padding would take part in the softmax, as no answer can.
            return logits.masked_fill(inputs["attention_mask"][..., None] == 0, -torch.inf)
        return outputs.logits

    def loss(self, batch: MicroBatch) -> Any:
        """Return the group's part of the step's loss."""
        inputs, sizes, targets, weights = batch
        return self.label_loss(self.logits(inputs), sizes, targets, weights)

    def label_loss(self, logits: Any, sizes: list[int], targets: Any, weights: Any) -> Any:
        """Return the loss of logits on their labels; see `micro_batch`."""
        import torch
        from torch.nn import functional

        if self.is_regression:
            losses = functional.mse_loss(logits[:, 0], targets, reduction="none")
        elif self.head == "question_answering":
            losses = functional.cross_entropy(logits, targets, reduction="none").mean(-1)
        else:
            if self.head in LABELS_OF_TOKENS:
                logits = logits.flatten(0, 1)
            elif self.head == "multiple_choice":
                scores = logits[:, 0].split(sizes)
                logits = torch.nn.utils.rnn.pad_sequence(scores, True, -torch.inf)
                targets = torch.stack([labels.argmax() for labels in targets.split(sizes)])
            smoothing = self.label_smoothing if self.model.training else 0.0
            losses = functional.cross_entropy(
                logits, targets, reduction="none", label_smoothing=smoothing
            )
        return losses @ weights.to(losses.dtype)

    def evaluate(self, arrays: Arrays, size: int, by_length: bool) -> dict[str, float]:
        """Return the mean loss and accuracy of the predicted tokens."""
        import torch

        total = float(arrays[self.weights].sum())
        questions = [q for index in range(len(arrays["input_ids"])) for q in unpack(arrays, index)]
        means = {"mlm_loss": 0.0, "mlm_accuracy": 0.0}
        self.model.eval()
        with torch.inference_mode():
            for group in split_questions(questions, size, by_length):
                batch = self.micro_batch(arrays, group, total)
                inputs, _, targets, weights = batch
                means["mlm_loss"] += float(self.loss(batch))
                is_right = self.logits(inputs).flatten(0, 1).argmax(-1) == targets
                means["mlm_accuracy"] += float(is_right.float() @ weights)
        return means

    def predict(self, arrays: Arrays, size: int, by_length: bool, num_outputs: int) -> np.ndarray:
        """Return the logits of all examples, in the shape of bertjax's."""
        import torch

        weights = arrays[self.weights]
        is_by_token = self.head in ("token_classification", "question_answering")
        shape = arrays["input_ids"].shape if is_by_token else weights.shape
        outputs = np.zeros((*shape, num_outputs), np.float32)
        questions = [q for index in range(len(weights)) for q in unpack(arrays, index)]
        self.model.eval()
        with torch.inference_mode():
            for group in split_questions(questions, size, by_length):
                examples = [example for question in group for example in question]
                logits = self.logits(self.inputs(group)).numpy()
                for example, values in zip(examples, logits, strict=True):
                    if is_by_token:
                        outputs[example.tokens] = values[: len(example.input_ids)]
                    else:
                        outputs[example.slot] = values
        return outputs


def train(
    directory: pathlib.Path,
    init: str,
    cores: int,
    pad_to: int,
    group: int,
    *,
    peer_class: type[Peer] = Peer,
) -> None:
    """Train and evaluate the peer.

    Args:
      group: questions of similar length that it computes at once; 0 for all of a step.
    """
    import torch

    recipe = json.loads((directory / "recipe.json").read_text())
    torch.manual_seed(recipe["seed"])
    torch.set_num_threads(cores)
    peer = peer_class(recipe, init, pad_to)
    groups = parameter_groups(peer.model, recipe["weight_decay"])
    betas = recipe["b1"], recipe["b2"]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=recipe["eps"], fused=True)
    rates = recipe["learning_rates"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)
    arrays = dict(np.load(directory / "train.npz"))
    steps = []
    for index in range(len(arrays["input_ids"])):
        questions = unpack(arrays, index)
        total = peer.total_weight(arrays, index, questions)
        parts = split_questions(questions, group or len(questions), bool(group))
        steps.append([peer.micro_batch(arrays, part, total) for part in parts])

    intervals: list[TrainingInterval] = []
    losses: list[float] = []
    peer.model.train()
    began = time.perf_counter()
    for step, batches in enumerate(steps, 1):
        losses.append(0.0)
        for batch in batches:
            loss = peer.loss(batch)
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(peer.model.parameters(), recipe["max_grad_norm"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % recipe["log_every"] == 0 or step == len(steps):
            seconds, began = time.perf_counter() - began, time.perf_counter()
            rate = len(losses) * recipe["batch_size"] / seconds
            intervals.append([step, statistics.fmean(losses), rate])
            print("step {:g}  loss {:.7g}  {:.2f} examples/s".format(*intervals[-1]), flush=True)
            losses.clear()
    (directory / "intervals.json").write_text(json.dumps(intervals))

    size = group or recipe["batch_size"]
    arrays = dict(np.load(directory / "eval.npz"))
    if peer.head == "mlm":
        means = peer.evaluate(arrays, size, bool(group))
        (directory / "means.json").write_text(json.dumps(means))
        return
    logits = peer.predict(arrays, size, bool(group), recipe["num_outputs"])
    np.savez(directory / "logits.npz", logits=logits)


if __name__ == "__main__":
    _, work_directory, model, *numbers = sys.argv
    train(pathlib.Path(work_directory), model, *map(int, numbers))
