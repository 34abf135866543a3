"""The heads of BERT: one record describes a head for every part of the package.

Conversion, model cards, preflight and reports read these records. `register_head` makes another
head known to all of them.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from bertjax.model import distillation_losses, losses
from bertjax.model.bert_config import BertConfig
from bertjax.model.cpu_layout import matmul_transposed
from bertjax.model.distillation_losses import SoftLoss, slot_soft_loss
from bertjax.model.encoder import Dense, LayerNorm
from bertjax.model.initialization import Initializer, truncated_normal
from bertjax.model.layers import ACTIVATIONS, embedding_lookup, sum_leading_axes
from bertjax.model.losses import Sums
from data_pipelines.errors import InputError

Batch = Mapping[str, Array]
SAMPLED_IDS = "sampled_ids"  # of a batch: tokens of a sampled softmax


@jax.custom_vjp
def vocab_logits(x: Array, word: Array, bias: Array) -> Array:
    """Return x [N, H] times the word embeddings [V, H] plus a bias [V], float32 [N, V].

    Logits keep the precision of their sums. The backward pass multiplies in the dtype of the
    inputs, where the derived one would multiply in float32.
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


def sampled_logits(x: Array, word: Array, bias: Array, targets: Array, drawn: Array) -> Array:
    """Return the logits of the target and of drawn tokens, float32 [B, M, 1 + S].

    The sum of their exponentials estimates that of the whole vocabulary without bias (Bengio and
    Senecal 2003). Tokens are drawn uniformly, because their ids are not in the order of their
    frequencies. A drawn token that is the target has the logit -inf.

    Args:
      x: transformed vectors [B, M, H].
      word: word embeddings [V, H].
      bias: [V].
      targets: int32 [B, M].
      drawn: int32 [S], drawn uniformly with replacement.
    """
    word, dtype = word.astype(x.dtype), jnp.float32
    # Their gradients are summed in float32, as that of the embeddings.
    of_targets, of_drawn = embedding_lookup(word, targets), embedding_lookup(word, drawn)
    target = jnp.einsum("bmh,bmh->bm", x, of_targets, preferred_element_type=dtype)
    others = jnp.einsum("bmh,sh->bms", x, of_drawn, preferred_element_type=dtype) + bias[drawn]
    others += math.log(len(word) / len(drawn))
    others = jnp.where(drawn == targets[..., None], -jnp.inf, others)
    return jnp.concatenate([(target + bias[targets])[..., None], others], axis=-1)


class Pooler(nn.Module):
    """tanh(Dense(x)) of [CLS] vectors [..., H]."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return pooled vectors [..., H]; those of a pair, `x`, have 2 H."""
        return jnp.tanh(Dense(self.config, self.config.hidden_size, name="transform")(x))


class MaskedLMHead(nn.Module):
    """Logits of the vocabulary at the masked positions."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:
        """Return float32 [B, M, V] from vectors [B, M, H] and word embeddings [V, H]."""
        config, slots = self.config, x.shape[:-1]
        # As one matrix from the start. A reshape after the vectors' gradient would move before it:
        # the TPU compiler would copy the gradient of all logits.
        x = x.reshape(-1, x.shape[-1])
        x = ACTIVATIONS[config.hidden_act](Dense(config, config.hidden_size, name="transform")(x))
        x = LayerNorm(config, name="norm")(x)
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        if SAMPLED_IDS in batch:
            x = x.reshape(*slots, -1)
            return sampled_logits(x, word, bias, batch["masked_lm_ids"], batch[SAMPLED_IDS])
        return vocab_logits(x, word.astype(x.dtype), bias).reshape(*slots, -1)


class LinearHead(Dense):
    """A linear layer of each vector.

    Its kernel is drawn from a whole normal, as in `transformers`: on SQuAD that gave a higher F1
    than the truncated one of google-research/bert for each of five seeds (docs/results.md).
    """

    def default_init(self) -> Initializer:
        """Return a normal of `initializer_range`."""
        return jax.nn.initializers.normal(self.config.initializer_range)

    def __call__(self, x: Array, batch: Batch, word: Array) -> Array:  # type: ignore[override]
        """Return float32 [..., features] from vectors [..., H]."""
        return super().__call__(x).astype(jnp.float32)


def next_sentence_head(config: BertConfig, name: str) -> LinearHead:
    """Return two logits per pair: 0, the second sentence follows, and 1, it is random."""
    return LinearHead(config, 2, truncated_normal(config.initializer_range), name=name)


def question_answering_head(config: BertConfig, name: str) -> LinearHead:
    """Return two logits per token: start and end of an answer (section 4.2).

    They are computed in float32. In bfloat16, answers and thousands of null scores would tie.
    """
    return LinearHead(dataclasses.replace(config, dtype="float32"), 2, name=name)


def pooled_classification_head(config: BertConfig, name: str) -> LinearHead:
    """Return a logit per pooled vector for each of the head's labels, one number for regression.

    They are computed in float32. In bfloat16 many documents that are ranked would tie.
    """
    return classification_head(dataclasses.replace(config, dtype="float32"), name)


def multiple_choice_head(config: BertConfig, name: str) -> LinearHead:
    """Return a logit per pooled vector of a choice, in float32 for the same reason."""
    return LinearHead(dataclasses.replace(config, dtype="float32"), 1, name=name)


def classification_head(config: BertConfig, name: str) -> LinearHead:
    """Return a logit per vector for each of the head's labels."""
    # A model with num_labels=0 does not have this head; only its parameter names are needed.
    return LinearHead(config, max(config.num_labels_of(name), 1), name=name)


