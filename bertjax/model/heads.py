"""What a head is, all in one place, and the model that heads make with the encoder.

Conversion, model cards, preflight and reports read here what they need to know of a head. One of
one's own is made known by `register_head`, with nothing else changed.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model import losses
from bertjax.model.bert_config import BertConfig
from bertjax.model.cpu_layout import matmul_transposed
from bertjax.model.encoder import Dense, LayerNorm
from bertjax.model.layers import ACTIVATIONS, sum_leading_axes
from bertjax.model.losses import Sums
from data_pipelines.errors import InputError

Batch = Mapping[str, Array]


@jax.custom_vjp
def vocab_logits(x: Array, word: Array, bias: Array) -> Array:
    """The products of vectors [N, H] and word embeddings [V, H], and a bias [V]: float32 [N, V].

    Scores keep the precision that they are summed in; the backward pass then multiplies in the
    dtype of the inputs, where differentiating this line would multiply in float32.
    """
    return matmul_transposed(x, word, jnp.float32) + bias


def _vocab_logits_forward(x: Array, word: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    return vocab_logits(x, word, bias), (x, word)


def _vocab_logits_backward(
    inputs: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    x, word = inputs
    gradient = gradient.astype(x.dtype)
    return gradient @ word, jnp.einsum("nv,nh->vh", gradient, x), sum_leading_axes(gradient)


vocab_logits.defvjp(_vocab_logits_forward, _vocab_logits_backward)


class Pooler(nn.Module):
    """tanh(Dense(x)) of [CLS] vectors [..., H]."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return jnp.tanh(Dense(self.config, self.config.hidden_size, name="transform")(x))


