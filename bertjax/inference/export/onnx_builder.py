"""A graph of ONNX operators that grows."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bertjax.mesh.sharding import named_leaves


class Graph:
    """A graph that grows by operators.

    Attributes:
      params: parameters by name.
      read: names of those that operators read.
      nodes: operators in the order of their computation.
      initializers: constants and parameters.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params: dict[str, np.ndarray] = dict(named_leaves(params))
        self.read: set[str] = set()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._num_names = 0

    def add(self, operator_name: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operator and return the name of its output, chosen by default."""
        output = output or self.new_name(operator_name.lower())
        self.add_node(operator_name, inputs, [output], **attributes)
        return output

    def add_node(
        self, operator_name: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add an operator with any number of outputs."""
        name = self.new_name(operator_name)
        self.nodes.append(helper.make_node(operator_name, inputs, outputs, name, **attributes))

    def new_name(self, prefix: str) -> str:
        """Return a name that no array and no operator has, here and in the bodies of loops."""
        self._num_names += 1
        return f"{prefix}_{self._num_names}"

    @contextlib.contextmanager
    def body(self) -> Iterator[list[onnx.NodeProto]]:
        """Yield the operators that the block adds, those of a body of a loop."""
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def constant(self, value: Any) -> str:
        """Return the name of a constant, one for equal values."""
        array = np.asarray(value)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """Return the name of a constant vector of int64."""
        return self.constant(np.array(values, np.int64))

    def param(self, name: str, layer: int | None = None) -> str:
        """Return the name of a parameter, of one layer if it is stacked over layers."""
        array = np.asarray(self.params[name], np.float32)
        initializer = name
        if layer is not None:
            array, initializer = array[layer], name.replace("blocks", f"blocks/{layer}")
        if name not in self.read or layer is not None:
            self.initializers.append(numpy_helper.from_array(array, initializer))
        self.read.add(name)
        return initializer

    def dense(self, x: str, name: str, layer: int | None = None, output: str = "") -> str:
        """Return x times a kernel plus a bias."""
        product = self.add("MatMul", x, self.param(f"{name}/kernel", layer))
        return self.add("Add", product, self.param(f"{name}/bias", layer), output=output)

    def layer_norm(self, x: str, name: str, eps: float, layer: int | None = None) -> str:
        """Return the normalized vectors."""
        params = (self.param(f"{name}/{leaf}", layer) for leaf in ("scale", "bias"))
        return self.add("LayerNormalization", x, *params, epsilon=eps)

    def activation(self, x: str, name: str) -> str:
        """Return an activation of `bertjax.model.layers.ACTIVATIONS`."""
        if name == "relu":
            return self.add("Relu", x)
        return self.add("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")
