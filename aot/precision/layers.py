"""Linear layers as quantization sees them: which operand is the weight, on which axis its outputs are."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from aot import origins
from aot.precision.reading import attribute, is_constant


@dataclass(frozen=True)
class Layer:
    """A linear node. activation: the index of the input it transforms; weight: the index of the constant operand,
    None where both operands are computed (attention). axis: the weight's axis of output channels, None where one
    scale must serve the whole weight. inputs, outputs: channels, None where unknown. groups: of a convolution.
    """

    node: ir.Node
    activation: int
    weight: int | None
    axis: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    groups: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether every input channel has its own filter."""
        return self.groups > 1 and self.groups == self.inputs


def describe(node: ir.Node) -> Layer | None:
    """Read a MatMul, Gemm, Conv or ConvTranspose; None for any other node and for a vector operand."""
    if node.op_type == "MatMul":
        return _matmul(node)
    if node.op_type == "Gemm" and is_constant(node.inputs[1]):
        rows, columns = _sizes(node.inputs[1])
        if attribute(node, "transB", 0):
            return Layer(node, 0, 1, axis=0, inputs=columns, outputs=rows)
        return Layer(node, 0, 1, axis=1, inputs=rows, outputs=columns)
    if node.op_type in {"Conv", "ConvTranspose"} and is_constant(node.inputs[1]):
        groups = attribute(node, "group", 1)
        first, second = _sizes(node.inputs[1])[:2]
        if first is None or second is None:
            return None
        if node.op_type == "Conv":
            return Layer(node, 0, 1, axis=0, inputs=second * groups, outputs=first, groups=groups)
        # With groups, one index of axis 1 stands for a channel of every group, so no axis fits.
        axis = 1 if groups == 1 else None
        return Layer(node, 0, 1, axis=axis, inputs=first, outputs=second * groups, groups=groups)
    return None


def _matmul(node: ir.Node) -> Layer | None:
    left, right = node.inputs[0], node.inputs[1]
    if is_constant(right):
        sizes = _sizes(right)
        if len(sizes) < 2:
            return None
        return Layer(node, 0, 1, axis=1 if len(sizes) == 2 else None, inputs=sizes[-2], outputs=sizes[-1])
    if is_constant(left):
        sizes = _sizes(left)
        if len(sizes) < 2:
            return None
        return Layer(node, 1, 0, axis=0 if len(sizes) == 2 else None, inputs=sizes[-1], outputs=sizes[-2])
    return Layer(node, 0, None)


def _sizes(value: ir.Value | None) -> tuple[int | None, ...]:
    if value is None or value.const_value is None:
        return (None, None)
    return tuple(d if isinstance(d, int) else None for d in value.const_value.shape)


def places(node: ir.Node) -> tuple[str, ...]:
    """What a `keep` pattern is matched with: the node's name, the path of its module and of those around that, and the
    module that owns its weight. A convolution that swallowed its batch norm is the norm's, and has its own weight.
    """
    names = [node.name or "", *origins.modules(origins.of(node))]
    owners = (v.name.rpartition(".")[0] for v in node.inputs if is_constant(v) and v is not None and v.name)
    names += [owner for owner in owners if owner]
    return tuple(dict.fromkeys(names))
