"""A model as a function of named arrays, the common form of all exports."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath
from jax import Array, export

from bertjax.checkpointing.lookup import read_checkpoint
from bertjax.config.config import Config
from bertjax.config.loading import read_config
from bertjax.formats.detection import find_format
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.trained_model import read_published_model, read_trained_model
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS
from bertjax.tasks import registry
from bertjax.tasks.embeddings.encoder_embeddings import apply_encoder
from data_pipelines.errors import InputError

Apply = Callable[[Any, dict[str, Array]], dict[str, Array]]
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class ArraySpec(NamedTuple):
    """An input or output of a program.

    Attributes:
      name: its name.
      shape: sizes; "b" sequences, "t" tokens, "m" masked positions.
      description: its meaning.
    """

    name: str
    shape: tuple[int | str, ...]
    description: str = ""


class Signature(NamedTuple):
    """Inputs and outputs of a program, in order."""

    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]


_INPUTS = (
    ArraySpec("input_ids", ("b", "t"), "token ids, 0 for padding"),
    ArraySpec("token_type_ids", ("b", "t"), "0 for sentence A, 1 for sentence B"),
    ArraySpec("attention_mask", ("b", "t"), "1 for tokens, 0 for padding"),
)
_MLM_INPUT = ArraySpec(
    "masked_lm_positions", ("b", "m"), "positions to predict, such as those of [MASK]"
)


class Source(NamedTuple):
    """A model, and the configuration of its task; None for an encoder without heads."""

    model: NumpyModel
    config: Config | None

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of its heads."""
        return _heads(self.model)


def load_source(checkpoint: epath.PathLike, task: str | None = None) -> Source:
    """Load a model, all of whose heads are known.

    Args:
      checkpoint: model directory of any format.
      task: task of the user, `MODULE:CLASS`, that a published model was trained for; None for a
        built-in one. Its module is imported already.

    Raises:
      InputError: there is no such model, a head is unknown, or no task has its heads.
    """
    format_name = find_format(checkpoint)
    if format_name == "bertjax":
        return read_checkpoint(checkpoint, _read_checkpoint)
    model = read_published_model(checkpoint, format_name)
    if model.unexpected_keys:
        raise InputError(
            f"{checkpoint}: the head of {', '.join(model.unexpected_keys[:3])} is unknown and "
            "would be lost. Add --task MODULE:CLASS of its task, or convert the model to bertjax's "
            "format, which leaves the head out."
        )
    return Source(model, registry.infer_config(model, task) if _heads(model) else None)


def _read_checkpoint(path: epath.Path) -> Source:
    model = read_trained_model(path)
    has_heads = bool(_heads(model))
    fields = registry.data_fields()
    return Source(model, read_config(path / "config.json", fields) if has_heads else None)


def _heads(model: NumpyModel) -> tuple[str, ...]:
    return tuple(part for part in model.params if part in HEADS)


def signature_inputs(heads: Iterable[str]) -> tuple[ArraySpec, ...]:
    """Return the inputs of a model with some heads, int32 or int64."""
    return (*_INPUTS, _MLM_INPUT) if "mlm" in heads else _INPUTS


class Program(NamedTuple):
    """A model as a JAX function.

    Attributes:
      inputs: the function's arrays, int32.
      arguments: their shapes, for any batch size and any length of the model.
      run: function of parameters and these arrays to outputs by name. Outputs at padding have any
        value.
    """

    inputs: tuple[ArraySpec, ...]
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    run: Callable[..., dict[str, Array]]


def make_program(source: Source, path: epath.PathLike) -> Program:
    """Return the function of a model.

    Args:
      source: the model.
      path: its directory, for errors.

    Raises:
      InputError: the model reads arrays that a program has not.
    """
    config = source.model.config
    if config.encoder == "lstm":
        raise InputError(
            f"{path}: an LSTM's loop has a fixed length, and texts of a program have any. Predict "
            "with bertjax."
        )
    apply = _make_apply(source, path)
    inputs = signature_inputs(source.heads)

    def run(params: Any, *arrays: Array) -> dict[str, Array]:
        return apply(params, make_batch(inputs, arrays))

    shapes = symbolic_shapes(inputs, config)
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    return Program(inputs, arguments, run)


def make_batch(inputs: Sequence[ArraySpec], arrays: Sequence[Array]) -> dict[str, Array]:
    """Return the batch that a model reads, int32 arrays by name, from the inputs of a program."""
    batch = {spec.name: array for spec, array in zip(inputs, arrays, strict=True)}
    positions = jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32)
    batch["position_ids"] = jnp.broadcast_to(positions, batch["input_ids"].shape)
    batch["example_ids"] = (batch.pop("attention_mask") > 0).astype(jnp.int32)
    batch["cls_positions"] = jnp.zeros((batch["input_ids"].shape[0], 1), jnp.int32)
    return batch


def symbolic_shapes(specs: Iterable[ArraySpec], config: BertConfig) -> list[Sequence[Any]]:
    """Return the shapes of arrays for tracing with any number and length of sequences."""
    scope = export.SymbolicScope([f"t <= {config.max_position_embeddings}"])
    return [export.symbolic_shape(", ".join(map(str, x.shape)), scope=scope) for x in specs]


def _make_apply(source: Source, path: epath.PathLike) -> Apply:
    if source.config is None:
        bert = source.model.config
        return lambda params, batch: {
            "last_hidden_state": apply_encoder(bert, params, batch).astype(jnp.float32)
        }
    # Examples for TensorBoard would be an output.
    config = dataclasses.replace(source.config, tensorboard=Config.tensorboard)
    objective = registry.make_objective(config)
    if missing := [HEADS[name] for name in objective.heads if name not in source.heads]:
        raise InputError(f"{path}: has no {missing[0].display_name}. Train it with init.")
    constants = objective.constants()

    def apply(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        try:
            outputs = objective.apply(params, batch, None, constants)
        except KeyError as error:
            if error.args[0] not in objective.batch_shapes(1):
                raise  # a fault of bertjax
            raise InputError(
                f"{path}: its task reads {error} of a batch, which a program cannot. Export a "
                "model of a built-in task."
            ) from error
        # A sequence is one example: drop the axis of examples that share a sequence.
        pooled = {f"{head}_logits" for head in objective.heads if HEADS[head].pooled}
        return {name: x[:, 0] if name in pooled else x for name, x in outputs.items()}

    return apply


def program_outputs(exported: export.Exported) -> tuple[ArraySpec, ...]:
    """Return the outputs of an exported program."""
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return tuple(traced_spec(name, x) for name, x in outputs.items())


def traced_spec(name: str, array: Any) -> ArraySpec:
    """Return the description of an array of a traced function."""
    return ArraySpec(name, tuple(n if isinstance(n, int) else str(n) for n in array.shape))
