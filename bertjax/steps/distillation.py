"""Distillation: an objective whose model, the student, also learns from a teacher's outputs.

The teacher is a constant of the train step. Hidden states of both models, and the relations that
their projections compute from them, are compared beside the logits of the heads.
"""

import abc
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.config.config import Config
from bertjax.config.init_fields import WITHOUT_INIT
from bertjax.mesh.feed import Batch
from bertjax.model import flops
from bertjax.model.bert import BertWithHeads, init_params
from bertjax.model.bert_config import BertConfig
from bertjax.model.distillation_losses import hidden_state_loss, relation_loss
from bertjax.model.heads import HEADS
from bertjax.model.losses import Sums
from bertjax.steps.objective import Objective
from bertjax.steps.train_step import loss_terms
from data_pipelines.errors import InputError

_PROJECTION_SEED = 0x5EED  # folded into the key of the student's parameters


class StudentObjective(Objective):
    """The objective of a task whose model also learns logits of a teacher.

    Evaluation and prediction are those of the task: they do not read the teacher.

    Args:
      objective: the objective of the task; data may set its batch size.
      config: the configuration, with section `distill`.
      logits_heads: heads whose logits the student learns.

    Raises:
      InputError: a head has no loss against a teacher.
    """

    def __init__(self, objective: Objective, config: Config, logits_heads: Iterable[str]) -> None:
        self.objective, self.config = objective, config
        self.heads, self.batch_size_multiple = objective.heads, objective.batch_size_multiple
        self.batch_unit = objective.batch_unit
        for head in logits_heads:
            if HEADS[head].soft_loss is None:
                raise InputError(
                    f"distill.logits_weight={config.distill.logits_weight!r}: the {head} head has "
                    "no loss against a teacher. Set 0, or give it a soft_loss."
                )

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """Sequences of a global training batch."""
        return self.objective.batch_size

    @property
    def eval_batch_size(self) -> int:
        """Sequences of a global eval batch."""
        return self.objective.eval_batch_size

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of a global batch, by its name."""
        return self.objective.batch_shapes(batch_size)

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of a global eval batch, by its name."""
        return self.objective.eval_shapes()

    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of the student's forward pass over a batch."""
        return self.objective.forward_flops(batch_size)

    def trainable(self, name: str) -> bool:
        """Return whether the parameter of this name is trained."""
        return self.objective.trainable(name)

    def init_params(self, key: Array) -> Any:
        """Return random parameters of the student."""
        return self.objective.init_params(key)

    def constants(self) -> Any:
        """Return the constants of the task's objective."""
        return self.objective.constants()

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return the outputs of the student; see `Objective.apply`."""
        return self.objective.apply(params, batch, key, constants)

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """Return the sums of the task."""
        return self.objective.sums(outputs, batch)

    def eval_results(
        self, outputs: dict[str, Array], batch: Batch
    ) -> tuple[Sums, dict[str, Array]]:
        """Return the results of the task's eval step."""
        return self.objective.eval_results(outputs, batch)

    def weighted_sums(
        self,
        outputs: dict[str, Array],
        batch: Batch,
        logits: Mapping[str, tuple[Array, Array]],
        progress: Array,
    ) -> Sums:
        """Return the sums of the task with weighted losses, and those of the heads' logits.

        Args:
          outputs: outputs of the student.
          batch: arrays of the batch.
          logits: logits of student and teacher by head.
          progress: float32 [], part of the run that is over.
        """
        sums = self.objective.sums(outputs, batch)
        for name, (value, weight) in loss_terms(sums).items():
            # Not a product with 0, which would be NaN for an infinite loss.
            zero = (jnp.zeros_like(value), weight)
            is_on = max(self.config.distill.schedule("labels_weight")) > 0
            sums[name] = (
                self._weighted("labels_weight", (value, weight), progress) if is_on else zero
            )
        for head, (student, teacher) in logits.items():
            soft_loss = HEADS[head].soft_loss
            assert soft_loss is not None
            pair = soft_loss(student, teacher, batch, self._value("temperature", progress))
            sums[f"{head}_logits_loss"] = self._weighted("logits_weight", pair, progress)
        return self.objective.weigh_losses(sums)

    def _value(self, name: str, progress: Array) -> Array:
        """Return a weight or the temperature at this progress, float32 []."""
        first, last = self.config.distill.schedule(name)
        return jnp.float32(first) + jnp.float32(last - first) * progress

    def _weighted(self, name: str, pair: tuple[Array, Array], progress: Array) -> Any:
        value, weight = pair
        return value * self._value(name, progress), weight


