"""Conversions of JAX's primitives to ONNX operators: calls, loops, arithmetic, sums, products."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx
from onnx import TensorProto, helper

from bertjax.inference.export.onnx_converter import (
    Converter,
    Equation,
    UnsupportedError,
    converts,
    element_type,
    is_bool,
    is_known,
)

_OPERATORS = {
    "neg": "Neg",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "logistic": "Sigmoid",
    "erf": "Erf",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "sin": "Sin",
    "cos": "Cos",
    "pow": "Pow",
    "add": "Add",
    "add_any": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_LOGICAL_OPERATORS = {"not": "Not", "and": "And", "or": "Or", "xor": "Xor"}
_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
    "reduce_or": "ReduceMax",
    "reduce_and": "ReduceMin",
}


@converts(*_OPERATORS, *_LOGICAL_OPERATORS)
def _operator(converter: Converter, eqn: Equation, *inputs: str) -> str:
    name = eqn.primitive.name
    if is_bool(eqn.invars[0]) != (name in _LOGICAL_OPERATORS):
        raise UnsupportedError(f"{name} of {eqn.invars[0].aval.dtype}")
    return converter.add((_OPERATORS | _LOGICAL_OPERATORS)[name], *inputs)


@converts("copy", "copy_p", "stop_gradient", "optimization_barrier", "reduce_precision")
def _identity(converter: Converter, eqn: Equation, *inputs: str) -> Sequence[str]:
    return inputs


@converts("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
@converts("custom_jvp_call", "custom_vjp_call")
def _call(converter: Converter, eqn: Equation, *inputs: str) -> Sequence[str]:
    return converter.run(eqn.params.get("jaxpr") or eqn.params["call_jaxpr"], inputs)


@converts("scan")
def _scan(converter: Converter, eqn: Equation, *inputs: str) -> Sequence[str]:
    graph, params, body = converter.graph, eqn.params, eqn.params["jaxpr"]
    # An array that is looped over has one axis more than a part of it.
    pairs = zip(eqn.outvars, body.out_avals, strict=True)
    num_carry = sum(variable.aval.ndim == aval.ndim for variable, aval in pairs)
    pairs = zip(eqn.invars, body.in_avals, strict=True)
    num_consts = sum(variable.aval.ndim == aval.ndim for variable, aval in pairs) - num_carry
    operands = list(inputs[num_consts:])
    arguments, in_avals = [graph.new_name("loop") for _ in operands], body.in_avals[num_consts:]
    with graph.body() as nodes:
        outputs = converter.run(body, [*inputs[:num_consts], *arguments])
        outputs = [converter.add("Identity", output) for output in outputs]
    if len(operands) == num_carry:  # a loop in ONNX ends with what it loops over
        operands.append(converter.range(params["length"]))
        arguments.append(graph.new_name("loop"))
        in_avals.append(jax.ShapeDtypeStruct((), np.int64))
    directions = [int(params["reverse"])] * (len(operands) - num_carry)
    out_directions = [int(params["reverse"])] * (len(eqn.outvars) - num_carry)
    names = [graph.new_name("scan") for _ in eqn.outvars]
    graph.add_node(
        "Scan",
        operands,
        names,
        body=helper.make_graph(
            nodes, graph.new_name("body"), _declare(arguments, in_avals),
            _declare(outputs, body.out_avals),
        ),
        num_scan_inputs=len(directions),
        scan_input_directions=directions,
        **({"scan_output_directions": out_directions} if out_directions else {}),
    )  # fmt: skip
    return names


def _declare(names: Sequence[str], avals: Sequence[Any]) -> list[onnx.ValueInfoProto]:
    declared = []
    for name, aval in zip(names, avals, strict=True):
        sizes = [size if is_known(size) else None for size in aval.shape]
        kind = element_type(aval.dtype, "scan")
        declared.append(helper.make_tensor_value_info(name, kind, sizes))
    return declared


@converts("eq", "ne")
def _equal(converter: Converter, eqn: Equation, x: str, y: str) -> str:
    equal = converter.add("Equal", x, y)
    return converter.add("Not", equal) if eqn.primitive.name == "ne" else equal


@converts("rem")
def _rem(converter: Converter, eqn: Equation, x: str, y: str) -> str:
    return converter.add("Mod", x, y, fmod=1)  # with the sign of x


@converts("square")
def _square(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Mul", x, x)


@converts("integer_pow")
def _integer_pow(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Pow", x, converter.constant(eqn.params["y"]))


@converts("rsqrt")
def _rsqrt(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Reciprocal", converter.add("Sqrt", x))


@converts("erfc")
def _erfc(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Sub", converter.constant(1.0), converter.add("Erf", x))


@converts("log1p")
def _log1p(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Log", converter.add("Add", x, converter.constant(1.0)))


@converts("expm1")
def _expm1(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Sub", converter.add("Exp", x), converter.constant(1.0))


@converts("is_finite")
def _is_finite(converter: Converter, eqn: Equation, x: str) -> str:
    largest = converter.constant(np.finfo(np.float32).max)
    return converter.add("LessOrEqual", converter.add("Abs", x), largest)


@converts("clamp")
def _clamp(converter: Converter, eqn: Equation, low: str, x: str, high: str) -> str:
    return converter.add("Max", converter.add("Min", x, high), low)


@converts("select_n")
def _select(converter: Converter, eqn: Equation, which: str, *cases: str) -> str:
    if not is_bool(eqn.invars[0]) or len(cases) != 2:
        raise UnsupportedError(f"select_n of {len(cases)} arrays")
    return converter.add("Where", which, *reversed(cases))


@converts("convert_element_type")
def _cast(converter: Converter, eqn: Equation, x: str) -> str:
    return converter.add("Cast", x, to=element_type(eqn.params["new_dtype"], "cast"))


@converts(*_REDUCTIONS)
def _reduce(converter: Converter, eqn: Equation, x: str) -> str:
    casts = is_bool(eqn.invars[0])
    x = converter.add("Cast", x, to=TensorProto.INT64) if casts else x
    axes = converter.graph.ints(*eqn.params["axes"])
    x = converter.add(_REDUCTIONS[eqn.primitive.name], x, axes, keepdims=0)
    return converter.add("Cast", x, to=TensorProto.BOOL) if casts else x


@converts("argmax", "argmin")
def _arg_reduce(converter: Converter, eqn: Equation, x: str) -> str:
    name = {"argmax": "ArgMax", "argmin": "ArgMin"}[eqn.primitive.name]
    if is_bool(eqn.invars[0]):
        x = converter.add("Cast", x, to=TensorProto.INT32)
    return converter.add(name, x, axis=eqn.params["axes"][0], keepdims=0)


@converts("cumsum")
def _cumsum(converter: Converter, eqn: Equation, x: str) -> str:
    axis = converter.graph.constant(np.int64(eqn.params["axis"]))
    return converter.add("CumSum", x, axis, reverse=int(eqn.params["reverse"]))


@converts("dot_general")
def _dot_general(converter: Converter, eqn: Equation, x: str, y: str) -> str:
    contracted, batched = eqn.params["dimension_numbers"]
    ranks = [variable.aval.ndim for variable in eqn.invars]
    numbers = [[*axes] for axes in (*contracted, *batched)]
    if ranks[0] > 1 and ranks[1] == 2 and numbers == [[ranks[0] - 1], [0], [], []]:
        return converter.add("MatMul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    terms: list[dict[int, str]] = [{}, {}]  # axis -> letter
    for axes in (*zip(*batched, strict=True), *zip(*contracted, strict=True)):
        letter = next(letters)
        for term, axis in zip(terms, axes, strict=True):
            term[axis] = letter
    result = [terms[0][axis] for axis in batched[0]]
    for term, rank in zip(terms, ranks, strict=True):
        free = {axis: next(letters) for axis in range(rank) if axis not in term}
        result += free.values()
        term |= free
    written = ("".join(term[axis] for axis in sorted(term)) for term in terms)
    return converter.add("Einsum", x, y, equation=f"{','.join(written)}->{''.join(result)}")


@converts("conv_general_dilated")
def _conv(converter: Converter, eqn: Equation, x: str, kernel: str) -> str:
    params: dict[str, Any] = eqn.params
    low, high = zip(*params["padding"], strict=True)
    is_plain = params["batch_group_count"] == 1 and {*params["lhs_dilation"]} <= {1}
    if not is_plain or not all(map(is_known, (*low, *high))):
        raise UnsupportedError("conv_general_dilated of a dilated input")
    places = params["dimension_numbers"]
    x = converter.add(
        "Conv",
        converter.add("Transpose", x, perm=places.lhs_spec),
        converter.add("Transpose", kernel, perm=places.rhs_spec),
        strides=params["window_strides"],
        dilations=params["rhs_dilation"],
        pads=(*low, *high),
        group=params["feature_group_count"],
    )
    return converter.add("Transpose", x, perm=np.argsort(places.out_spec).tolist())
