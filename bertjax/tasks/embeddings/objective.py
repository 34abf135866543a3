"""Objective of training embeddings: an encoder, its pooling, and a loss over the whole batch."""

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
from bertjax.model.losses import Sums
from bertjax.tasks.embeddings.encoder_embeddings import apply_encoder, check_pooling
from bertjax.tasks.embeddings.losses import (
    LOSSES,
    RANKING_LOSS,
    REGRESSION_LOSS,
    SCORED_LOSSES,
    LossOptions,
    arrange_texts,
    embeddings_sums,
)
from bertjax.tasks.finetuning import FinetuningObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.distinct_batches import SLOTS
from data_pipelines.finetuning.examples import Target

SCORES = "text_scores"  # target: the score of the pair that a text belongs to
_READ = (*ENCODER_INPUTS, "cls_positions")


class TrainedEmbeddingsObjective(FinetuningObjective):
    """Encoder whose output `embeddings`, float32 [B, K, H], is trained.

    The loss compares all examples of the batch, wherever their texts are. So the microbatches of
    `gradient_accumulation_steps` are parts of the texts: their embeddings are computed without
    keeping activations, and again for the gradient (GradCache, Gao et al. 2021).

    Attributes:
      loss: the loss and its options.
      num_texts: texts of an example.
      pooling: see `data.pooling`.
    """

    eval_outputs = ("embeddings",)
    CACHES_GRADIENTS = True

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        super().__init__(config, batch_size_multiple)
        data, model, distill = config.data, config.model, config.distill
        loss, self.num_texts = data["loss"] or RANKING_LOSS, data["num_texts"] or 2
        if loss not in LOSSES:
            raise InputError(
                f"data.loss={loss!r}: unknown loss. Use {', '.join(LOSSES)}, or '' to choose "
                "one by the columns."
            )
        self.pooling = data["pooling"] or "mean"
        check_pooling("data.pooling", self.pooling, model)
        if not 0 < data["scale"] <= 1000:
            raise InputError(f"data.scale={data['scale']}: not in (0, 1000]. Use about 20.")
        if data["symmetric"] and loss != RANKING_LOSS:
            raise InputError(f"data.symmetric=True: data.loss={loss} is symmetric. Leave it out.")
        if self.num_texts < 2 or (loss in SCORED_LOSSES and self.num_texts != 2):
            raise InputError(
                f"data.num_texts={self.num_texts}: data.loss={loss} compares "
                f"{'2' if loss in SCORED_LOSSES else 'at least 2'} texts. Set "
                "data.texts=FIRST+SECOND."
            )
        if config.batch_size < 2 and loss != REGRESSION_LOSS:
            raise InputError(
                f"batch_size={config.batch_size}: data.loss={loss} compares the examples of a "
                "batch. Use 16 or more."
            )
        dims = parse_dims(data["matryoshka_dims"], model)
        self.loss = LossOptions(loss, float(data["scale"]), data["symmetric"], dims)
        for name in LAYER_MIX_FIELDS:
            if (value := getattr(model, name)) != getattr(BertConfig, name):
                raise InputError(
                    f"model.{name}={value!r}: embeddings are those of the last layer. Remove it."
                )
        if distill.teacher or distill.logits:
            raise InputError(
                f"distill.teacher={distill.teacher!r}, distill.logits={distill.logits!r}: "
                f"task={config.task} has no head whose logits a teacher has. Remove them."
            )
        self.batch_size = self.round_up_batch_size(
            config.batch_size * self.num_texts, config.gradient_accumulation_steps
        )

    @property
    def reads_scores(self) -> bool:
        """True if the loss reads scores of pairs."""
        return self.loss.loss in SCORED_LOSSES

    def targets(self) -> Mapping[str, Target]:
        """Return the labels of zero examples."""
        return make_targets(0, np.zeros(0) if self.reads_scores else None)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return the embeddings of the texts of each sequence, float32 [B, K, H]."""
        data, num_texts = self.config.data, batch["cls_positions"].shape[1]
        hidden = apply_encoder(self.config.model, params, batch, key)
        pooled = pooling.pool(hidden, batch["example_ids"], num_texts, self.pooling)
        return {"embeddings": pooling.l2_normalize(pooled) if data["normalize"] else pooled}

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """Return the loss over the batch, and its metrics; see `embeddings_sums`."""
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
        if count == 1:
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


def parse_dims(text: str, model: BertConfig) -> tuple[int, ...]:
    """Return the Matryoshka dimensions in "768,256", the largest first.

    Raises:
      InputError: one is no number, or not in the size of the model's vectors.
    """
    parts = [part.strip() for part in text.split(",")] if text else []
    for part in parts:
        if not part.isdecimal() or not 0 < int(part) <= model.output_size:
            raise InputError(
                f"data.matryoshka_dims={text!r}: {part!r} is not from 1 to {model.output_size}, "
                "the size of the model's vectors. Write numbers such as "
                f"{model.output_size},{max(model.output_size // 4, 1)}."
            )
    dims = tuple(sorted(map(int, parts), reverse=True))
    if len({*dims}) < len(dims):
        raise InputError(f"data.matryoshka_dims={text!r}: one is repeated. Name each once.")
    return dims
