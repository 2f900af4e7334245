"""Layers whose result is a small difference of large numbers: they multiply rounding errors.

A bias far larger than any output is met by a product of the same size and the opposite sign. Where the ratio is
100, an FP8 product that is off by 3 % is off by three times the output. Batch normalization over a channel that
hardly varies, folded into its convolution, does this.
"""

from __future__ import annotations

import onnx_ir as ir

from aot.precision.reading import Observed, constant, consumers, figure, is_constant

# Quantized layers: a bias this many times the largest output.
RATIO = 4.0
# Floats: the share of the output that one rounding of the compute dtype may come to.
SHARE = 0.25
_UNARY = {"Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "Gelu", "Reshape", "Transpose", "Flatten", "Identity"}


def cancelling(graph: ir.Graph, observed: Observed, limit: float = RATIO) -> dict[ir.Node, str]:
    """The layers that multiply errors by more than `limit`, and those that feed one directly.

    The former need their product exact, the latter their output.
    """
    ratios = {node: ratio for node in graph if (ratio := _ratio(node, observed)) is not None and ratio[0] > limit}
    found: dict[ir.Node, str] = {}
    for node, (growth, bias, amax) in ratios.items():
        found[node] = (
            f"a bias of {figure(bias)} cancels against the product to outputs of {figure(amax)} at most: "
            f"rounding errors grow {growth:.0f} times"
        )
    for node, (growth, _, _) in ratios.items():
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        while source is not None and source.op_type in _UNARY:
            source = source.inputs[0].producer() if source.inputs[0] is not None else None
        if source is not None:
            found.setdefault(source, f"feeds {node.name}, which multiplies rounding errors by {growth:.0f}")
    return found


def _ratio(node: ir.Node, observed: Observed) -> tuple[float, float, float] | None:
    """(bias / output, bias, output) by largest magnitudes; None for a node without bias or observed output."""
    bias, output = _bias(node)
    array, amax = constant(bias), observed.of(output)
    if array is None or not array.size or not amax:
        return None
    largest = float(abs(array).max())
    return largest / amax, largest, amax


def _bias(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """The bias and the value it has been added to: an input of its own, or the Add behind a MatMul."""
    if node.op_type in {"Conv", "ConvTranspose", "Gemm"} and len(node.inputs) > 2:
        return node.inputs[2], node.outputs[0]
    users = consumers(node.outputs[0]) if node.op_type == "MatMul" else []
    if len(users) == 1 and users[0].op_type == "Add":
        other = next((v for v in users[0].inputs if is_constant(v)), None)
        return other, users[0].outputs[0]
    return None, None