@dataclasses.dataclass(frozen=True)
class Head:
    """A head: its module, its loss, and its names in formats, reports and model cards.

    Attributes:
      name: name of its parameters; its output is `NAME_logits`.
      module: function of a BertConfig and a name to a Flax module. The module is called with
        hidden states, the batch and the word embeddings [V, H]. The hidden states are those of all
        tokens [B, T, H] or of `positions_key` [B, N, H], or pooled [B, K, H].
      sums: function of logits and batch to `NAME_loss` and its metrics as (sum, weight).
      pooled: True for pooled hidden states of `cls_positions`; those of the last tokens if an
        encoder, alone or in a pair, reads from left to right.
      module_names: for each of its modules the path here, in Hugging Face and in TF1, and the kind,
        as in `bertjax.formats.parameter_names`.
      architecture: class of `transformers`; a model with several heads has that of the last head.
      pipeline_tag: Hugging Face's task on a model card.
      auto_class: class that a model card shows.
      display_name: name in the cost table and in messages.
      metric_titles: metric -> its title and the floor of its axis; see `bertjax.html.axes`.
      soft_loss: loss of a student's logits against a teacher's; None if it cannot be distilled.
      has_softmax: function of a batch, or of its shapes, to whether `soft_loss` compares a softmax
        over the last axis, of which the largest classes may be stored alone.
      positions_key: batch array of the positions [B, N] that it reads, such as X_positions, whose
        weights are X_weights; "" for all, or if `pooled`.
      input_dropout: True if dropout precedes it, as in fine-tuning.
      has_label_names: True if its outputs are named labels, `BertConfig.num_labels_of` their
        number.
    """

    name: str
    module: Callable[..., nn.Module]
    sums: Callable[[Array, Batch], Sums]
    pooled: bool
    module_names: tuple[tuple[str, str, str, str], ...]
    architecture: str
    pipeline_tag: str
    auto_class: str
    display_name: str
    metric_titles: Mapping[str, tuple[str, float | None]]
    soft_loss: SoftLoss | None = None
    has_softmax: Callable[[Mapping[str, Any]], bool] = lambda batch: False
    positions_key: str = ""
    input_dropout: bool = False
    has_label_names: bool = False


HEADS: dict[str, Head] = {}
# Modules that are not heads.
PROJECTION = "projection"  # linear layer after the pooling of embeddings
BACKBONE_MODULES = ("encoder", "decoder", "pooler", "features", "bilstm", PROJECTION)
TRAINING_MODULES = ("distill",)  # parameters that only training uses; no model has them


def register_head(head: Head) -> Head:
    """Add a head to `HEADS` and return it.

    Raises:
      InputError: another head or module has this name.
    """
    if HEADS.get(head.name, head) != head or head.name in BACKBONE_MODULES + TRAINING_MODULES:
        raise InputError(f"head {head.name!r}: the name is taken. Choose another name.")
    HEADS[head.name] = head
    return head


