"""Prediction on CPUs: parameters in the layout that products of few vectors read fastest.

Nothing outside this file depends on the layout: the modules compute what they compute elsewhere.
Each part is faster for BERT-Base filling one mask in 32 tokens, float32 on two cores of a Xeon
(processor time per call):

- XLA copies a layer's slice out of a stacked array at every call. One array per layer:
  246 -> 105 ms.
- XLA packs the second factor of a product at every call. Packing a matrix takes longer than
  multiplying it by few vectors. With the matrix first: 94 -> 78 ms.
- A matrix comes first without a copy if it is stored as [out, in]. Together: 105 -> 78 ms.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.export import is_symbolic_dim
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.mesh.device_mesh import is_traced_for_cpu
from bertjax.mesh.sharding import map_named, stack_layers
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Dense

_MAX_FEW_VECTORS = 64


def matmul_transposed(x: Array, matrix: Array, dtype: jax.typing.DTypeLike) -> Array:
    """Return x [..., n] times the transpose of a matrix [m, n], [..., m], summed in `dtype`."""
    if (
        not is_traced_for_cpu()
        or any(map(is_symbolic_dim, x.shape))
        or x.size > _MAX_FEW_VECTORS * x.shape[-1]
    ):
        return jnp.einsum("...n,mn->...m", x, matrix, preferred_element_type=dtype)
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    columns = jnp.einsum("mn,bn->mb", matrix, flat, preferred_element_type=dtype)
    # Without the barrier the compiler would swap the factors back.
    return jax.lax.optimization_barrier(columns).T.reshape(*x.shape[:-1], len(matrix))


class TransposedKernel:
    """A kernel [in, out] of `Dense`, stored as [out, in].

    It is for products in a loop. XLA does not move a transpose out of the loop's body, so that each
    iteration would copy every kernel: 29 -> 8 ms of processor time per token of a model of 6 layers
    of 384.

    Args:
      stored: the transposed kernel, computed outside the loop.
    """

    def __init__(self, stored: Array) -> None:
        self.T = stored
        self.shape = stored.shape[::-1]

    def astype(self, dtype: jax.typing.DTypeLike) -> "TransposedKernel":
        """Return the kernel in a dtype."""
        return TransposedKernel(self.T.astype(dtype))


def transpose_kernels(params: Any) -> Any:
    """Return parameters whose kernels are a `TransposedKernel` in programs for CPUs.

    Modules read them under `multiply_transposed_kernels`.
    """
    if not is_traced_for_cpu():
        return params
    return map_named(
        lambda name, x: TransposedKernel(x.T) if name.endswith("kernel") else x, params
    )


def multiply_transposed_kernels(function: Callable[[], Any]) -> Any:
    """Return the result of a traced function whose modules have such kernels."""
    if not is_traced_for_cpu():
        return function()
    with nn.intercept_methods(_multiply_stored_transposed):
        return function()


class CpuLayout:
    """The layout of parameters for prediction, the identity unless every CPU holds all of them.

    Args:
      config: shape of the encoder.
      mesh: the devices that predict.
    """

    def __init__(self, config: BertConfig, mesh: Mesh) -> None:
        replicated = mesh.size == mesh.shape["data"]
        cpu = mesh.devices.flat[0].platform == "cpu"
        # `jax.device_put` would send what it places to the other processes.
        is_local = all(d.process_index == jax.process_index() for d in mesh.devices.flat)
        self._applies = cpu and is_local and replicated and not config.scan_layers
        self._num_layers = config.num_hidden_layers
        self._sharding = NamedSharding(mesh, PartitionSpec())

    def shapes(self, param_shapes: Any) -> Any:
        """Return the laid-out parameters as `jax.ShapeDtypeStruct` with shardings."""

        def place(leaf: Any, layer: int | None, transposed: bool) -> jax.ShapeDtypeStruct:
            shape = leaf.shape if layer is None else leaf.shape[1:]
            shape = shape[::-1] if transposed else shape
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self._sharding)

        return self._map(param_shapes, place)

    def place(self, params: Any) -> Any:
        """Return the laid-out parameters as arrays, without copies where the device allows it."""

        def place(leaf: Any, layer: int | None, transposed: bool) -> jax.Array:
            array = np.asarray(leaf) if layer is None else np.asarray(leaf)[layer]
            return jax.device_put(array.T if transposed else array, self._sharding)

        return self._map(params, place)

    def apply(self, function: Callable[[Any], Any], params: Any) -> Any:
        """Call a traced function of stacked parameters with laid-out ones."""
        if not self._applies:
            return function(params)
        # Those of blocks have the number of their layer.
        transposed = map_named(
            lambda name, x: x.T if re.search(r"/kernel(/\d+)?$", name) else x, params
        )
        with nn.intercept_methods(_multiply_stored_transposed):
            return function(stack_layers(transposed))

    def _map(self, params: Any, place: Callable[[Any, int | None, bool], Any]) -> Any:
        if not self._applies:
            return params

        def layout_leaf(name: str, leaf: Any) -> Any:
            is_kernel = name.endswith("/kernel")
            if "/blocks/" in name:
                return tuple(place(leaf, layer, is_kernel) for layer in range(self._num_layers))
            return place(leaf, None, True) if is_kernel else leaf

        return map_named(layout_leaf, params)


def _multiply_stored_transposed(
    method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext
) -> Any:
    """Replace `Dense.matmul` by a product with the kernel as it is stored, [out, in]."""
    if not (isinstance(context.module, Dense) and context.method_name == "matmul"):
        return method(*args, **kwargs)
    x, kernel = args
    return matmul_transposed(x, kernel.T, x.dtype)
