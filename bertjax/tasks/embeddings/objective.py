"""Objective of training embeddings: an encoder, its pooling, and a loss over the whole batch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.mesh.feed import Batch
from bertjax.model import pooling
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.heads import PROJECTION
from bertjax.model.losses import Sums
from bertjax.tasks.embeddings.encoder_embeddings import (
    apply_encoder,
    check_pooling,
    with_projection,
)
from bertjax.tasks.embeddings.losses import (
    COSENT_LOSS,
    DEFAULT_SCALE,
    LOSSES,
    RANKING_LOSS,
    REGRESSION_LOSS,
    SCORED_LOSSES,
    TEACHER_LOSS,
    LossOptions,
    arrange_texts,
    embeddings_sums,
    teacher_sums,
)
from bertjax.tasks.finetuning import FinetuningObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.distinct_batches import SLOTS
from data_pipelines.finetuning.examples import Target

SCORES = "text_scores"  # target: the score of the pair that a text belongs to
TEACHER = "teacher_embeddings"  # target: the embedding of a text by the teacher
_READ = (*ENCODER_INPUTS, "cls_positions")


class TrainedEmbeddingsObjective(FinetuningObjective):
    """Encoder whose output `embeddings`, float32 [B, K, D], is trained.

    The loss compares all examples of the batch, wherever their texts are. So the microbatches of
    `gradient_accumulation_steps` are parts of the texts: their embeddings are computed without
    keeping activations, and again for the gradient (GradCache, Gao et al. 2021). The loss against a
    teacher compares each text with its own embedding: its microbatches are those of every task.

    Attributes:
      loss: the loss and its options.
      num_texts: texts of an example.
      pooling: see `data.pooling`.
      projection_size: see `data.projection_size`.
    """

    eval_outputs = ("embeddings",)
    LEARNS_EMBEDDINGS = True

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        data, model, distill = config.data, config.model, config.distill
        learns_teacher = bool(distill.teacher or distill.embeddings)
        loss = data["loss"] or (TEACHER_LOSS if learns_teacher else RANKING_LOSS)
        self.num_texts = data["num_texts"] or (1 if loss == TEACHER_LOSS else 2)
        if loss not in LOSSES:
            raise InputError(
                f"data.loss={loss!r}: unknown loss. Use {', '.join(LOSSES)}, or '' to choose "
                "one by the columns."
            )
        self.pooling = data["pooling"] or "mean"
        check_pooling("data.pooling", self.pooling, model)
        if not 0 < data["scale"] <= 1000:
            raise InputError(f"data.scale={data['scale']}: not in (0, 1000]. Use about 20.")
        if data["scale"] != DEFAULT_SCALE and loss not in (RANKING_LOSS, COSENT_LOSS):
            raise InputError(
                f"data.scale={data['scale']}: data.loss={loss} has none. Leave it out."
            )
        if data["symmetric"] and loss != RANKING_LOSS:
            raise InputError(f"data.symmetric=True: data.loss={loss} is symmetric. Leave it out.")
        if (self.num_texts == 1) != (loss == TEACHER_LOSS) or (
            loss in SCORED_LOSSES and self.num_texts != 2
        ):
            number = {TEACHER_LOSS: "1", RANKING_LOSS: "at least 2"}.get(loss, "2")
            columns = "COLUMN" if loss == TEACHER_LOSS else "FIRST+SECOND"
            raise InputError(
                f"data.num_texts={self.num_texts}: data.loss={loss} reads {number} texts of an "
                f"example. Set data.texts={columns}."
            )
        if config.batch_size < 2 and loss not in (REGRESSION_LOSS, TEACHER_LOSS):
            raise InputError(
                f"batch_size={config.batch_size}: data.loss={loss} compares the examples of a "
                "batch. Use 16 or more."
            )
        self.projection_size = data["projection_size"]
        if self.projection_size < 0:
            raise InputError(
                f"data.projection_size={self.projection_size}: negative. Use 0 for no projection."
            )
        dims = parse_dims(data["matryoshka_dims"], self.embedding_size)
        self.loss = LossOptions(loss, float(data["scale"]), data["symmetric"], dims)
        for name in LAYER_MIX_FIELDS:
            if (value := getattr(model, name)) != getattr(BertConfig, name):
                raise InputError(
                    f"model.{name}={value!r}: embeddings are those of the last layer. Remove it."
                )
        check_distillation(config, loss)
        self.batch_size = self.round_up_batch_size(
            config.batch_size * self.num_texts, config.gradient_accumulation_steps
        )

    @property
    def embedding_size(self) -> int:
        """Components of an embedding."""
        return self.projection_size or self.config.model.output_size

    @property
    def caches_gradients(self) -> bool:
        """True if the loss compares examples of the whole batch."""
        return self.loss.loss != TEACHER_LOSS

    @property
    def reads_scores(self) -> bool:
        """True if the loss reads scores of pairs."""
        return self.loss.loss in SCORED_LOSSES

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        targets = make_targets(0, np.zeros(0) if self.reads_scores else None)
        if self.config.distill.embeddings:
            embeddings = np.zeros((0, self.embedding_size), np.float32)
            targets[TEACHER] = Target("example", embeddings)
        return targets

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of an eval batch, without the teacher, which eval sets compare with."""
        shapes = super().eval_shapes()
        return {name: shape for name, shape in shapes.items() if not name.startswith(TEACHER)}

    def init_params(self, key: Array) -> Any:
        """Return random parameters of the encoder, and of the projection if there is one."""
        params = super().init_params(key)
        return with_projection(params, self.config.model, self.projection_size, key)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return the embeddings of the texts of each sequence, float32 [B, K, D]."""
        data, num_texts = self.config.data, batch["cls_positions"].shape[1]
        hidden = apply_encoder(self.config.model, params, batch, key)
        pooled = pooling.pool(hidden, batch["example_ids"], num_texts, self.pooling)
        if self.projection_size:
            pooled = pooling.project(pooled, params[PROJECTION])
        return {"embeddings": pooling.l2_normalize(pooled) if data["normalize"] else pooled}

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """Return loss and metrics of the batch; see `embeddings_sums` and `teacher_sums`."""
        if self.loss.loss == TEACHER_LOSS:
            weights = batch[f"{SLOTS}_weights"]
            sums = teacher_sums(outputs["embeddings"], batch[TEACHER], weights)
            return self._nonpad_fraction(batch) | sums
        slots = batch[SLOTS], batch[f"{SLOTS}_weights"], self.config.batch_size, self.num_texts
        vectors, exists = arrange_texts(outputs["embeddings"], *slots)
        scores = None
        if self.reads_scores:
            columns, _ = arrange_texts(batch[SCORES][..., None], *slots)
            scores = columns[:, 0, 0]
        sums = embeddings_sums(self.loss, vectors, exists, scores)
        return self._nonpad_fraction(batch) | sums

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the sums of a training batch; see `Objective.train_sums`."""
        return self.sums({"embeddings": self._embed(params, batch, key, constants)}, batch)

    def eval_results(
        self, outputs: dict[str, Array], batch: Batch
    ) -> tuple[Sums, dict[str, Array]]:
        """Return the embeddings; the eval set computes the loss, as sequences hold no batch."""
        return self._nonpad_fraction(batch), {"embeddings": outputs["embeddings"]}

    def _embed(self, params: Any, batch: Batch, key: Array | None, constants: Any) -> Array:
        """Return the embeddings [B, K, H], computed in microbatches."""
        count = self.config.gradient_accumulation_steps
        if count == 1 or not self.caches_gradients:
            return self.apply(params, batch, key, constants)["embeddings"]
        # The loop adds gradients up in the dtype of what it closes over: in float32.
        dtypes = jax.tree.map(lambda leaf: leaf.dtype, params)
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)

        def embed(item: tuple[Batch, Array]) -> Array:
            microbatch, index = item
            narrow = jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), wide, dtypes)
            microbatch_key = None if key is None else jax.random.fold_in(key, index)
            return self.apply(narrow, microbatch, microbatch_key, constants)["embeddings"]

        # A microbatch takes every n-th sequence, so sequences stay on their device.
        microbatches = {
            name: batch[name].reshape(-1, count, *batch[name].shape[1:]).swapaxes(0, 1)
            for name in _READ
        }
        cached = jax.checkpoint(embed, prevent_cse=False)
        embeddings = jax.lax.map(cached, (microbatches, jnp.arange(count)))
        _, _, num_texts, size = embeddings.shape
        return embeddings.swapaxes(0, 1).reshape(-1, num_texts, size)

    @staticmethod
    def _nonpad_fraction(batch: Batch) -> Sums:
        is_token = batch["example_ids"] > 0
        return {
            "nonpad_fraction": (
                jnp.sum(is_token, dtype=jnp.float32),
                jnp.float32(is_token.size),
            )
        }