def _task_head(
    name: str,
    module: Callable[..., nn.Module],
    sums: Callable[[Array, Batch], Sums],
    accuracy_title: str = "Accuracy",
    **fields: Any,
) -> Head:
    """Return the head of a fine-tuning task, with the usual names unless `fields` has others."""
    words = name.split("_")
    head_class = "".join(map(str.capitalize, words))
    names = {
        "module_names": ((name, "classifier", "", "output"),),
        "architecture": f"BertFor{head_class}",
        "pipeline_tag": "-".join(words),
        "auto_class": f"AutoModelFor{head_class}",
        "display_name": f"{' '.join(words)} head",
        "metric_titles": {f"{name}_loss": ("Loss", None), "accuracy": (accuracy_title, None)},
    }
    return Head(name, module, sums, **names | fields)


_MLM = "cls.predictions.transform"
for _head in (
    Head(
        name="mlm",
        module=MaskedLMHead,
        sums=losses.masked_lm_sums,
        pooled=False,
        module_names=(
            ("mlm/transform", f"{_MLM}.dense", "cls/predictions/transform/dense", "dense"),
            ("mlm/norm", f"{_MLM}.LayerNorm", "cls/predictions/transform/LayerNorm", "norm"),
            ("mlm", "cls.predictions", "cls/predictions", "bias"),
        ),
        architecture="BertForMaskedLM",
        pipeline_tag="fill-mask",
        auto_class="AutoModelForMaskedLM",
        display_name="MLM head",
        metric_titles={
            "mlm_loss": ("MLM loss", None),
            "mlm_accuracy": ("MLM accuracy", 0.0),
            "mlm_perplexity": ("MLM perplexity", None),
        },
        soft_loss=slot_soft_loss("masked_lm_weights"),
        has_softmax=lambda batch: True,
        positions_key="masked_lm_positions",
    ),
    Head(
        name="nsp",
        module=next_sentence_head,
        sums=losses.next_sentence_sums,
        pooled=True,
        module_names=(("nsp", "cls.seq_relationship", "cls/seq_relationship", "output"),),
        architecture="BertForPreTraining",
        pipeline_tag="fill-mask",
        auto_class="AutoModelForMaskedLM",
        display_name="NSP head",
        metric_titles={"nsp_loss": ("NSP loss", None), "nsp_accuracy": ("NSP accuracy", None)},
        soft_loss=slot_soft_loss("next_sentence_weights"),
    ),
    _task_head(
        "question_answering",
        question_answering_head,
        losses.question_answering_sums,
        pooled=False,
        soft_loss=distillation_losses.question_answering_soft_loss,
        module_names=(("question_answering", "qa_outputs", "cls/squad", "output"),),
        metric_titles={},
    ),
    _task_head(
        "sequence_classification",
        pooled_classification_head,
        losses.sequence_classification_sums,
        pooled=True,
        soft_loss=distillation_losses.classification_soft_loss,
        has_softmax=distillation_losses.is_single_label,
        pipeline_tag="text-classification",
        input_dropout=True,
        has_label_names=True,
    ),
    _task_head(
        "multiple_choice",
        multiple_choice_head,
        losses.multiple_choice_sums,
        pooled=True,
        soft_loss=distillation_losses.multiple_choice_soft_loss,
        input_dropout=True,
    ),
    _task_head(
        "token_classification",
        classification_head,
        losses.token_classification_sums,
        pooled=False,
        soft_loss=distillation_losses.token_classification_soft_loss,
        has_softmax=lambda batch: True,
        accuracy_title="Accuracy of words",
        input_dropout=True,
        has_label_names=True,
    ),
):
    register_head(_head)


def head_sums(outputs: Mapping[str, Array], batch: Batch) -> Sums:
    """Return losses and metrics of every head with logits in `outputs`, summed over the batch."""
    sums: Sums = {}
    for name, head in HEADS.items():
        if f"{name}_logits" in outputs:
            sums |= head.sums(outputs[f"{name}_logits"], batch)
    return sums


def check_modules_known(modules: Iterable[str], source: object) -> None:
    """Check that each module of a model is a backbone module or a registered head.

    Raises:
      InputError: a module is unknown.
    """
    for module in modules:
        if module not in (*BACKBONE_MODULES, *HEADS):
            raise InputError(
                f"{source}: the head {module!r} is unknown and would be lost. Add --task "
                "MODULE:CLASS of its task, or import its module."
            )
