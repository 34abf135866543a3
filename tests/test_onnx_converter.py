"""Traced functions as ONNX operators: onnxruntime computes what JAX computes, at any sizes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, export, lax

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
from bertjax.inference.export import onnx_indexing, onnx_primitives  # noqa: E402, F401
from bertjax.inference.export.onnx_builder import Graph  # noqa: E402
from bertjax.inference.export.onnx_converter import (  # noqa: E402
    _CONVERSIONS,
    Converter,
    UnsupportedError,
)
from bertjax.model.layers import gelu  # noqa: E402

KERNEL = np.random.default_rng(2).normal(size=(3, 8, 4)).astype(np.float32)
SIZES = [(1, 5), (3, 9)]


def window_at(x: Array, number: Array) -> Array:
    return lax.dynamic_slice_in_dim(x, number, 1)


def run_backwards(x: Array) -> Array:
    """Return the states of a recurrence from the last token to the first, and their sum."""

    def step(carry: Array, token: Array) -> tuple[Array, Array]:
        carry = jnp.tanh(0.5 * carry + token @ KERNEL[0] @ KERNEL[0].T)
        return carry, carry

    last, states = lax.scan(step, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1), reverse=True)
    return states.swapaxes(0, 1) + last[:, None]


def count_up(x: Array) -> Array:
    return lax.fori_loop(0, 3, lambda i, y: y * 0.5 + i, x)


def conv(x: Array, dimensions: tuple[str, str, str], **options: object) -> Array:
    return lax.conv_general_dilated(
        x, KERNEL, (1,), "SAME", dimension_numbers=dimensions, **options
    )  # type: ignore[arg-type]


# By their names: functions of float32 x [b, t, 8] and int32 ids [b, t] with values of 0 to 7.
FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "arithmetic": lambda x, ids: -x * 2 + x / 3 - abs(x) ** 1.5 + x**2 + jnp.square(x) + x**-1,
    "whole numbers": lambda x, ids: (ids - 3) // 2 + lax.div(ids - 3, 2) + (ids - 3) ** 3,
    "remainders": lambda x, ids: lax.rem(x, 0.3) + (lax.rem(ids - 3, 2) + (ids - 3) % 2)[..., None],
    "exponents": lambda x, ids: jnp.exp(x) + jnp.expm1(x) + jnp.log(x * x) + jnp.log1p(x * x),
    "roots": lambda x, ids: jnp.sqrt(x * x) + lax.rsqrt(x * x + 1),
    "curves": lambda x, ids: jnp.sin(x) + jnp.cos(x) + jnp.tanh(x) + lax.erf(x) + lax.erfc(x),
    "activations": lambda x, ids: jax.nn.gelu(x) + jax.nn.silu(x) + jax.nn.elu(x) + jax.nn.relu6(x),
    "rounding": lambda x, ids: jnp.floor(3 * x) + jnp.ceil(3 * x) + jnp.sign(x),
    "comparisons": lambda x, ids: (
        (x < 0) + 2 * (x <= 0.5) + 4 * (x > 1) + 8 * (x >= -1) + 16 * (x == x) + 32 * (x != x)
    ),
    "logic": lambda x, ids: ((x < 0) & ~(x > -1)) | ((x < 1) ^ (ids > 3)[..., None]),
    "choices": lambda x, ids: jnp.where(ids[..., None] > 3, x, lax.clamp(-0.1, x, 0.1)),
    "not finite": lambda x, ids: jnp.nan_to_num(jnp.log(jnp.maximum(x, 0)), neginf=-3.0),
    "sums": lambda x, ids: x.sum(1) + x.max(1) + x.min(1) + x[:, :3].prod(1) + x.var(1),
    "all and any": lambda x, ids: 2 * jnp.all(x < 2, -1) + jnp.any(x > 1, -1),
    "largest": lambda x, ids: x.argmax(-1) + 10 * x.argmin(-1),
    "first that is true": lambda x, ids: (ids > 3).argmax(-1) - (ids > 3).argmin(-1),
    "rows or zeros": lambda x, ids: (
        jnp.asarray(KERNEL[0]).at[2 * ids].get(mode="fill", fill_value=0)
    ),
    "running sums": lambda x, ids: x.cumsum(1) + lax.cumsum(x, 1, reverse=True),
    "softmax": lambda x, ids: jax.nn.softmax(x, 1) + jax.nn.logsumexp(x, 1, keepdims=True),
    "products": lambda x, ids: x @ KERNEL[0] @ KERNEL[1].T + jnp.einsum("bth,buh->but", x, x) @ x,
    "heads": lambda x, ids: jnp.einsum("btnh,bunh->bntu", *[x.reshape(*x.shape[:2], 2, 4)] * 2),
    "vectors": lambda x, ids: KERNEL[0, :, 0] @ KERNEL[1, :, 0] + x.sum((0, 1)) @ KERNEL[0, :, 0],
    "convolution": lambda x, ids: conv(x, ("NWC", "WIO", "NWC")),
    "dilated convolution": lambda x, ids: conv(x.mT, ("NCW", "WIO", "NWC"), rhs_dilation=(2,)),
    "shapes": lambda x, ids: jnp.concatenate(
        [x.reshape(-1, 4).T.reshape(x.shape), jnp.tile(x[:, :1], (1, x.shape[1], 2))], -1
    ),
    "stack": lambda x, ids: jnp.stack(jnp.split(x, 2, -1), 1) + jnp.arange(x.shape[1])[:, None],
    "unstack": lambda x, ids: jnp.stack(jnp.unstack(x, axis=2)[::-1]),
    "padding": lambda x, ids: jnp.pad(x[:, 1:], ((0, 0), (1, 2), (0, 0)), constant_values=7),
    "slices": lambda x, ids: x[:, 1:-1, ::2] + jnp.flip(x, (1, 2))[:, 2:, :4] + x[:, -1:, 0:1],
    "sizes": lambda x, ids: x * x.shape[1] + jnp.arange(2 * x.shape[1] + 1).sum() // x.shape[0],
    "rows of a table": lambda x, ids: jnp.asarray(KERNEL[0])[ids] + KERNEL[1][3],
    "rows that are missing": lambda x, ids: (
        jnp.nan_to_num(jnp.take(jnp.asarray(KERNEL[0]), 2 * ids, 0), nan=9.0)
        + jnp.take(jnp.asarray(KERNEL[0]), 2 * ids, 0, mode="clip")
    ),
    "tokens at positions": lambda x, ids: jnp.take_along_axis(x, ids[..., None] % 5, 1),
    "batched rows": lambda x, ids: jax.vmap(lambda row, i: row[:, i])(x, ids % 5),
    "kept axes": lambda x, ids: jax.vmap(jax.vmap(window_at))(x, ids),
    "windows": lambda x, ids: (
        jax.vmap(lambda y, i: lax.dynamic_slice_in_dim(y, i, 3))(x, ids[:, 0])
        + lax.slice(x, (0, 1, 2), (x.shape[0], 4, 3), (1, 1, 2))
    ),
    "one window": lambda x, ids: window_at(x[0], ids[0, 0] + 5) + x[:, ids[0, 0] % 5][:, None],
    "loop": lambda x, ids: run_backwards(x),
    "loop over numbers": lambda x, ids: count_up(x),
    "calls": lambda x, ids: (
        jax.nn.relu(x) + gelu(x) + jax.checkpoint(jnp.sin)(x) + lax.stop_gradient(x)
    ),
    "types": lambda x, ids: (
        x.astype(jnp.bfloat16).astype(jnp.float32) * 0 + x.astype(int) + ids[..., None]
    ),
}
# Of other versions of JAX, or without an equation of their own.
_OTHER = {"add_any", "closed_call", "core_call", "copy_p", "expand_dims", "optimization_barrier"}
_OTHER |= {"pjit", "remat", "checkpoint", "reduce_precision", "copy"}


def trace(function: Callable[[Array, Array], Array]) -> jax.extend.core.ClosedJaxpr:
    scope = export.SymbolicScope(["t <= 32", "t >= 5"])
    b, t = export.symbolic_shape("b, t", scope=scope)
    shapes = jax.ShapeDtypeStruct((b, t, 8), jnp.float32), jax.ShapeDtypeStruct((b, t), jnp.int32)
    return jax.make_jaxpr(function)(*shapes)


def convert(function: Callable[[Array, Array], Array]) -> onnx.ModelProto:
    """Return the graph of a function."""
    graph = Graph({})
    sizes = {"b": graph.add("Shape", "x", start=0, end=1)}
    sizes["t"] = graph.add("Shape", "x", start=1, end=2)
    (output,) = Converter(graph, sizes).run(trace(function), ["x", "ids"])
    graph.add("Cast", output, to=onnx.TensorProto.FLOAT, output="y")
    declare, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [
        declare("x", types.FLOAT, ("b", "t", 8)), declare("ids", types.INT64, ("b", "t")),
    ]  # fmt: skip
    outputs = [declare("y", types.FLOAT, None)]
    body = onnx.helper.make_graph(graph.nodes, "function", inputs, outputs, graph.initializers)
    opset = onnx.helper.make_operatorsetid("", 20)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=9)


@pytest.mark.seconds
@pytest.mark.parametrize("name", FUNCTIONS)
def test_graph_computes_the_function(name: str) -> None:
    session = onnxruntime.InferenceSession(convert(FUNCTIONS[name]).SerializeToString())
    draw = np.random.default_rng(1)
    for size in SIZES:
        x, ids = draw.normal(size=(*size, 8)).astype(np.float32), draw.integers(0, 8, size)
        (found,) = session.run(None, {"x": x, "ids": ids})
        expected = FUNCTIONS[name](jnp.asarray(x), jnp.asarray(ids, jnp.int32))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.seconds
def test_each_conversion_is_tested() -> None:
    used: set[str] = set()

    def collect(jaxpr: jax.extend.core.Jaxpr) -> None:
        for eqn in jaxpr.eqns:
            used.add(eqn.primitive.name)
            for value in eqn.params.values():
                if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
                    collect(getattr(value, "jaxpr", value))

    for function in FUNCTIONS.values():
        collect(trace(function).jaxpr)
    assert _CONVERSIONS.keys() - used - _OTHER == set()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, ids: jnp.sort(x, 1), "^sort$"),
        (lambda x, ids: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x), "^while$"),
        (lambda x, ids: x.at[:, 0].set(1), "^scatter$"),
        (lambda x, ids: ids & 1, "^and of int32$"),
        (lambda x, ids: ids.astype(jnp.uint32), "^convert_element_type of uint32$"),
        (lambda x, ids: lax.pad(x, 0.0, [(0, 0, 0), (0, 0, 1), (0, 0, 0)]), "^pad between"),
    ],
    ids=["sort", "while", "scatter", "and", "uint32", "pad"],
)
def test_operations_without_a_counterpart_are_named(function, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        convert(function)