class TeacherObjective(StudentObjective):
    """The objective of a task, with a teacher in its train step.

    Args:
      objective: the objective of the task.
      config: the configuration, with `distill.teacher`.
      logits_heads: heads whose logits the student learns.
      teacher: configuration of the teacher.
      load_teacher: returns the teacher's parameters, a nested dictionary of float32 arrays.

    Raises:
      InputError: the teacher reads other tokens, or fewer.
    """

    def __init__(
        self,
        objective: Objective,
        config: Config,
        logits_heads: Iterable[str],
        teacher: BertConfig,
        load_teacher: Callable[[], Any],
    ) -> None:
        super().__init__(objective, config, logits_heads)
        self.teacher, self._load_teacher = teacher, load_teacher
        path, vocab_size = config.distill.teacher, config.model.vocab_size
        if teacher.vocab_size != vocab_size:
            raise InputError(
                f"model.vocab_size={vocab_size}: the teacher {path} has {teacher.vocab_size}. Use "
                "its vocabulary."
            )
        if objective.segments and teacher.type_vocab_size < 2:
            raise InputError(
                f"distill.teacher={path}: has one token type, and sequences have two segments, "
                f"{objective.segments}. Use a teacher with two."
            )
        if teacher.max_position_embeddings < config.max_seq_length:
            raise InputError(
                f"max_seq_length={config.max_seq_length}: the teacher {path} has "
                f"{teacher.max_position_embeddings} positions. Use no more."
            )

    @property
    @abc.abstractmethod
    def teacher_shapes(self) -> Any:
        """The parameters of the teacher that the train step reads, as shapes."""

    def train_constants(self) -> Any:
        """Return the parameters of the teacher and the task's constants."""
        return {"teacher": self._load_teacher(), "task": self.objective.constants()}

    def train_constant_shapes(self) -> Any:
        """Return the shapes of the constants, those of the teacher in its dtype."""
        dtype = jnp.dtype(self.config.distill.teacher_dtype)
        teacher = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), self.teacher_shapes
        )
        return {"teacher": teacher, "task": jax.eval_shape(self.objective.constants)}


