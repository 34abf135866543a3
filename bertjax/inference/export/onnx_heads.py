"""Heads of any layers as ONNX operators, from the operations that JAX traces."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from onnx import TensorProto

from bertjax.formats.tensors import NumpyModel
from bertjax.inference.export import onnx_indexing, onnx_primitives  # noqa: F401 (registers)
from bertjax.inference.export.onnx_builder import Graph
from bertjax.inference.export.onnx_converter import Converter, UnsupportedError
from bertjax.inference.export.program import (
    ArraySpec,
    make_batch,
    symbolic_shapes,
    traced_spec,
)
from bertjax.mesh.sharding import named_leaves
from bertjax.model.heads import HEADS
from bertjax.model.layers import gather
from data_pipelines.errors import InputError

_WORD = "encoder/embeddings/word"


class _Batch(dict[str, Array]):
    """The arrays of a batch that an export has."""

    def __missing__(self, name: str) -> Array:
        raise InputError(
            f"array {name!r}: a head reads it of a batch, and an export has not got it. Keep the "
            "model in bertjax's format."
        )


def add_head(
    graph: Graph,
    model: NumpyModel,
    name: str,
    vectors: str,
    inputs: Sequence[ArraySpec],
    fix: str,
) -> ArraySpec:
    """Add a head to a graph, computed in float32, and return its output.

    Args:
      graph: graph with the inputs of a program and the vectors.
      model: the model.
      name: name of the head.
      vectors: name of its hidden states [b, t, H], or pooled ones [b, H].
      inputs: inputs of the program.
      fix: end of an error's message.

    Raises:
      InputError: the graph cannot express an operation of the head, or it reads another array.
    """
    head, config, params = HEADS[name], model.config, model.params[name]
    keys = [f"{name}/{key}" for key, _ in named_leaves(params)]
    module = head.module(dataclasses.replace(config, dtype="float32"), name=name)

    def run(params: Any, x: Array, word: Array, *arrays: Array) -> Array:
        batch = _Batch(make_batch(inputs, arrays))
        if head.pooled:
            x = x[:, None]
        elif head.positions_key:
            x = gather(x, batch[head.positions_key])
        logits: Any = module.apply({"params": params}, x, batch, word)
        return logits[:, 0] if head.pooled else logits

    sizes = ("b", config.hidden_size) if head.pooled else ("b", "t", config.hidden_size)
    vector_shape, *shapes = symbolic_shapes([ArraySpec(vectors, sizes), *inputs], config)
    read: list[str | Callable[[], str]] = [
        *(functools.partial(graph.param, key) for key in keys),
        *(vectors, functools.partial(graph.param, _WORD)),
        *(spec.name for spec in inputs),
    ]
    try:
        traced = jax.make_jaxpr(run)(
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), params),
            jax.ShapeDtypeStruct(vector_shape, jnp.float32),
            jax.ShapeDtypeStruct(graph.params[_WORD].shape, jnp.float32),
            *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes),
        )
        (output,) = Converter(graph, _add_sizes(graph, inputs)).run(traced, read)
    except UnsupportedError as error:
        raise InputError(
            f"head {name!r}: operation {error}: the ONNX format does not support it. {fix}"
        ) from error
    graph.read |= {*keys}
    graph.add("Cast", output, to=TensorProto.FLOAT, output=f"{name}_logits")
    return traced_spec(f"{name}_logits", *traced.out_avals)


def _add_sizes(graph: Graph, inputs: Sequence[ArraySpec]) -> dict[str, str]:
    """Add the unknown sizes of inputs; return their names by that in a shape."""
    places = {
        size: (spec.name, axis)
        for spec in inputs
        for axis, size in enumerate(spec.shape)
        if isinstance(size, str)
    }
    return {
        size: graph.add("Shape", array, start=axis, end=axis + 1)
        for size, (array, axis) in places.items()
    }
