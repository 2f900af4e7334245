"""Linear layers as quantization sees them: which operand is the weight, on which axis its outputs are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from aot import origins
from aot.precision.reading import attribute, is_constant


@dataclass(frozen=True)
class Layer:
    """A linear node. activation: the index of the input it transforms; weight: the index of the constant operand,
    None where both operands are computed (attention). axis: the weight's axis of output channels, None where one
    scale must serve the whole weight. inputs, outputs: channels (of a product, the size that is summed over and the
    one that the weight adds), None where unknown. groups: of a convolution. taps: of its filter.
    """

    node: ir.Node
    activation: int
    weight: int | None
    axis: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    groups: int = 1
    taps: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether every input channel has its own filter."""
        return self.groups > 1 and self.groups == self.inputs


def describe(node: ir.Node) -> Layer | None:
    """Read a MatMul, Gemm, Conv or ConvTranspose; None for any other node and for a vector operand."""
    if node.op_type == "MatMul":
        return _matmul(node)
    if node.op_type == "Gemm":
        return _gemm(node)
    if node.op_type in {"Conv", "ConvTranspose"} and is_constant(node.inputs[1]):
        return _convolution(node)
    return None


def _matmul(node: ir.Node) -> Layer | None:
    """The weight is [..., K, N] on the right or [..., M, K] on the left; with leading axes, all of its matrices share
    a scale for each output channel."""
    left, right = node.inputs[0], node.inputs[1]
    if is_constant(right):
        sizes = _sizes(right)
        if len(sizes) < 2:
            return None
        return Layer(node, 0, 1, axis=len(sizes) - 1, inputs=sizes[-2], outputs=sizes[-1])
    if is_constant(left):
        sizes = _sizes(left)
        if len(sizes) < 2:
            return None
        return Layer(node, 1, 0, axis=len(sizes) - 2, inputs=sizes[-1], outputs=sizes[-2])
    return Layer(node, 0, None, inputs=_last(left), outputs=_last(right))


def _gemm(node: ir.Node) -> Layer | None:
    """A is [M, K], or [K, M] with transA; B is [K, N], or [N, K] with transB."""
    if is_constant(node.inputs[1]):
        first, second = _sizes(node.inputs[1])
        if attribute(node, "transB", 0):
            return Layer(node, 0, 1, axis=0, inputs=second, outputs=first)
        return Layer(node, 0, 1, axis=1, inputs=first, outputs=second)
    if is_constant(node.inputs[0]):
        first, second = _sizes(node.inputs[0])
        if attribute(node, "transA", 0):
            return Layer(node, 1, 0, axis=1, inputs=first, outputs=second)
        return Layer(node, 1, 0, axis=0, inputs=second, outputs=first)
    return None


def _convolution(node: ir.Node) -> Layer | None:
    """The weight is [outputs, inputs / groups, ...]; of a transposed convolution [inputs, outputs / groups, ...]."""
    groups = attribute(node, "group", 1)
    first, second, *kernel = _sizes(node.inputs[1])
    if first is None or second is None:
        return None
    taps = math.prod(size or 1 for size in kernel)
    if node.op_type == "Conv":
        return Layer(node, 0, 1, 0, inputs=second * groups, outputs=first, groups=groups, taps=taps)
    # With groups, one index of axis 1 stands for a channel of every group, so no axis fits.
    axis = 1 if groups == 1 else None
    return Layer(node, 0, 1, axis, inputs=first, outputs=second * groups, groups=groups, taps=taps)


def _sizes(value: ir.Value | None) -> tuple[int | None, ...]:
    if value is None or value.const_value is None:
        return (None, None)
    return tuple(d if isinstance(d, int) else None for d in value.const_value.shape)


def _last(value: ir.Value | None) -> int | None:
    size = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) else None


def places(node: ir.Node) -> tuple[str, ...]:
    """What a `keep` pattern is matched with: the node's name, the path of its module and of those around that, and the
    module that owns its weight. A convolution that swallowed its batch norm is the norm's, and has its own weight.
    """
    names = [node.name or "", *origins.modules(origins.of(node))]
    owners = (v.name.rpartition(".")[0] for v in node.inputs if is_constant(v) and v is not None and v.name)
    names += [owner for owner in owners if owner]
    return tuple(dict.fromkeys(names))
