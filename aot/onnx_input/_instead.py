"""Writing nodes in the place of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir


class Instead:
    """Nodes that take the place of `node`: in front of it, with its metadata, named after it.

    Constants are Constant nodes, so that the same code serves subgraphs; a cleaning pass lifts them later.
    """

    def __init__(self, node: ir.Node) -> None:
        assert node.graph is not None
        self.node = node
        self._graph = node.graph
        self._made = 0

    def op(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any] | None = None, outputs: int = 1
    ) -> ir.Value:
        """Add a node of the standard domain; its first output."""
        return self.ops(op, inputs, attributes, outputs)[0]

    def ops(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any] | None = None, outputs: int = 1
    ) -> Sequence[ir.Value]:
        """Add a node of the standard domain; its outputs."""
        self._made += 1
        base = self.node.name or next((out.name for out in self.node.outputs if out.name), None) or self.node.op_type
        given = {name: value for name, value in (attributes or {}).items() if value is not None}
        made = ir.node(
            op,
            list(inputs),
            given,
            num_outputs=outputs,
            name=f"{base}_{op}_{self._made}",
            metadata_props=dict(self.node.metadata_props),
        )
        for index, out in enumerate(made.outputs):
            out.name = f"{base}_{op}_{self._made}_{index}"
        self._graph.insert_before(self.node, made)
        return made.outputs

    def constant(self, data: np.ndarray[Any, Any] | ir.TensorProtocol) -> ir.Value:
        """A constant."""
        tensor = ir.tensor(data) if isinstance(data, np.ndarray) else data
        value = self.op("Constant", [], {"value": ir.AttrTensor("value", tensor)})
        value.shape, value.dtype, value.const_value = ir.Shape(tensor.shape.numpy()), tensor.dtype, tensor
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """A vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def scalar_like(self, value: ir.Value | None, number: float) -> ir.Value:
        """A scalar of the dtype of `value`, float32 where that is not known."""
        dtype = value.dtype if value is not None and value.dtype is not None else ir.DataType.FLOAT
        return self.constant(np.array(number, dtype.numpy()))

    def done(self, *values: ir.Value | None) -> int:
        """Let the readers of the node's outputs read these values, and remove the node; returns 1, a site.

        None stands for an output that has no reader. An output of the graph keeps its name.
        """
        for old, new in zip(self.node.outputs, values, strict=False):
            if new is None:
                continue
            if old.is_graph_output():
                if new.is_graph_output() or new.producer() is None:
                    new = self.op("Identity", [new])
                new.name = old.name
            if new.type is None:
                new.type = old.type
            if new.shape is None:
                new.shape = old.shape
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        self._graph.remove(self.node, safe=True)
        return 1


def unread(value: ir.Value) -> bool:
    """Whether nothing reads the value, so that it need not be made."""
    return not value.is_graph_output() and not tuple(value.uses())


def standard(node: ir.Node, *ops: str) -> bool:
    """Whether the node is one of these ops of the ONNX domain."""
    return node.domain in ("", "ai.onnx") and node.op_type in ops


def given(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None
