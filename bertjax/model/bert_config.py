"""The configuration of a BERT encoder."""

import dataclasses
import re
from collections.abc import Sequence

from bertjax.model.dropout import threshold
from bertjax.model.initialization import ATTENTION_INITS
from bertjax.model.layers import ACTIVATIONS
from data_pipelines.errors import InputError
from data_pipelines.fields import field

DTYPES = ("float32", "bfloat16")


FEATURE_MIXES = ("concat", "sum")
LAYER_MIX_FIELDS = (
    "feature_layers",
    "feature_mix",
    "bilstm",
)  # what heads read in place of the last layer


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT encoder and how it is computed; the defaults are BERT-Base uncased.

    Raises:
      InputError: a shape that cannot be.
    """

    vocab_size: int = field(30522, "vectors of pieces, at least as many as the vocabulary has")
    num_hidden_layers: int = field(12, "blocks of attention and feed-forward")
    hidden_size: int = field(768, "width of what goes from block to block")
    num_attention_heads: int = field(12, "heads of attention, a divisor of `hidden_size`")
    intermediate_size: int | None = field(
        None, "width of the feed-forward layer; None for 4 times `hidden_size`"
    )
    max_position_embeddings: int = field(512, "vectors of positions: no example is longer")
    type_vocab_size: int = field(2, "vectors of types: of sentence A and sentence B")
    hidden_dropout_prob: float = field(
        0.1,
        "dropout of embeddings, and of what each half of a block adds, to the nearest 1/256",
    )
    attention_probs_dropout_prob: float = field(
        0.1, "dropout of the probabilities of attention, to the nearest 1/256"
    )
    hidden_act: str = field(
        "gelu", '"gelu" (with erf, as the released checkpoints), "gelu_tanh" or "relu"'
    )
    layer_norm_eps: float = field(1e-12, "what LayerNorm adds to a variance")
    initializer_range: float = field(
        0.02, "parameters begin with a normal of this deviation, cut at two of them"
    )
    initialization: str = field(
        "normal",
        'vectors of positions, queries and keys begin as all parameters do, or with "neighbours" '
        "so that each head looks a few pieces to one side, which saves small runs the time of "
        "finding that out",
    )
    dtype: str = field(
        "float32", 'type of the computation, "float32" or "bfloat16"; parameters are float32 always'
    )
    scan_layers: bool = field(
        False,
        "compiles one block and loops over it, which compiles faster; else the loop is unrolled, "
        "which runs faster",
    )
    remat: bool = field(
        False,
        "recomputes each block in the backward pass instead of keeping what it produced; on CPUs "
        "that saves memory only with `scan_layers`",
    )
    causal: bool = field(False, "a piece sees only itself and what stands before it")
    feature_layers: str = field(
        "",
        'such as "-1" or "-4..-1", 0 being the embeddings: freezes the encoder, and heads read '
        'these layers of it (section 5.3 of the paper); "" for an encoder that learns',
    )
    feature_mix: str = field(
        "concat", 'heads read `feature_layers` side by side, or with "sum" their weighted sum'
    )
    bilstm: int = field(0, "units of a BiLSTM that heads read in place of the encoder; 0 for none")
    num_labels: int = field(
        0, "outputs of a head whose task does not fix them; the data say, where there are labels"
    )

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "max_position_embeddings",
        )
        for name in (*sizes, "type_vocab_size", "feed_forward_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number of at least 1.")
        for name in ("num_labels", "bilstm"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must be at least 0.")
        if self.bilstm % 2:
            raise InputError(f"bilstm={self.bilstm} must be even: half of it is of each direction.")
        if self.feature_layers:
            parse_layers(self.feature_layers, self.num_hidden_layers)
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}: "
                f"choose a divisor of it, usually hidden_size / 64."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not 0 <= rate < 1 or (rate and not 0 < threshold(rate) < 256):
                raise InputError(
                    f"{name}={rate} must be 0 or lie from 0.002 to 0.998: of rates it takes "
                    "multiples of 1/256."
                )
        for name in ("layer_norm_eps", "initializer_range"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)} must be greater than 0.")
        for name, known in (
            ("hidden_act", ACTIVATIONS),
            ("dtype", DTYPES),
            ("feature_mix", FEATURE_MIXES),
            ("initialization", ATTENTION_INITS),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name}={getattr(self, name)!r} must be {' or '.join(known)}.")

    @property
    def feed_forward_size(self) -> int:
        """The width of the feed-forward layer: `intermediate_size`, by default 4 hidden sizes."""
        return 4 * self.hidden_size if self.intermediate_size is None else self.intermediate_size


def parse_layers(spec: str, num_hidden_layers: int) -> tuple[int, ...]:
    """The depths of "-1", or of all from the one to the other of "-4..-1"; see `hidden_state_indices`.

    Raises:
      InputError: it names no layers, or such as there are not.
    """
    match = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?", spec)
    if not match:
        raise InputError(f"feature_layers={spec!r} must read -1, or -4..-1.")
    first, last = hidden_state_indices(
        [int(match[1]), int(match[2] or match[1])], num_hidden_layers
    )
    if first > last:
        raise InputError(f"feature_layers={spec!r} ends below where it begins: turn it round.")
    return tuple(range(first, last + 1))


def hidden_state_indices(layers: Sequence[int], num_hidden_layers: int) -> tuple[int, ...]:
    """How many blocks lie below what each of some layers gives.

    Args:
      layers: 0 for the embeddings, 1 for the first block, and so on; -1 for the last one, -2 for
        the one below it, and so on, as Hugging Face numbers `hidden_states`.
    Raises:
      InputError: there is no such layer.
    """
    for layer in layers:
        if not -num_hidden_layers - 1 <= layer <= num_hidden_layers:
            raise InputError(
                f"there is no layer {layer} in a model of {num_hidden_layers} layers: choose from 0, its "
                f"embeddings, to {num_hidden_layers}, or from -1, its last, to {-num_hidden_layers - 1}."
            )
    return tuple(layer % (num_hidden_layers + 1) for layer in layers)