class MLM(nn.Module):
    """Scores of every piece of the vocabulary for the masked positions."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:
        """float32 [B, M, V] from their vectors [B, M, H] and the word embeddings [V, H]."""
        config = self.config
        x = ACTIVATIONS[config.hidden_act](Dense(config, config.hidden_size, name="transform")(x))
        x = LayerNorm(config, name="norm")(x)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        scores = vocab_logits(x.reshape(-1, x.shape[-1]), word.astype(x.dtype), bias)
        return scores.reshape(*x.shape[:-1], -1)


class LinearHead(Dense):
    """Scores for each vector by itself."""

    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:  # type: ignore[override]
        """float32 [..., features] from vectors [..., H]."""
        return super().__call__(x).astype(jnp.float32)


def next_sentence_head(config: BertConfig, name: str) -> LinearHead:
    """Of pooled vectors: whether the second sentence follows (0) or is random (1)."""
    return LinearHead(config, 2, name=name)


def span(config: BertConfig, name: str) -> LinearHead:
    """Of all pieces: a score to begin, and one to end, an answer (section 4.2).

    In float32: rounded to bfloat16, answers would tie, and so would thousands of null odds.
    """
    return LinearHead(dataclasses.replace(config, dtype="float32"), 2, name=name)


def classifier(config: BertConfig, name: str) -> LinearHead:
    """A score for each of `num_labels` classes, labels or tags, or one number."""
    # Without one the model has not this head, and only the names of its arrays are asked for.
    return LinearHead(config, max(config.num_labels, 1), name=name)


def choice(config: BertConfig, name: str) -> LinearHead:
    """Of pooled vectors: how well each answer goes with its question."""
    return LinearHead(config, 1, name=name)


@dataclasses.dataclass(frozen=True)
class Head:
    """A head: how it is computed, learned, written down and called.

    Attributes:
      name: of its parameters; what it gives is called `NAME_logits`.
      module: from the model's configuration a module that is called with the vectors of all pieces
        [B, T, H] or those at `positions_key`, or if `pooled` with the pooled vectors of the batch's
        `cls_positions` [B, K, H] (of a causal encoder of the examples' last pieces), the batch, and
        the word embeddings [V, H].
      sums: (logits, batch) -> its loss, `NAME_loss`, and what else it reports.
      names: for each of its modules the path here, at Hugging Face and in TF1, and the kind, as in
        `bertjax.formats.parameter_names`.
      architecture: the class of `transformers` that has it; of several heads the last one's counts.
      pipeline, auto_class: what a model card says of its use.
      part: what it is called in a table of costs.
      titles: metric -> its title, and a value that its axis always shows.
      positions_key: the batch's array of the positions [B, N] whose vectors it takes; "" for all pieces, or
        if `pooled`.
      dropped: whether dropout comes before it, as before those that are fine-tuned.
      labelled: whether its outputs are `num_labels` labels that have names.
    """

    name: str
    module: Callable[..., nn.Module]
    sums: Callable[[Array, Batch], Sums]
    pooled: bool
    names: tuple[tuple[str, str, str, str], ...]
    architecture: str
    pipeline_tag: str
    auto_class: str
    part: str
    titles: Mapping[str, tuple[str, float | None]]
    positions_key: str = ""
    input_dropout: bool = False
    has_labels: bool = False


HEADS: dict[str, Head] = {}
BACKBONE_MODULES = (
    "encoder",
    "pooler",
    "features",
    "bilstm",
)  # the parts of a model that are no heads


def register_head(head: Head) -> Head:
    """Makes a head known by its name.

    Raises:
      InputError: another one has that name.
    """
    if HEADS.get(head.name, head) != head or head.name in BACKBONE_MODULES:
        raise InputError(f"there is a head {head.name} already: choose another name.")
    HEADS[head.name] = head
    return head


register_head(
    Head(
        name="mlm",
        module=MLM,
        sums=losses.masked_lm_sums,
        pooled=False,
        names=(
            (
                "mlm/transform",
                "cls.predictions.transform.dense",
                "cls/predictions/transform/dense",
                "dense",
            ),
            (
                "mlm/norm",
                "cls.predictions.transform.LayerNorm",
                "cls/predictions/transform/LayerNorm",
                "norm",
            ),
            ("mlm", "cls.predictions", "cls/predictions", "bias"),
        ),
        architecture="BertForMaskedLM",
        pipeline_tag="fill-mask",
        auto_class="AutoModelForMaskedLM",
        part="MLM head",
        titles={
            "mlm_loss": ("Masked-piece loss", None),
            "mlm_accuracy": ("Masked-piece accuracy", 0.0),
            "mlm_perplexity": ("Masked-piece perplexity", None),
        },
        positions_key="masked_lm_positions",
    )
)
register_head(
    Head(
        name="nsp",
        module=next_sentence_head,
        sums=losses.next_sentence_sums,
        pooled=True,
        names=(("nsp", "cls.seq_relationship", "cls/seq_relationship", "output"),),
        architecture="BertForPreTraining",
        pipeline_tag="fill-mask",
        auto_class="AutoModelForMaskedLM",
        part="NSP head",
        titles={
            "nsp_loss": ("Next-sentence loss", None),
            "nsp_accuracy": ("Next-sentence accuracy", None),
        },
    )
)
register_head(
    Head(
        name="question_answering",
        module=span,
        sums=losses.question_answering_sums,
        pooled=False,
        names=(("question_answering", "qa_outputs", "cls/squad", "output"),),
        architecture="BertForQuestionAnswering",
        pipeline_tag="question-answering",
        auto_class="AutoModelForQuestionAnswering",
        part="span head",
        titles={},
    )
)
register_head(
    Head(
        name="sequence_classification",
        module=classifier,
        sums=losses.labels,
        pooled=True,
        names=(("sequence_classification", "classifier", "", "output"),),
        architecture="BertForSequenceClassification",
        pipeline_tag="text-classification",
        auto_class="AutoModelForSequenceClassification",
        part="classifier",
        titles={"sequence_classification_loss": ("Loss", None), "accuracy": ("Accuracy", None)},
        input_dropout=True,
        has_labels=True,
    )
)
register_head(
    Head(
        name="multiple_choice",
        module=choice,
        sums=losses.choices,
        pooled=True,
        names=(("multiple_choice", "classifier", "", "output"),),
        architecture="BertForMultipleChoice",
        pipeline_tag="multiple-choice",
        auto_class="AutoModelForMultipleChoice",
        part="choice head",
        titles={"multiple_choice_loss": ("Loss", None), "accuracy": ("Accuracy", None)},
        input_dropout=True,
    )
)
register_head(
    Head(
        name="token_classification",
        module=classifier,
        sums=losses.tags,
        pooled=False,
        names=(("token_classification", "classifier", "", "output"),),
        architecture="BertForTokenClassification",
        pipeline_tag="token-classification",
        auto_class="AutoModelForTokenClassification",
        part="token_classification",
        titles={
            "token_classification_loss": ("Loss", None),
            "accuracy": ("Accuracy of words", None),
        },
        input_dropout=True,
        has_labels=True,
    )
)


def head_sums(outputs: Mapping[str, Array], batch: Batch) -> Sums:
    """What heads minimise and report of the logits that there are, summed over the batch."""
    found: Sums = {}
    for name, head in HEADS.items():
        if f"{name}_logits" in outputs:
            found |= head.sums(outputs[f"{name}_logits"], batch)
    return found


def check_modules_known(parts: Iterable[str], where: object) -> None:
    """Raises InputError for a part that is neither the encoder, the pooler nor a head."""
    for part in parts:
        if part not in (*BACKBONE_MODULES, *HEADS):
            raise InputError(
                f"{where} has a head {part!r} that is not known, and it would be lost: import the "
                "module that registers it."
            )