class DistillationObjective(TeacherObjective):
    """The objective of a task that learns logits, hidden states or relations of a teacher.

    Args:
      objective: the objective of the task.
      config: the configuration, with `distill.teacher`.
      teacher: configuration of the teacher.
      teacher_heads: heads whose logits the student learns.
      load_teacher: returns the teacher's parameters, a nested dictionary of float32 arrays.

    Raises:
      InputError: the losses do not fit the two models.
    """

    def __init__(
        self,
        objective: Objective,
        config: Config,
        teacher: BertConfig,
        teacher_heads: tuple[str, ...],
        load_teacher: Callable[[], Any],
    ) -> None:
        super().__init__(objective, config, teacher_heads, teacher, load_teacher)
        self._teacher_model = BertWithHeads(teacher, teacher_heads)
        distill, student = config.distill, config.model
        self._is_on = {
            name: max(distill.schedule(f"{name}_weight")) > 0 for name in ("hidden", "relations")
        }
        if teacher.mask_kind != student.mask_kind:  # it would see what the student predicts
            raise InputError(
                f"distill.teacher={distill.teacher}: the teacher's attention is "
                f"{teacher.mask_kind}, that of the model {student.mask_kind}. Use the same."
            )
        if teacher.decoder != student.decoder:
            raise InputError(
                f"distill.teacher={distill.teacher}: the teacher has decoder={teacher.decoder!r}, "
                f"the model {student.decoder!r}. Use the same."
            )
        for name, model in (("model", student), ("the teacher", teacher)):
            part = "a layer mix or a BiLSTM" if model.feature_layers or model.bilstm else ""
            part = "a decoder with cross-attention" if model.has_cross_attention else part
            part = "an LSTM" if model.encoder == "lstm" else part
            part = "a pair of encoders" if model.direction == "pair" else part
            if part and self._reads_hidden_states:
                raise InputError(
                    f"distill.hidden_weight={distill.hidden_weight!r}: {name} has {part}. Distill "
                    "its logits alone."
                )
        self._pairs: Sequence[tuple[int, int]] = ()
        if self._is_on["hidden"]:
            self._pairs = distill.layer_pairs(student.num_hidden_layers, teacher.num_hidden_layers)
        self._relation_layer = distill.relation_layer or teacher.num_hidden_layers
        self._relation_heads = distill.relation_heads or teacher.num_attention_heads
        if self._is_on["relations"]:
            self._check_relations()

    def _check_relations(self) -> None:
        layers, heads = self.teacher.num_hidden_layers, self._relation_heads
        if self._relation_layer > layers:
            raise InputError(
                f"distill.relation_layer={self._relation_layer}: the teacher has {layers} layers. "
                f"Use 1 to {layers}."
            )
        for model in (self.config.model, self.teacher):
            if model.hidden_size % heads:
                raise InputError(
                    f"distill.relation_heads={heads}: does not divide the hidden size "
                    f"{model.hidden_size}. Use a divisor of those of both models."
                )

    @property
    def teacher_shapes(self) -> Any:
        """The parameters of the teacher that the train step reads, as shapes."""
        return jax.eval_shape(
            lambda: init_params(self.teacher, self._teacher_model.heads, jax.random.key(0))
        )

    @property
    def _reads_hidden_states(self) -> bool:
        return self._is_on["hidden"] or self._is_on["relations"]

    def step_flops(self) -> float:
        """Return the model FLOPs of a train step, with the teacher's forward pass."""
        if self._teacher_model.heads:
            task = copy.copy(self.objective)
            task.config = dataclasses.replace(task.config, model=self.teacher, **WITHOUT_INIT)
            teacher_flops = task.forward_flops(self.batch_size)
        else:
            length = self.config.max_seq_length
            teacher_flops = flops.forward_flops(self.teacher, self.batch_size, length)
        return super().step_flops() + teacher_flops

    def init_params(self, key: Array) -> Any:
        """Return random parameters of the student, and of the projection of its hidden states."""
        params = dict(self.objective.init_params(key))
        sizes = self.config.model.hidden_size, self.teacher.hidden_size
        if self._pairs and sizes[0] != sizes[1]:
            init = jax.nn.initializers.lecun_normal(batch_axis=0)
            key = jax.random.fold_in(key, _PROJECTION_SEED)
            params["distill"] = {"projection": init(key, (len(self._pairs), *sizes))}
        return params

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the task's sums with weighted losses, and the losses against the teacher."""
        student_layers, teacher_layers = self._hidden_layers()
        outputs = self._apply_student(params, batch, key, constants["task"], student_layers)
        teacher_outputs = jax.lax.stop_gradient(
            _apply(self._teacher_model, constants["teacher"], batch, None, teacher_layers)
        )
        names = {head: f"{head}_logits" for head in self._teacher_model.heads}
        logits = {head: (outputs[name], teacher_outputs[name]) for head, name in names.items()}
        sums = self.weighted_sums(outputs, batch, logits, progress)
        if self._pairs:
            count = len(self._pairs)
            states = outputs["hidden_states"][:count]
            if "distill" in params:
                kernel = params["distill"]["projection"].astype(states.dtype)
                states = jnp.einsum("lbth,lhn->lbtn", states, kernel)
            pair = hidden_state_loss(
                states,
                teacher_outputs["hidden_states"][:count],
                batch["example_ids"],
                self.config.distill.hidden_loss,
            )
            sums["hidden_loss"] = self._weighted("hidden_weight", pair, progress)
        if self._is_on["relations"]:
            last = self.config.model.num_hidden_layers - 1
            inputs = outputs["hidden_states"][-1], teacher_outputs["hidden_states"][-1]
            trees = params["encoder"], constants["teacher"]["encoder"]
            for name in self.config.distill.relations.split("+"):
                student, teacher = (
                    _project(tree["blocks"]["attention"][name], layer, x)
                    for tree, layer, x in zip(
                        trees, (last, self._relation_layer - 1), inputs, strict=True
                    )
                )
                pair = relation_loss(
                    student,
                    jax.lax.stop_gradient(teacher),
                    batch["example_ids"],
                    self._relation_heads,
                )
                sums[f"{name}_relation_loss"] = self._weighted("relations_weight", pair, progress)
        return sums

    def _hidden_layers(self) -> tuple[list[int], list[int]]:
        """Return the layers of both models whose hidden states are read; relations' inputs last."""
        student = [pair[0] for pair in self._pairs]
        teacher = [pair[1] for pair in self._pairs]
        if self._is_on["relations"]:
            student.append(self.config.model.num_hidden_layers - 1)
            teacher.append(self._relation_layer - 1)
        return student, teacher

    def _apply_student(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, layers: Sequence[int]
    ) -> dict[str, Array]:
        if not layers:
            return self.objective.apply(params, batch, key, constants)
        return _apply(self.objective.model, params, batch, key, layers)


def _apply(
    model: BertWithHeads, params: Any, batch: Batch, key: Array | None, layers: Sequence[int]
) -> dict[str, Array]:
    rngs = None if key is None else {"dropout": key}
    outputs = model.apply(
        {"params": params}, batch, deterministic=key is None, rngs=rngs, hidden_layers=layers
    )
    return cast(dict[str, Array], outputs)


def _project(dense: Any, layer: int, x: Array) -> Array:
    """Return a block's queries, keys or values [B, T, H] of its input."""
    # XLA computes them once, here and in attention. The student's gradient has six more products,
    # 2% of a step of `experiments.bench.distillation_step`.
    kernel, bias = (dense[name][layer].astype(x.dtype) for name in ("kernel", "bias"))
    return x @ kernel + bias
