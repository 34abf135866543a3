"""Distillation under PyTorch: the peer's side of `distillation_peer`, in its own interpreter.

    PYTHON experiments/bench/peers/torch_distillation.py DIR MODEL CORES PAD_TO GROUP_BY_LENGTH

As `torch_finetuning`, with a teacher in each step.
"""

import pathlib
import sys
from typing import Any

from experiments.bench.peers.torch_finetuning import MicroBatch, Peer, train


class Student(Peer):
    """Student with the teacher and the losses that `recipe["distill"]` names.

    The losses are those of TextBrewer's BasicDistiller with `kd_ce_loss` and hard labels: cross
    entropy with the teacher's softened predictions, and with labels. The former is written as the
    divergence, which has the same gradient and is 0 for equal models, times T^2 (Hinton et al.
    2015).
    """

    def __init__(self, recipe: dict[str, Any], init: str, pad_to: int) -> None:
        super().__init__(recipe, init, pad_to)
        self.distill = recipe["distill"]
        self.teacher = type(self.model).from_pretrained(self.distill["teacher"]).float().eval()

    def loss(self, batch: MicroBatch) -> Any:
        """Return the group's part of the step's loss."""
        import torch
        from torch.nn import functional

        inputs, sizes, targets, weights = batch
        temperature = self.distill["temperature"]
        with torch.no_grad():
            teacher_logits = self.teacher(**inputs).logits
        logits = self.logits(inputs)
        divergences = functional.kl_div(
            functional.log_softmax(logits / temperature, -1),
            functional.log_softmax(teacher_logits / temperature, -1),
            reduction="none",
            log_target=True,
        ).sum(-1)
        soft = temperature**2 * (divergences @ weights.to(divergences.dtype))
        hard = self.label_loss(logits, sizes, targets, weights)
        return self.distill["labels_weight"] * hard + self.distill["logits_weight"] * soft


if __name__ == "__main__":
    _, work_directory, model, *numbers = sys.argv
    train(pathlib.Path(work_directory), model, *map(int, numbers), peer_class=Student)
