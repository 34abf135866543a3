"""Conversions of JAX's primitives to ONNX operators: shapes, slices and indices of arrays."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from bertjax.inference.export.onnx_converter import (
    Converter,
    Equation,
    UnsupportedError,
    converts,
    element_type,
    is_bool,
)


@converts("dim_as_value")
def _dim_as_value(converter: Converter, eqn: Equation) -> str:
    return converter.add("Squeeze", converter.size(eqn.params["dim"]))


@converts("iota")
def _iota(converter: Converter, eqn: Equation, *_: str) -> str:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    numbers = converter.range(shape[axis])
    if others := [i for i in range(len(shape)) if i != axis]:
        numbers = converter.add("Unsqueeze", numbers, converter.graph.ints(*others))
        numbers = converter.add("Expand", numbers, converter.shape(shape))
    return converter.add("Cast", numbers, to=element_type(eqn.params["dtype"], "iota"))


@converts("broadcast_in_dim")
def _broadcast(converter: Converter, eqn: Equation, x: str, *_: str) -> str:
    shape, kept = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if added := [axis for axis in range(len(shape)) if axis not in kept]:
        x = converter.add("Unsqueeze", x, converter.graph.ints(*added))
    return converter.add("Expand", x, converter.shape(shape))


@converts("reshape", "squeeze", "expand_dims")
def _reshape(converter: Converter, eqn: Equation, x: str, *_: str) -> str:
    return converter.reshape(x, eqn.outvars[0].aval.shape)


@converts("transpose")
def _transpose(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Transpose", x, perm=eqn.params["permutation"])


@converts("concatenate")
def _concatenate(converter: Converter, eqn: Equation, *inputs: str) -> str:
    return converter.add("Concat", *inputs, axis=eqn.params["dimension"])


@converts("stack")
def _stack(converter: Converter, eqn: Equation, *inputs: str) -> str:
    axis = eqn.params["axis"]
    parts = (converter.add("Unsqueeze", x, converter.graph.ints(axis)) for x in inputs)
    return converter.add("Concat", *parts, axis=axis)


@converts("tile")
def _tile(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Tile", x, converter.shape(eqn.params["reps"]))


@converts("split")
def _split(converter: Converter, eqn: Equation, x: str) -> Sequence[str]:
    names = [converter.graph.new_name("split") for _ in eqn.outvars]
    sizes = converter.shape(eqn.params["sizes"])
    converter.graph.add_node("Split", (x, sizes), names, axis=eqn.params["axis"])
    return names


@converts("unstack")
def _unstack(converter: Converter, eqn: Equation, x: str) -> Sequence[str]:
    axis, count = eqn.params["axis"], len(eqn.outvars)
    names = [converter.graph.new_name("split") for _ in eqn.outvars]
    converter.graph.add_node("Split", (x, converter.shape([1] * count)), names, axis=axis)
    return [converter.add("Squeeze", name, converter.graph.ints(axis)) for name in names]


@converts("pad")
def _pad(converter: Converter, eqn: Equation, x: str, value: str) -> str:
    low, high, between = zip(*eqn.params["padding_config"], strict=True)
    if any(between):
        raise UnsupportedError("pad between elements")
    return converter.add("Pad", x, converter.shape((*low, *high)), value)


@converts("slice")
def _slice(converter: Converter, eqn: Equation, x: str) -> str:
    starts, ends = (converter.shape(eqn.params[f"{name}_indices"]) for name in ("start", "limit"))
    steps, ints = eqn.params["strides"] or [1] * eqn.invars[0].aval.ndim, converter.graph.ints
    return converter.add("Slice", x, starts, ends, ints(*range(len(steps))), ints(*steps))


@converts("rev")
def _rev(converter: Converter, eqn: Equation, x: str) -> str:
    axes, ints = eqn.params["dimensions"], converter.graph.ints
    before_first = np.iinfo(np.int64).min
    last, end = ([number] * len(axes) for number in (-1, before_first))
    return converter.add("Slice", x, ints(*last), ints(*end), ints(*axes), ints(*last))


@converts("dynamic_slice")
def _dynamic_slice(converter: Converter, eqn: Equation, x: str, *starts: str) -> str:
    vectors = [converter.reshape(start, (1,)) for start in starts]
    start = converter.add("Concat", *vectors, axis=0)
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    return _window(converter, x, _move_inside(converter, start, shape, sizes), sizes)


def _move_inside(
    converter: Converter, start: str, shape: Sequence[Any], sizes: Sequence[Any]
) -> str:
    """Return indices [..., n] at which windows of some sizes begin, moved into an array's shape."""
    last = converter.shape([size - window for size, window in zip(shape, sizes, strict=True)])
    return converter.add("Max", converter.add("Min", start, last), converter.graph.ints(0))


