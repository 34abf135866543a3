"""The configuration of a BERT encoder."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import cast

from bertjax.model.attention.mask import MaskKind
from bertjax.model.dropout import byte_threshold
from bertjax.model.initialization import ATTENTION_INITS
from bertjax.model.layers import ACTIVATIONS
from data_pipelines.errors import InputError
from data_pipelines.fields import field

DTYPES = ("float32", "bfloat16")
FEATURE_MIXES = ("concat", "sum")
ENCODERS = ("transformer", "lstm")
DIRECTIONS = ("bidirectional", "left_to_right", "right_to_left", "pair")
DECODERS = ("", "prefix", "masked_prefix", "cross_attention")
# Beyond every published encoder; larger ones would be allocated before anything else fails.
_MAXIMA = {
    "vocab_size": 10_000_000,
    "num_hidden_layers": 1_000,
    "hidden_size": 1 << 16,
    "num_attention_heads": 1 << 12,
    "intermediate_size": 1 << 18,
    "num_labels": 1_000_000,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 16,
    "bilstm": 1 << 16,
}
# Fields by which heads read something else than the last layer.
LAYER_MIX_FIELDS = ("feature_layers", "feature_mix", "bilstm")
_TRANSFORMER_FIELDS = ("attention_init", "scan_layers", "remat")
UNPUBLISHED_FIELDS = ("encoder", "direction", *LAYER_MIX_FIELDS)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder and the way it is computed. The defaults are BERT-Base uncased.

    Raises:
      InputError: a field is out of range.
    """

    vocab_size: int = field(30522, "rows of the word embeddings, at least the vocabulary's size")
    num_hidden_layers: int = field(12, "transformer blocks")
    hidden_size: int = field(768, "size of the hidden states")
    num_attention_heads: int = field(12, "attention heads, a divisor of `hidden_size`")
    intermediate_size: int | None = field(
        None, "size of the feed-forward layer; None for 4 times `hidden_size`"
    )
    max_position_embeddings: int = field(512, "position embeddings, the longest example in tokens")
    type_vocab_size: int = field(2, "token type embeddings: sentence A and sentence B")
    hidden_dropout_prob: float = field(
        0.1, "dropout of the embeddings and of both updates of a block, to the nearest 1/256"
    )
    attention_probs_dropout_prob: float = field(
        0.1, "dropout of the attention probabilities, to the nearest 1/256"
    )
    hidden_act: str = field(
        "gelu",
        'activation: "gelu" (with erf, as in the released checkpoints), "gelu_tanh" or "relu"',
    )
    layer_norm_eps: float = field(1e-12, "LayerNorm epsilon, added to the variance")
    initializer_range: float = field(
        0.02,
        "standard deviation of the initial parameters: a normal, truncated at two deviations "
        "except in the linear heads of fine-tuning",
    )
    attention_init: str = field(
        "normal",
        'initial position embeddings, queries and keys: "normal" as all parameters, or "local", by '
        "which each head attends to tokens a few positions away (faster learning in small runs)",
    )
    dtype: str = field(
        "float32",
        'dtype of the computation, "float32" or "bfloat16"; parameters are always float32',
    )
    scan_layers: bool = field(
        False, "compiles one block and loops over it: compiles faster and runs slower"
    )
    remat: bool = field(
        False,
        "rematerialization: recomputes blocks in the backward pass to save memory; on CPUs it "
        "saves memory only with `scan_layers`",
    )
    encoder: str = field(
        "transformer",
        'kind of the layers: "transformer", or "lstm" with `intermediate_size` cells, projected to '
        "`hidden_size`, as in ELMo; it reads in one direction, or is a pair, and has no positions, "
        "token types or attention",
    )
    direction: str = field(
        "bidirectional",
        'tokens that a token sees: "bidirectional" for all, "left_to_right" for itself and '
        'earlier ones, "right_to_left" for itself and later ones; "pair" for two encoders, one in '
        "each of these directions, whose hidden states are concatenated, as in ELMo",
    )
    decoder: str = field(
        "",
        'decoder of a target text: "prefix" gives tokens of type 0 (the source) bidirectional and '
        'those of type 1 (the target) causal attention; "masked_prefix" has the same attention and '
        "predicts a target token at a [MASK] in its place, not at the token before it; "
        '"cross_attention" adds blocks that read the target so far and the hidden states of the '
        'source; "" for none',
    )
    feature_layers: str = field(
        "",
        'layers that heads read, such as "-1" or "-4..-1", 0 for the embeddings (section 5.3 of '
        'the paper); "" for the last one',
    )
    freeze_features: bool = field(
        True, "keeps the encoder below `feature_layers` as it is; without them it is fine-tuned"
    )
    feature_mix: str = field(
        "concat", 'combination of `feature_layers`: "concat", or "sum" for a weighted sum'
    )
    bilstm: int = field(
        0, "units of a BiLSTM between encoder and heads, an even number; 0 for none"
    )
    sampled_softmax: int = field(
        0,
        "tokens that a train step of a CLM draws for its softmax, as in ELMo; 0 for the whole "
        "vocabulary, which evaluations always take",
    )
    num_labels: int = field(
        0, "outputs of a classification head; 0 takes the number of labels from the data"
    )
    label_counts: str = field(
        "",
        'for heads with a label set each their numbers of labels, such as "intent=21,slot=120"; '
        '"" takes them from the data, or all heads have the same labels',
    )

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "max_position_embeddings",
            "type_vocab_size",
            "intermediate_size",
        )
        for name in sizes:
            value = getattr(self, name)
            if value is None and name == "intermediate_size":  # the default
                continue
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r}: not a positive integer. Use at least 1.")
        for name, largest in _MAXIMA.items():
            if (getattr(self, name) or 0) > largest:
                raise InputError(f"{name}={getattr(self, name)}: too large. Use at most {largest}.")
        if self.sampled_softmax >= self.vocab_size:
            raise InputError(
                f"sampled_softmax={self.sampled_softmax}: not below vocab_size={self.vocab_size}. "
                "Use 0 for the whole vocabulary."
            )
        for name in ("num_labels", "bilstm", "sampled_softmax"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: negative. Use at least 0.")
        if self.bilstm % 2:
            raise InputError(
                f"bilstm={self.bilstm}: odd, while each direction has half of the units. "
                "Use an even number."
            )
        if self.label_counts:
            parse_label_counts(self.label_counts, self.num_labels)
        if self.feature_layers:
            parse_layers(self.feature_layers, self.num_hidden_layers)
        elif self.feature_mix != BertConfig.feature_mix:
            raise InputError(
                f"feature_mix={self.feature_mix!r}: there are no layers to combine. Set "
                "feature_layers, or leave it out."
            )
        if self.encoder == "transformer" and self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"num_attention_heads={self.num_attention_heads}: does not divide "
                f"hidden_size={self.hidden_size}. Use a divisor, usually hidden_size / 64."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not 0 <= rate < 1 or (rate and not 0 < byte_threshold(rate) < 256):
                raise InputError(
                    f"{name}={rate}: out of range, in multiples of 1/256. Use 0 or a rate from "
                    "0.002 to 0.998."
                )
        for name in ("layer_norm_eps", "initializer_range"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)}: not positive. Use more than 0.")
        for name, choices in (
            ("hidden_act", ACTIVATIONS),
            ("dtype", DTYPES),
            ("feature_mix", FEATURE_MIXES),
            ("encoder", ENCODERS),
            ("direction", DIRECTIONS),
            ("decoder", DECODERS),
            ("attention_init", ATTENTION_INITS),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name}={getattr(self, name)!r}: unknown. Use "
                    f"{' or '.join(choice or repr(choice) for choice in choices)}."
                )
        if self.decoder and self.direction != "bidirectional":
            raise InputError(
                f"decoder={self.decoder!r}: the source is bidirectional, and direction="
                f"{self.direction}. Remove one of them."
            )
        if self.encoder == "lstm":
            if self.direction == "bidirectional":
                raise InputError(
                    "direction=bidirectional: an LSTM reads in one direction. Use left_to_right, "
                    "right_to_left, or pair for two of them."
                )
            for name in _TRANSFORMER_FIELDS:
                if (value := getattr(self, name)) != getattr(type(self), name):
                    raise InputError(f"{name}={value!r}: an LSTM does not read it. Remove it.")
        if self.has_cross_attention:
            for name in ("feature_layers", "bilstm"):
                if value := getattr(self, name):
                    raise InputError(
                        f"{name}={value!r}: decoder='cross_attention' reads the encoder's last "
                        "layer. Remove one of them."
                    )

    def num_labels_of(self, head: str) -> int:
        """Return the number of labels of a head, 0 if it is not known."""
        if not self.label_counts:
            return self.num_labels
        return parse_label_counts(self.label_counts, self.num_labels).get(head, 0)

    def split_labels(self, labels: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return head -> its labels, in the order of `label_counts`; empty without that field.

        Args:
          labels: labels of all heads, one set after the other.
        """
        if not self.label_counts:
            return {}
        counts = parse_label_counts(self.label_counts, self.num_labels)
        ends = itertools.accumulate(counts.values())
        return {
            head: tuple(labels[end - count : end])
            for (head, count), end in zip(counts.items(), ends, strict=True)
        }

    def labels_of(self, head: str, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the labels of a head; without `label_counts` heads share all labels.

        Args:
          head: name of the head.
          labels: see `split_labels`.
        """
        return self.split_labels(labels).get(head, ()) if self.label_counts else tuple(labels)

    @property
    def has_cross_attention(self) -> bool:
        """True for a decoder with its own parameters, which attends to the encoder's vectors."""
        return self.decoder == "cross_attention"

    @property
    def continues_text(self) -> bool:
        """True if it generates the tokens after a text, from cached keys and values."""
        return self.direction == "left_to_right" and self.encoder == "transformer"

    @property
    def output_size(self) -> int:
        """Size of the encoder's vectors: `hidden_size`, or twice as much for a pair."""
        return 2 * self.hidden_size if self.direction == "pair" else self.hidden_size

    @property
    def predicts_masks(self) -> bool:
        """True if a target token is predicted at a [MASK] in its place, as in UniLM."""
        return self.decoder == "masked_prefix"

    @property
    def mask_kind(self) -> MaskKind:
        """Mask of the encoder's attention, as in `bertjax.model.attention.dispatch.attention`."""
        if self.decoder in ("prefix", "masked_prefix"):
            return "prefix"
        return cast(MaskKind, self.direction)

    @property
    def unpublished_field(self) -> str:
        """Name of a field whose value only bertjax's format supports; "" without one."""
        defaults = {name: getattr(type(self), name) for name in UNPUBLISHED_FIELDS}
        if self.direction == "left_to_right":  # `is_decoder` in other formats
            del defaults["direction"]
        return next((name for name, value in defaults.items() if getattr(self, name) != value), "")

    @property
    def feed_forward_size(self) -> int:
        """Size of the feed-forward layer: `intermediate_size`, by default 4 times `hidden_size`."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


def parse_label_counts(spec: str, total: int) -> dict[str, int]:
    """Return head -> number of its labels, in the order of the text, such as "intent=21,slot=120".

    Raises:
      InputError: the text is malformed, names a head twice, or has another sum than `total`.
    """
    items = [item.partition("=") for item in spec.split(",")]
    counts = {name: int(count) for name, _, count in items if re.fullmatch("0*[1-9][0-9]*", count)}
    if len(counts) < len(items) or "" in counts:
        raise InputError(
            f"label_counts={spec!r}: not a positive number for each head. Write HEAD=NUMBER,..."
        )
    if sum(counts.values()) != total:
        raise InputError(
            f"label_counts={spec!r}: {sum(counts.values())} labels, and num_labels={total}. "
            "Set num_labels to the sum."
        )
    return counts


def parse_layers(spec: str, num_hidden_layers: int) -> tuple[int, ...]:
    """Return the indices of the layers that "-1" or a range such as "-4..-1" names.

    Raises:
      InputError: the text is malformed, or the model does not have such a layer.
    """
    match = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?", spec)
    if not match:
        raise InputError(f"feature_layers={spec!r}: not a layer or a range. Use -1 or -4..-1.")
    ends = int(match[1]), int(match[2] or match[1])
    try:
        first, last = hidden_state_indices(ends, num_hidden_layers)
    except InputError as error:
        raise InputError(f"feature_layers={spec!r}: {error}") from None
    if first > last:
        raise InputError(f"feature_layers={spec!r}: ends below its first layer. Swap the ends.")
    return tuple(range(first, last + 1))


def hidden_state_indices(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """Return the non-negative indices of layers, as in Hugging Face's `hidden_states`.

    Args:
      layers: 0 for the embeddings, 1 for the first block; -1 for the last block, -2 for the one
        below it.
      num_hidden_layers: blocks of the model.

    Raises:
      InputError: the model does not have such a layer.
    """
    for layer in layers:
        if not -num_hidden_layers - 1 <= layer <= num_hidden_layers:
            raise InputError(
                f"layer {layer}: not in a model of {num_hidden_layers} layers. Use 0 (embeddings) "
                f"to {num_hidden_layers}, or -1 (last) to {-num_hidden_layers - 1}."
            )
    return tuple(layer % (num_hidden_layers + 1) for layer in layers)
