"""A traced function of JAX as ONNX operators: heads that are more than a linear layer.

Floating-point numbers become float32 and signed integers int64, so that any of them may be indices.
Sizes of arrays may be unknown; see `Converter`.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from onnx import TensorProto, helper

from bertjax.inference.export.onnx_builder import Graph

Equation: TypeAlias = Any  # a JaxprEqn, whose declaration lacks the attributes of arrays
Convert = Callable[..., str | Sequence[str]]  # of a converter, an equation and its inputs

_CONVERSIONS: dict[str, Convert] = {}  # by primitive
_SIZE_OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}
_SIZE_FUNCTIONS = {"floordiv": "Div", "mod": "Mod", "max": "Max", "min": "Min"}


class UnsupportedError(Exception):
    """Error of a primitive that has no counterpart in ONNX, or not with these arguments."""


def converts(*primitives: str) -> Callable[[Convert], Convert]:
    """Return a decorator of the function that converts primitives."""

    def register(convert: Convert) -> Convert:
        _CONVERSIONS.update(dict.fromkeys(primitives, convert))
        return convert

    return register


class Converter:
    """Adds the operations of traced functions to a graph.

    Args:
      graph: the graph.
      sizes: name of an unknown size -> name of a vector of int64 that holds it.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, str]) -> None:
        self.graph, self._sizes = graph, sizes
        self.add = graph.add

    def run(
        self, traced: ClosedJaxpr | Jaxpr, inputs: Sequence[str | Callable[[], str]]
    ) -> list[str]:
        """Add the operations of a function and return the names of its outputs.

        Args:
          traced: the function.
          inputs: names of its arguments, or functions that are called for the name of one that is
            read.

        Raises:
          UnsupportedError: the graph cannot express an operation.
        """
        jaxpr = traced.jaxpr if isinstance(traced, ClosedJaxpr) else traced
        consts = traced.consts if isinstance(traced, ClosedJaxpr) else ()
        names: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
        names |= dict(zip(jaxpr.constvars, consts, strict=True))

        def read(variable: Any) -> str:
            if isinstance(variable, Literal):
                return self.constant(variable.val)
            name = names[variable]
            if not isinstance(name, str):
                name = names[variable] = name() if callable(name) else self.constant(name)
            return name

        for eqn in _used_equations(jaxpr):
            outputs = self._convert(eqn, [read(variable) for variable in eqn.invars])
            names |= dict(zip(eqn.outvars, outputs, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _convert(self, eqn: Equation, inputs: Sequence[str]) -> Sequence[str]:
        name = eqn.primitive.name
        if name not in _CONVERSIONS:
            raise UnsupportedError(name)
        for variable in (*eqn.invars, *eqn.outvars):
            element_type(variable.aval.dtype, name)
        outputs = _CONVERSIONS[name](self, eqn, *inputs)
        return [outputs] if isinstance(outputs, str) else outputs

    def constant(self, value: Any) -> str:
        """Return the name of a constant of a supported type."""
        array = np.asarray(value)
        dtype = helper.tensor_dtype_to_np_dtype(element_type(array.dtype, "constant"))
        return self.graph.constant(array.astype(dtype))

    def size(self, size: Any) -> str:
        """Return the name of a vector that holds a size of an array, known or not."""
        return self._size(ast.parse(str(size), mode="eval").body)

    def _size(self, node: ast.AST) -> str:
        """Return the name of the value of an expression, as JAX prints sizes."""
        match node:
            case ast.Constant(value=int(number)):
                return self.graph.ints(number)
            case ast.Name(id=name):
                return self._sizes[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.add("Neg", self._size(operand))
            case ast.BinOp(left=base, op=ast.BitXor(), right=ast.Constant(value=int(power))):
                return self.add("Pow", self._size(base), self.graph.ints(power))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIZE_OPERATORS:
                return self.add(_SIZE_OPERATORS[type(op)], self._size(left), self._size(right))
            case ast.Call(func=ast.Name(id=name), args=args) if name in _SIZE_FUNCTIONS:
                return self.add(_SIZE_FUNCTIONS[name], *map(self._size, args))
        raise UnsupportedError(f"size {ast.unparse(node)}")

    def shape(self, sizes: Sequence[Any]) -> str:
        """Return the name of a vector of sizes."""
        if all(map(is_known, sizes)):
            return self.graph.ints(*sizes)
        return self.add("Concat", *map(self.size, sizes), axis=0)

    def reshape(self, x: str, sizes: Sequence[Any]) -> str:
        """Return x in another shape."""
        if sum(not is_known(size) for size in sizes) == 1:
            sizes = [size if is_known(size) else -1 for size in sizes]
        return self.add("Reshape", x, self.shape(sizes))

    def range(self, end: Any) -> str:
        """Return the name of the numbers from 0 to a size, exclusive."""
        zero, one = (self.graph.constant(np.int64(number)) for number in (0, 1))
        return self.add("Range", zero, self.add("Squeeze", self.size(end)), one)


def _used_equations(jaxpr: Jaxpr) -> list[Equation]:
    """Return the equations that the outputs depend on."""
    used, equations = {*map(id, jaxpr.outvars)}, []
    for eqn in reversed(jaxpr.eqns):
        if used & {*map(id, eqn.outvars)}:
            used |= {*map(id, eqn.invars)}
            equations.append(eqn)
    return equations[::-1]


def is_known(size: Any) -> bool:
    """Return whether a size is a number."""
    return isinstance(size, int | np.integer)


def element_type(dtype: Any, name: str) -> int:
    """Return the type in ONNX of arrays of a primitive.

    Raises:
      UnsupportedError: there is none.
    """
    if dtype == np.bool_:
        return TensorProto.BOOL
    if jnp.issubdtype(dtype, jnp.floating):
        return TensorProto.FLOAT
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return TensorProto.INT64
    raise UnsupportedError(f"{name} of {dtype}")


def is_bool(variable: Any) -> bool:
    """Return whether an array is of bool."""
    return bool(variable.aval.dtype == np.bool_)