def _window(converter: Converter, x: str, start: str, sizes: Sequence[Any]) -> str:
    """Return the part of x from a vector of indices on."""
    end = converter.add("Add", start, converter.shape(sizes))
    return converter.add("Slice", x, start, end, converter.graph.ints(*range(len(sizes))))


@converts("gather")
def _gather(converter: Converter, eqn: Equation, x: str, indices: str) -> str:
    """Take windows of x at indices [..., n], one number for each indexed axis."""
    add, ints = converter.add, converter.graph.ints
    axes, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape, num_batch_axes = eqn.invars[0].aval.shape, eqn.invars[1].aval.ndim - 1
    indexed, batching = axes.start_index_map, axes.operand_batching_dims
    others = [axis for axis in range(len(shape)) if axis not in (*indexed, *batching)]
    if any(sizes[axis] != shape[axis] for axis in others):
        raise UnsupportedError("gather of a part of an axis without an index")
    inside = _move_inside(
        converter, indices, [shape[axis] for axis in indexed], [sizes[axis] for axis in indexed]
    )
    fill = functools.partial(_fill, converter, eqn, inside, indices)
    if not num_batch_axes:
        parts = [ints(0) for _ in shape]
        for number, axis in enumerate(indexed):
            parts[axis] = add("Gather", inside, ints(number))
        window = _window(converter, x, add("Concat", *parts, axis=0), sizes)
        return fill(converter.reshape(window, eqn.outvars[0].aval.shape), 0)
    batch_axes = [*axes.start_indices_batching_dims]
    batch_axes += [axis for axis in range(num_batch_axes) if axis not in batch_axes]
    inside = add("Transpose", inside, perm=[*batch_axes, num_batch_axes])
    windows = [axis for axis in indexed if axis not in axes.collapsed_slice_dims]
    new_axes = [num_batch_axes + number for number in range(len(windows))]
    inside = add("Unsqueeze", inside, ints(*new_axes)) if windows else inside
    for number, axis in enumerate(windows):  # the elements of the windows, along axes of their own
        steps_shape = [1] * len(windows) + [1]
        steps_shape[number] = sizes[axis]
        steps = converter.reshape(converter.range(sizes[axis]), steps_shape)
        unit = ints(*(int(other == axis) for other in indexed))
        inside = add("Add", inside, add("Mul", steps, unit))
    x = add("Transpose", x, perm=[*batching, *indexed, *others])
    result = add("GatherND", x, inside, batch_dims=len(batching))
    # Its axes are those of the indices in the order of `batch_axes`, `windows` and `others`. In the
    # output those of x are at `offset_dims`, in their order in x.
    kept = [axis for axis in range(len(shape)) if axis in (*windows, *others)]
    offsets, ordered = dict(zip(axes.offset_dims, kept, strict=True)), [*windows, *others]
    batch_places = iter(range(num_batch_axes))
    perm = [
        num_batch_axes + ordered.index(offsets[place])
        if place in offsets
        else batch_axes.index(next(batch_places))
        for place in range(num_batch_axes + len(kept))
    ]
    return add("Transpose", fill(result, len(kept), batch_axes), perm=perm)


def _fill(
    converter: Converter,
    eqn: Equation,
    inside: str,
    indices: str,
    result: str,
    num_kept: int,
    batch_axes: Sequence[int] = (),
) -> str:
    """Return windows [..., *kept axes], filled with a value if `indices` were outside of x.

    Args:
      converter: converter.
      eqn: the gather.
      inside: indices that were moved into x.
      indices: indices [..., n] before.
      result: the windows.
      num_kept: number of their last axes that are not of the indices.
      batch_axes: order of the axes of the indices in the windows.
    """
    if eqn.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return result
    add, output = converter.add, eqn.outvars[0]
    value = eqn.params["fill_value"]
    if value is None:
        lowest = np.iinfo(output.aval.dtype).min if output.aval.dtype.kind == "i" else np.nan
        value = is_bool(output) or lowest
    equal = add("Cast", add("Equal", inside, indices), to=element_type(np.int32, "gather"))
    valid = add("ReduceMin", equal, converter.graph.ints(-1), keepdims=0)
    valid = add("Cast", valid, to=element_type(np.bool_, "gather"))
    if batch_axes:
        valid = add("Transpose", valid, perm=batch_axes)
    if num_kept:
        new_axes = range(len(batch_axes), len(batch_axes) + num_kept)
        valid = add("Unsqueeze", valid, converter.graph.ints(*new_axes))
    return add("Where", valid, result, converter.constant(np.asarray(value, output.aval.dtype)))
