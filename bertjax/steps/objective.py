"""What is compiled: a model, its loss, and the shapes of its batches."""

import abc
import functools
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jax import Array

from bertjax.config.config import Config
from bertjax.mesh.feed import Batch
from bertjax.model.heads import BertWithHeads, head_sums, num_head_positions
from bertjax.model.losses import Sums
from data_pipelines.errors import InputError

MAX_EVAL_TOKENS = (
    131_072  # of a batch of held-out data, at most, unless the configuration says more
)


class Objective(abc.ABC):
    """An encoder with heads, from the configuration alone, without data.

    A task derives its own, gives it the shapes of batches, and overrides what else is different.

    Args:
      batch_size_multiple: of rows, which devices share; a task that chooses its rows gives some of it.

    Class attributes:
      UNREAD: fields of the configuration that the task does not read; they are refused.

    Attributes:
      heads: names of `bertjax.model.heads.HEADS`.
      outputs: which of what `apply` gives an evaluation needs of each batch, besides the sums.
      batch_size: sequences of a global training batch, over all processes and devices.

    Raises:
      InputError: in one sentence, where the configuration makes no model.
    """

    UNUSED_FIELDS: ClassVar[frozenset[str]] = frozenset()
    heads: tuple[str, ...] = ()
    eval_outputs: tuple[str, ...] = ()

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        self.config, self.batch_size_multiple, self.batch_size = (
            config,
            batch_size_multiple,
            config.batch_size,
        )
        for name in sorted(self.UNUSED_FIELDS):
            if (value := getattr(config, name)) != getattr(Config, name):
                raise InputError(f"task={config.task} does not read {name}={value}: leave it out.")

    @functools.cached_property
    def model(self) -> BertWithHeads:
        return BertWithHeads(self.config.model, self.heads)

    @property
    def eval_batch_size(self) -> int:
        """Of a global batch of held-out data: those of a training step, where they are not many."""
        most = max(1, MAX_EVAL_TOKENS // self.config.max_seq_length)
        usual = self.config.batch_size
        return self.config.eval_batch_size or (
            usual if usual <= most else self.round_up_batch_size(most)
        )

    def round_up_batch_size(self, rows: int, parts: int = 1) -> int:
        """So many rows, or as few more as devices need to share them in so many parts."""
        multiple = self.batch_size_multiple * parts
        return -(-rows // multiple) * multiple

    @abc.abstractmethod
    def batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Name -> shape of the arrays of a global batch of so many rows."""

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The same of a batch of held-out data."""
        return self.batch_shapes(self.eval_batch_size)

    @abc.abstractmethod
    def forward_flops(self, rows: int) -> float:
        """Model operations of a forward pass over so many rows."""

    @property
    def num_head_positions(self) -> int:
        """Of a row's positions those whose vectors the heads read; 0 for all of them."""
        return num_head_positions(self.heads, self.batch_shapes(1))

    def step_flops(self) -> float:
        """Model operations of a training step: a backward pass counts as two forward ones."""
        return 3 * self.forward_flops(self.batch_size)

    def init_params(self, key: Array) -> Any:
        """Random parameters: a nested dictionary of float32 arrays."""
        batch = {name: jnp.zeros(x.shape, x.dtype) for name, x in self.batch_shapes(1).items()}
        return self.model.init(key, batch, deterministic=True)["params"]

    def constants(self) -> Any:
        """A tree of arrays that the forward pass reads and that do not learn, such as a teacher."""
        return {}

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """One forward pass, for loss, evaluation and prediction alike; a key turns dropout on."""
        rngs = None if key is None else {"dropout": key}
        return cast(
            dict[str, Array],
            self.model.apply({"params": params}, batch, deterministic=key is None, rngs=rngs),
        )

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """What is minimised (names in `_loss`) and reported, summed over the batch.

        `nonpad_fraction` is the share of cells that are no padding.
        """
        real = batch["example_ids"] > 0
        nonpad_fraction = jnp.sum(real, dtype=jnp.float32), jnp.float32(real.size)
        return {"nonpad_fraction": nonpad_fraction} | head_sums(outputs, batch)

    def trainable(self, name: str) -> bool:
        """Whether the parameter of this name learns."""
        return True
