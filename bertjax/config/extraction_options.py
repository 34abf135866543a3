"""Options of answer extraction."""

import dataclasses

from data_pipelines.errors import InputError
from data_pipelines.fields import field

_MAX_SPANS = 1000  # of a passage


@dataclasses.dataclass(frozen=True)
class ExtractionOptions:
    """Choice among the spans of a passage.

    Raises:
      InputError: a value is out of its range, or another one makes it meaningless.
    """

    num_answers: int = field(3, "answers of a passage, the most probable ones or a sample")
    do_sample: bool = field(
        False,
        "draws the answers by their probabilities, without replacement, from the `n_best_size` "
        "most probable ones",
    )
    n_best_size: int = field(10, "answers from which a sample is drawn")
    seed: int = field(0, "seed of samples; they depend on it and on the passage, not on the batch")

    def __post_init__(self) -> None:
        for name in ("num_answers", "n_best_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r}: not an integer from 1. Raise it.")
            if value > _MAX_SPANS:
                raise InputError(f"{name}={value}: too many. Use at most {_MAX_SPANS}.")
        if not 0 <= self.seed < 1 << 32:
            raise InputError(f"seed={self.seed}: not in [0, 2^32). Use a small integer.")
        if not self.do_sample:
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                if item.name in ("n_best_size", "seed") and value != item.default:
                    raise InputError(
                        f"{item.name}={value!r}: has no effect without do_sample=True. Set it, or "
                        f"remove {item.name}."
                    )
        elif self.num_answers > self.n_best_size:
            raise InputError(
                f"num_answers={self.num_answers}: a sample from n_best_size={self.n_best_size} "
                "answers has fewer. Raise n_best_size."
            )
