"""Options of decoding."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jax import Array

from data_pipelines.errors import InputError
from data_pipelines.fields import field

_MAX_TOP_K = 1 << 24  # more than any vocabulary has, and an int32
_LEAST = 1e-6  # temperature and top_p, which are float32
_MAX_BEAMS = 256  # beyond it the cache of a batch of one source would not fit
_AT_LEAST = {"num_beams": 1, "num_return_sequences": 1, "max_new_tokens": 0, "min_new_tokens": 0}
_AT_LEAST |= {"no_repeat_ngram_size": 0, "top_k": 0}


@dataclasses.dataclass(frozen=True)
class DecodingOptions:
    """Search or sampling of a target text; the names are those of `transformers`.

    Raises:
      InputError: a value is out of its range, or another one makes it meaningless.
    """

    num_beams: int = field(1, "hypotheses of a beam search; 1 for greedy decoding or sampling")
    num_return_sequences: int = field(
        1, "texts that are returned, best first: hypotheses of the beam search, or samples"
    )
    max_new_tokens: int = field(
        0, "maximal tokens of a text with its [SEP]; 0 for `data.max_target_length`, or 32"
    )
    min_new_tokens: int = field(0, "minimal tokens of a text without its [SEP]")
    length_penalty: float = field(
        1.0,
        "exponent of the length that divides the log-probability of a hypothesis; 0 for none, "
        "larger values prefer longer texts",
    )
    early_stopping: bool | str = field(
        False,
        "end of a beam search: True once there are `num_beams` complete hypotheses, False once the "
        'best open one of this length would not improve them, "never" once none of any length '
        "would",
    )
    no_repeat_ngram_size: int = field(
        0, "no n-gram of so many generated tokens occurs twice; 0 for no restriction"
    )
    do_sample: bool = field(False, "samples tokens in place of a search")
    temperature: float = field(1.0, "divides the logits of a sample")
    top_k: int = field(0, "a sample is among the k most probable tokens; 0 for all")
    top_p: float = field(
        1.0, "a sample is among the fewest most probable tokens whose probabilities exceed it"
    )
    seed: int = field(
        0, "seed of samples; they depend on it and on the source, not on the batch or its order"
    )

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}={value!r}: not an integer from {least}. Raise it.")
        if self.num_beams > _MAX_BEAMS or self.num_return_sequences > _MAX_BEAMS:
            name = "num_beams" if self.num_beams > _MAX_BEAMS else "num_return_sequences"
            raise InputError(f"{name}={getattr(self, name)}: too many. Use at most {_MAX_BEAMS}.")
        if self.early_stopping not in (True, False, "never"):
            raise InputError(
                f"early_stopping={self.early_stopping!r}: unknown. Use True, False or never."
            )
        # Scores remain float32 numbers: 4,096 tokens to the power of 10 are 1e36.
        if not abs(self.length_penalty) <= 10:
            raise InputError(f"length_penalty={self.length_penalty}: not in [-10, 10]. Use 0 to 2.")
        if not _LEAST <= self.temperature <= 1 / _LEAST:
            raise InputError(
                f"temperature={self.temperature}: not in [{_LEAST}, {1 / _LEAST:g}]. Use 0.1 to 2."
            )
        if not _LEAST <= self.top_p <= 1:
            raise InputError(
                f"top_p={self.top_p}: not in [{_LEAST}, 1]. Use 0.9, or 1 for all tokens."
            )
        if self.top_k > _MAX_TOP_K:
            raise InputError(f"top_k={self.top_k}: above {_MAX_TOP_K}. Use 0 for all tokens.")
        if not 0 <= self.seed < 1 << 32:
            raise InputError(f"seed={self.seed}: not in [0, 2^32). Use a small integer.")
        if self.max_new_tokens and self.min_new_tokens >= self.max_new_tokens:
            raise InputError(
                f"min_new_tokens={self.min_new_tokens}: leaves no space for [SEP] in "
                f"max_new_tokens={self.max_new_tokens}. Reduce it."
            )
        self._check_meaningful()

    def _check_meaningful(self) -> None:
        """Raise InputError if a field is set that the chosen method does not read."""
        defaults = {item.name: item.default for item in dataclasses.fields(self)}
        groups = (
            (not self.do_sample, "do_sample=True", ("temperature", "top_k", "top_p", "seed")),
            (self.num_beams == 1, "num_beams", ("length_penalty", "early_stopping")),
        )
        for is_unread, needed, names in groups:
            for name in names:
                if is_unread and getattr(self, name) != defaults[name]:
                    raise InputError(
                        f"{name}={getattr(self, name)!r}: has no effect without {needed}. Set "
                        f"{needed}, or remove it."
                    )
        if self.do_sample and self.num_beams > 1:
            raise InputError(
                f"num_beams={self.num_beams}: samples have no beams. Set do_sample=False, or "
                "num_return_sequences for several samples."
            )
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise InputError(
                f"num_return_sequences={self.num_return_sequences}: more than "
                f"num_beams={self.num_beams}. Raise num_beams, or set do_sample=True."
            )


SOURCE_DTYPES: dict[str, type[np.number]] = {
    "limits": np.int32,
    "min_new_tokens": np.int32,
    "length_penalty": np.float32,
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
}


class SourceOptions(NamedTuple):
    """Arrays [B] of `SOURCE_DTYPES`: options that a program takes for each source.

    Attributes:
      limits: tokens after which a target ends without [SEP]; at most `max_new_tokens`.
    """

    limits: Array
    min_new_tokens: Array
    length_penalty: Array
    temperature: Array
    top_k: Array
    top_p: Array


class Decoding(NamedTuple):
    """The constants of a decoding program.

    Attributes:
      options: search or sampling; `max_new_tokens` is set. Of fields in `SourceOptions` it has
        upper bounds, and whether they have an effect; of `length_penalty` whether it is positive.
      num_tokens: tokens of the vocabulary; logits may have further ones for padding.
      sep_id: token that ends a target.
      mask_id: token that stands for the next one with `decoder=masked_prefix`.
    """

    options: DecodingOptions
    num_tokens: int
    sep_id: int
    mask_id: int = 0