def make_targets(num_texts: int, scores: np.ndarray | None) -> dict[str, Target]:
    """Return the targets of texts: slots, which a batch assigns, and scores.

    Args:
      num_texts: number of all texts.
      scores: score of each text, [num_texts]; None without.
    """
    targets = {SLOTS: Target("example", np.zeros(num_texts, np.int32))}
    if scores is not None:
        targets[SCORES] = Target("example", scores.astype(np.float32))
    return targets


def check_distillation(config: Config, loss: str) -> None:
    """Check that the section `distill` has what the loss reads, and nothing else.

    Raises:
      InputError: it has not.
    """
    distill = config.distill
    if distill.logits:
        raise InputError(
            f"distill.logits={distill.logits!r}: task={config.task} has no head with logits. Write "
            "embeddings with `bertjax embed`, and name the file in distill.embeddings."
        )
    if loss == TEACHER_LOSS and not distill.is_on:
        raise InputError(
            f"data.loss={loss}: there is no teacher. Set distill.teacher or distill.embeddings."
        )
    if loss != TEACHER_LOSS and distill.is_on:
        raise InputError(
            f"data.loss={loss}: does not read the teacher of section distill. Set "
            f"data.loss={TEACHER_LOSS}, or remove the teacher."
        )
    if distill.teacher and distill.embeddings:
        raise InputError(
            f"distill.embeddings={distill.embeddings!r}: distill.teacher={distill.teacher} embeds "
            "the same texts in the train step. Remove one of the two."
        )
    for item in dataclasses.fields(distill):
        is_read = item.name in ("teacher", "embeddings", "teacher_dtype")
        if (value := getattr(distill, item.name)) != item.default and not is_read:
            raise InputError(
                f"distill.{item.name}={value!r}: task={config.task} learns embeddings alone. "
                "Remove it."
            )


def parse_dims(text: str, size: int) -> tuple[int, ...]:
    """Return the Matryoshka dimensions in "768,256" of `size` components, the largest first.

    Raises:
      InputError: one is no number, or not in the size of the embeddings.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    for part in parts:
        if not part.isdecimal() or not 0 < int(part) <= size:
            raise InputError(
                f"data.matryoshka_dims={text!r}: {part!r} is not from 1 to {size}, the size of the "
                f"embeddings. Write numbers such as {size},{max(size // 4, 1)}."
            )
    dims = tuple(sorted(map(int, parts), reverse=True))
    if len({*dims}) < len(dims):
        raise InputError(f"data.matryoshka_dims={text!r}: one is repeated. Name each once.")
    return dims
