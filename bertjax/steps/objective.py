"""The objective of a task: a model, its loss, and the shapes of its batches."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from bertjax.config.compound_values import parse_loss_weights
from bertjax.config.config import Config
from bertjax.config.user_functions import find_function
from bertjax.mesh.feed import Batch
from bertjax.model.attention.dispatch import AttentionImplementation, choose_implementation
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.decoder.options import SOURCE_DTYPES, DecodingOptions
from bertjax.model.encoder import ENCODER_INPUTS
from bertjax.model.flops import forward_flops
from bertjax.model.head_positions import num_last_block_positions
from bertjax.model.heads import head_sums
from bertjax.model.losses import Sums
from data_pipelines.errors import InputError

# Upper bound for an eval batch, in tokens, unless the configuration sets `eval_batch_size`.
MAX_EVAL_TOKENS = 131_072
_MAX_TARGET_LENGTH = 32  # tokens
_TOKENS_PER_SLOT = 8  # of prediction, as in `bertjax.tasks.fill_mask.PackedTexts`


class Objective(abc.ABC):
    """An encoder with heads and its loss, from the configuration alone, without data.

    A task derives its own class, defines the shapes of batches and overrides what differs.

    Args:
      config: the configuration of the run.
      batch_size_multiple: number of devices that share a batch. A task that chooses its batch size
        rounds it up to a multiple of this number.

    Attributes:
      UNUSED_FIELDS: configuration fields that the task does not read; other values than the
        defaults are rejected.
      DECODERS: values of `model.decoder` that the task supports.
      LOSS_INPUTS: head, labels and weights of the loss that `loss` may replace.
      LEARNS_EMBEDDINGS: whether the task learns embeddings of a teacher, and not its logits.
      heads: names of heads, keys of `bertjax.model.heads.HEADS`.
      eval_outputs: outputs of `apply` that the evaluation reads from each batch, beside the sums.
      segments: names of the two segments of a sequence; "" if all tokens are of type 0.
      batch_unit: what `Config.batch_size` counts, "sequences" or "examples".
      batch_size: sequences of a global training batch, over all processes and devices.

    Raises:
      InputError: the configuration does not define a model of the task.
    """

    UNUSED_FIELDS: ClassVar[frozenset[str]] = frozenset()
    DECODERS: ClassVar[tuple[str, ...]] = ("", "prefix")
    LOSS_INPUTS: ClassVar[tuple[str, str, str]] = ("", "", "")
    LEARNS_EMBEDDINGS: ClassVar[bool] = False
    heads: tuple[str, ...] = ()
    eval_outputs: tuple[str, ...] = ()
    segments: str = ""
    batch_unit: str = "sequences"

    def __init__(self, config: Config, batch_size_multiple: int = 1) -> None:
        self.config, self.batch_size_multiple = config, batch_size_multiple
        self.batch_size = config.batch_size
        if (decoder := config.model.decoder) not in self.DECODERS:
            raise InputError(
                f"model.decoder={decoder!r}: task={config.task} does not support it. Use "
                f"{' or '.join(name or repr(name) for name in self.DECODERS)}."
            )
        if config.loss and not self.LOSS_INPUTS[0]:
            raise InputError(
                f"loss={config.loss!r}: task={config.task} has a loss of its own. Remove it."
            )
        parse_loss_weights(config.loss_weights, self.heads)
        if (path := config.distill.embeddings) and not self.LEARNS_EMBEDDINGS:
            raise InputError(
                f"distill.embeddings={path!r}: task={config.task} learns no embeddings. Use "
                "distill.logits."
            )
        for name in sorted(self.UNUSED_FIELDS):
            if (value := getattr(config, name)) != getattr(Config, name):
                raise InputError(
                    f"{name}={value!r}: task={config.task} does not read this field. Remove it."
                )
        for section, is_read, purpose in (
            ("decoding", self.generates, "generate texts"),
            ("extraction", self.extracts_answers, "extract answers"),
        ):
            options = getattr(config, section)
            for item in () if is_read else dataclasses.fields(options):
                if (value := getattr(options, item.name)) != item.default:
                    raise InputError(
                        f"{section}.{item.name}={value!r}: a model of task={config.task} does not "
                        f"{purpose}. Remove it."
                    )
        if self.generates:
            self._check_generation()

    def _check_generation(self) -> None:
        """Raise InputError if texts cannot be decoded from the model, or not with these options."""
        model = self.config.model
        for name in LAYER_MIX_FIELDS:
            if (value := getattr(model, name)) != getattr(BertConfig, name):
                raise InputError(
                    f"model.{name}={value!r}: texts are generated from the last layer. Remove it."
                )
        options, positions = self.config.decoding, model.max_position_embeddings
        if options.max_new_tokens > positions:
            raise InputError(
                f"decoding.max_new_tokens={options.max_new_tokens}: the model has {positions} "
                f"positions. Use at most {positions}."
            )
        longest = options.max_new_tokens or self.max_target_length
        if options.min_new_tokens >= longest:
            raise InputError(
                f"decoding.min_new_tokens={options.min_new_tokens}: leaves no space for [SEP] in "
                f"{longest} tokens. Reduce it, or raise decoding.max_new_tokens."
            )

    @functools.cached_property
    def loss_weights(self) -> Mapping[str, float]:
        """Head -> factor of its losses."""
        return parse_loss_weights(self.config.loss_weights, self.heads)

    @functools.cached_property
    def model(self) -> BertWithHeads:
        """The Flax module."""
        return BertWithHeads(self.config.model, self.heads)

    @property
    def caches_gradients(self) -> bool:
        """True if `train_sums` itself computes microbatches, and the train step none.

        The loss compares examples of the whole batch then.
        """
        return False

    def check_lengths(self) -> None:  # noqa: B027 (those of most tasks fit)
        """Raise InputError if lengths and strides of inputs do not fit each other."""

    @property
    def generates(self) -> bool:
        """True if models of the task generate texts."""
        return False

    @property
    def extracts_answers(self) -> bool:
        """True if models of the task extract answers from passages."""
        return False

    @property
    def max_target_length(self) -> int:
        """Maximal tokens of a generated text with [SEP]; `decoding.max_new_tokens` replaces it."""
        return _MAX_TARGET_LENGTH

    @property
    def decoding_options(self) -> DecodingOptions:
        """Options of decoding, with the maximal tokens."""
        options = self.config.decoding
        if options.max_new_tokens:
            return options
        return dataclasses.replace(options, max_new_tokens=self.max_target_length)

    def generation_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the arrays of a batch of the longest sources, as `generate` reads them."""
        length = self.config.max_seq_length  # to which they are padded
        widths = dict.fromkeys((*ENCODER_INPUTS, "source_tokens"), length)
        widths |= {"cls_positions": 1, "masked_lm_positions": max(1, length // _TOKENS_PER_SLOT)}
        shapes = {
            name: jax.ShapeDtypeStruct((batch_size, width), jnp.int32)
            for name, width in widths.items()
        }
        dtypes = {"lengths": np.int32, "slots": np.int32, "digests": np.uint32} | SOURCE_DTYPES
        for name, dtype in dtypes.items():
            shapes[f"source_{name}"] = jax.ShapeDtypeStruct((batch_size,), dtype)
        return shapes

    def generation_flops(self, batch_size: int, options: DecodingOptions) -> float:
        """Return the model FLOPs of `generate`, without those of attention to the sources."""
        model = self.config.model
        hypotheses = batch_size * max(options.num_beams, options.num_return_sequences)
        sources = forward_flops(model, batch_size, self.config.max_seq_length, 1)
        count = options.max_new_tokens
        computed = 2 * count if model.predicts_masks else count  # tokens, and their [MASK]
        return sources + forward_flops(model, hypotheses, computed, count)

    @property
    def eval_batch_size(self) -> int:
        """Sequences of a global eval batch.

        By default the training batch size, or `MAX_EVAL_TOKENS` if that is less.
        """
        largest = max(1, MAX_EVAL_TOKENS // self.config.max_seq_length)
        if self.config.eval_batch_size or self.config.batch_size <= largest:
            return self.config.eval_batch_size or self.config.batch_size
        return self.round_up_batch_size(largest)

    def round_up_batch_size(self, batch_size: int, parts: int = 1) -> int:
        """Return the batch size, rounded up so that devices share each of the equal parts."""
        multiple = self.batch_size_multiple * parts
        return -(-batch_size // multiple) * multiple

    def check_inputs_repeat(self) -> None:  # noqa: B027 (those of most tasks do)
        """Raise InputError if the inputs of training are drawn anew in every epoch."""

    @abc.abstractmethod
    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of a global batch, by its name."""

    def eval_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of a global eval batch, by its name."""
        return self.batch_shapes(self.eval_batch_size)

    @abc.abstractmethod
    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of a forward pass over a batch."""

    @property
    def num_last_block_positions(self) -> int:
        """Positions of each sequence at which the last block is computed completely."""
        return num_last_block_positions(self.config.model, self.heads, self.batch_shapes(1))

    def step_flops(self) -> float:
        """Return the model FLOPs of a train step; a backward pass counts as two forward passes."""
        return 3 * self.forward_flops(self.batch_size)

    def attention_implementation(self, mesh: Mesh) -> AttentionImplementation | None:
        """Return the attention implementation of the train step on a mesh, without tracing it.

        An LSTM has none.
        """
        model = self.config.model
        if model.encoder == "lstm":
            return None
        sequences, length = self.batch_shapes(self.batch_size)["example_ids"].shape
        shape = (
            sequences // self.config.gradient_accumulation_steps,
            length,
            model.num_attention_heads,
            model.hidden_size // model.num_attention_heads,
        )
        with jax.set_mesh(mesh):
            return choose_implementation(jax.ShapeDtypeStruct(shape, model.dtype))

    def init_params(self, key: Array) -> Any:
        """Return random parameters: a nested dictionary of float32 arrays."""
        batch = {name: jnp.zeros(x.shape, x.dtype) for name, x in self.batch_shapes(1).items()}
        return self.model.init(key, batch, deterministic=True)["params"]

    def constants(self) -> Any:
        """Return a tree of arrays that `apply` reads and that are not trained."""
        return {}

    def train_constants(self) -> Any:
        """Return a tree of arrays that `train_sums` reads and that are not trained."""
        return self.constants()

    def train_constant_shapes(self) -> Any:
        """Return the shapes of `train_constants`, whose arrays may take long to read."""
        return jax.eval_shape(self.train_constants)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return the outputs of a forward pass, for loss, evaluation and prediction.

        Args:
          params: nested dictionary of parameters.
          batch: arrays of the shapes of `batch_shapes`.
          key: key of dropout; None to turn dropout off.
          constants: as `constants` returns them.
        """
        rngs = None if key is None else {"dropout": key}
        return cast(
            dict[str, Array],
            self.model.apply({"params": params}, batch, deterministic=key is None, rngs=rngs),
        )

    def train_sums(
        self, params: Any, batch: Batch, key: Array | None, constants: Any, progress: Array
    ) -> Sums:
        """Return the sums of a training batch, whose losses the train step minimizes.

        They are weighted; those of evaluations are not, so that they compare.

        Args:
          params: nested dictionary of parameters.
          batch: arrays of the shapes of `batch_shapes`.
          key: key of dropout; None to turn dropout off.
          constants: as `train_constants` returns them.
          progress: float32 [], part of the run that is over.
        """
        return self.weigh_losses(self.sums(self.apply(params, batch, key, constants), batch))

    def sums(self, outputs: dict[str, Array], batch: Batch) -> Sums:
        """Return losses (names in `_loss`) and metrics, summed over the batch, with their weights.

        `nonpad_fraction` is the fraction of tokens that are not padding.
        """
        is_token = batch["example_ids"] > 0
        nonpad_fraction = jnp.sum(is_token, dtype=jnp.float32), jnp.float32(is_token.size)
        sums = {"nonpad_fraction": nonpad_fraction} | head_sums(outputs, batch)
        if not self.config.loss:
            return sums
        return sums | self.replaced_loss(find_function("loss", self.config.loss), outputs, batch)

    def replaced_loss(
        self,
        loss: Callable[[Array, Array, Array], tuple[Array, Array]],
        outputs: dict[str, Array],
        batch: Batch,
    ) -> Sums:
        """Return the loss of `LOSS_INPUTS` by another function."""
        head, targets, weights = self.LOSS_INPUTS
        return {f"{head}_loss": loss(outputs[f"{head}_logits"], batch[targets], batch[weights])}

    def weigh_losses(self, sums: Sums) -> Sums:
        """Return sums whose losses are multiplied by `loss_weights`; infinity times 0 is 0.

        A loss belongs to the head whose name is its prefix, or to the only head.
        """

        def weigh(name: str, value: Array, weight: Array) -> tuple[Array, Array]:
            heads = [head for head in self.heads if name.startswith(head)]
            head = max(heads or self.heads[:1], key=len, default="")
            factor = self.loss_weights.get(head, 1.0) if heads or len(self.heads) == 1 else 1.0
            if factor == 1 or not name.endswith("_loss"):
                return value, weight
            return (value * factor if factor else jnp.zeros_like(value)), weight

        return {name: weigh(name, *pair) for name, pair in sums.items()}

    def eval_results(
        self, outputs: dict[str, Array], batch: Batch
    ) -> tuple[Sums, dict[str, Array]]:
        """Return what an eval step does: the sums and the outputs named in `eval_outputs`."""
        return self.sums(outputs, batch), {name: outputs[name] for name in self.eval_outputs}

    def trainable(self, name: str) -> bool:
        """Return whether the parameter of this name is trained.

        The encoder of a feature-based model is frozen.
        """
        model = self.config.model
        is_frozen = model.feature_layers and model.freeze_features
        return not (is_frozen and name.startswith("encoder/"))
