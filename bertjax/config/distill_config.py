"""Configuration of distillation: a teacher, and the losses between it and the student."""

import dataclasses
import re

from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.schedules import parse_schedule

RELATIONS = ("query", "key", "value")
_HIDDEN_LOSSES = ("mse", "cosine")
_OPTIONS_OF_WEIGHTS = {
    "logits_weight": ("temperature",),
    "hidden_weight": ("hidden_loss", "layer_map"),
    "relations_weight": ("relations", "relation_heads", "relation_layer"),
}
_SCHEDULED = ("temperature", "labels_weight", "logits_weight", "hidden_weight", "relations_weight")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """The teacher of a student (Hinton et al. 2015) and the weights of their losses.

    Weights and the temperature are numbers, or two numbers as in "1..0.1" between which a value
    changes linearly over the run.

    Raises:
      InputError: a value is out of its range, or is set without a teacher and its logits.
    """

    teacher: str = field(
        "",
        "a run, a checkpoint, also the prefix of one of TF1, or a directory of Hugging Face or "
        'TF1, whose outputs the model learns; "" for none',
    )
    logits: str = field(
        "",
        "file of `bertjax predict --save-logits`, whose logits are learned instead of a teacher's "
        "in the train step",
    )
    embeddings: str = field(
        "",
        "file of `bertjax embed` in .npz, whose embeddings of the training and eval texts are "
        "learned instead of a teacher's in the train step",
    )
    unlabeled: str = field(
        "",
        "file of examples without labels, which are trained on beside the labeled ones and have "
        "their columns; fine-tuning",
    )
    teacher_dtype: str = field("float32", "dtype of the teacher: float32 or bfloat16")
    temperature: float | str = field(
        1.0,
        "divides the logits of both models before their softmax; its square multiplies the loss",
    )
    labels_weight: float | str = field(0.5, "weight of the task's loss on its labels")
    logits_weight: float | str = field(
        0.5, "weight of the divergence of the teacher's predictions from the student's"
    )
    hidden_weight: float | str = field(0.0, "weight of the loss of hidden states")
    hidden_loss: str = field("mse", "loss of hidden states: mse or cosine")
    layer_map: str = field(
        "",
        "layers whose hidden states are compared, STUDENT:TEACHER,..., 0 for the embeddings; "
        '"" for embeddings and evenly spaced blocks',
    )
    relations_weight: float | str = field(
        0.0, "weight of the divergence of attention relations (Wang et al. 2021, MiniLMv2)"
    )
    relations: str = field("query+key+value", 'projections that relate tokens, joined by "+"')
    relation_heads: int = field(
        0, "heads of the relations, which divide both hidden sizes; 0 for those of the teacher"
    )
    relation_layer: int = field(
        0, "block of the teacher whose relations the last block learns, from 1; 0 for the last"
    )

    def __post_init__(self) -> None:
        for name in _SCHEDULED:
            first, last = parse_schedule(f"distill.{name}", getattr(self, name))
            if name == "temperature" and not (first > 0 and last > 0):
                raise InputError(
                    f"distill.temperature={self.temperature!r}: not positive. Use more than 0."
                )
        for name, value, choices in (
            ("teacher_dtype", self.teacher_dtype, ("float32", "bfloat16")),
            ("hidden_loss", self.hidden_loss, _HIDDEN_LOSSES),
        ):
            if value not in choices:
                raise InputError(f"distill.{name}={value!r}: unknown. Use {' or '.join(choices)}.")
        names = self.relations.split("+")
        if not {*names} <= {*RELATIONS} or len({*names}) < len(names):
            raise InputError(
                f"distill.relations={self.relations!r}: not some of query, key and value. Join "
                'them by "+".'
            )
        for name in ("relation_heads", "relation_layer"):
            if getattr(self, name) < 0:
                raise InputError(f"distill.{name}={getattr(self, name)}: negative. Use 0 or more.")
        if not self.is_on:
            for item in dataclasses.fields(self):
                if (value := getattr(self, item.name)) != item.default:
                    raise InputError(
                        f"distill.{item.name}={value!r}: needs a teacher. Set distill.teacher, "
                        "distill.logits or distill.embeddings, or remove it."
                    )
        elif not any(max(self.schedule(name)) for name in _SCHEDULED[2:]):
            raise InputError(
                "distill.logits_weight=0: no loss reads the teacher. Give a weight to logits, "
                "hidden states or relations."
            )
        elif self.logits:
            for name in ("hidden_weight", "relations_weight", "teacher_dtype"):
                if (value := getattr(self, name)) != getattr(DistillConfig, name):
                    raise InputError(
                        f"distill.{name}={value!r}: needs the teacher in the train step, and "
                        "distill.logits has its logits alone. Remove one of the two."
                    )
        for weight, options in _OPTIONS_OF_WEIGHTS.items():
            for name in options if not max(self.schedule(weight)) else ():
                if (value := getattr(self, name)) != getattr(DistillConfig, name):
                    raise InputError(
                        f"distill.{name}={value!r}: distill.{weight}=0 does not read it. Set "
                        "both or none."
                    )

    @property
    def reads_logits(self) -> bool:
        """True if the student learns the teacher's logits."""
        return max(self.schedule("logits_weight")) > 0

    @property
    def is_on(self) -> bool:
        """True if the student learns from a teacher or from what it wrote."""
        return bool(self.teacher or self.logits or self.embeddings)

    def schedule(self, name: str) -> tuple[float, float]:
        """Return the first and the last value of a weight or of the temperature."""
        return parse_schedule(f"distill.{name}", getattr(self, name))

    def layer_pairs(self, num_student: int, num_teacher: int) -> list[tuple[int, int]]:
        """Return pairs of layers of student and teacher whose hidden states are compared.

        Args:
          num_student: blocks of the student.
          num_teacher: blocks of the teacher.

        Raises:
          InputError: a model lacks a layer, or a layer of the student is given twice.
        """
        if not self.layer_map:
            return [(i, i * num_teacher // num_student) for i in range(num_student + 1)]
        match = re.fullmatch(r"\d+:\d+(,\d+:\d+)*", self.layer_map)
        if not match:
            raise InputError(
                f"distill.layer_map={self.layer_map!r}: not STUDENT:TEACHER,... Write pairs such "
                "as 0:0,1:2."
            )
        pairs = [(int(a), int(b)) for a, b in (p.split(":") for p in self.layer_map.split(","))]
        for student, teacher in pairs:
            for layer, count, model in (
                (student, num_student, "student"),
                (teacher, num_teacher, "teacher"),
            ):
                if layer > count:
                    raise InputError(
                        f"distill.layer_map={self.layer_map!r}: the {model} has {count} layers, "
                        f"not {layer}. Use 0 (embeddings) to {count}."
                    )
        if len(dict(pairs)) < len(pairs):
            raise InputError(
                f"distill.layer_map={self.layer_map!r}: names a layer of the student twice. Remove "
                "one."
            )
        return pairs
