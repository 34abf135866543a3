"""Layout of parameters for prediction on CPUs: one array per layer, kernels transposed.

XLA for CPUs copies a layer's slice out of a stacked array at every call. For a short text the copy
takes longer than the computation. A product of up to 64 tokens with a kernel stored as [out, in]
takes half to three quarters of the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.mesh.sharding import parameter_name, stack_layers
from bertjax.model.bert_config import BertConfig
from bertjax.model.layers import transposed_kernels
from bertjax.steps.optimizer import is_stacked


class CpuLayout:
    """The layout of a model's parameters for prediction; the identity unless CPUs hold whole copies.

    Args:
      config: the encoder.
      mesh: the devices that predict.
    """

    def __init__(self, config: BertConfig, mesh: Mesh) -> None:
        replicated = mesh.size == mesh.shape["data"]
        cpu = mesh.devices.flat[0].platform == "cpu"
        self._applies = cpu and replicated and not config.scan_layers
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
        with transposed_kernels():
            return function(
                stack_layers(jax.tree_util.tree_map_with_path(_transpose_kernel, params))
            )

    def _map(self, params: Any, place: Callable[[Any, int | None, bool], Any]) -> Any:
        if not self._applies:
            return params

        def layout_leaf(path: tuple[Any, ...], leaf: Any) -> Any:
            name = parameter_name(path)
            is_kernel = name.endswith("/kernel")
            if is_stacked(name):
                return tuple(place(leaf, layer, is_kernel) for layer in range(self._num_layers))
            return place(leaf, None, True) if is_kernel else leaf

        return jax.tree_util.tree_map_with_path(layout_leaf, params)


def _transpose_kernel(path: tuple[Any, ...], leaf: Any) -> Any:
    return leaf.T if "/kernel" in parameter_name(path) else leaf
