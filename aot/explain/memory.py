"""Estimates of memory: the engine's size, its activations, and what building it takes. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from aot.declaration import Dim, ModelSpec
from aot.explain.findings import Memory
from aot.profile import Profile

if TYPE_CHECKING:
    import onnx_ir as ir

# Fitted to plans of MiniLM and MobileNetV2 in four precisions, by TensorRT-RTX 1.7 and TensorRT 10.6: within 25 %.
KERNELS = 16 << 10
"""Bytes of a plan for one node: kernels and what says how to launch them, beside the weights."""
# Fitted to the peak of the process that built them.
BUILDER = 200 << 20
"""Bytes of the host that a builder takes for itself."""
COPIES = 4
"""How often the weights are in the host's memory while a builder works."""

# A view is no copy, and arithmetic on single elements is done where the values are.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_IN_PLACE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Pow", "Erf", "Relu", "Clip", "Min"}
    | {
        "Max",
        "Where",
        "Tanh",
        "Sigmoid",
        "Gelu",
        "Cast",
        "QuantizeLinear",
        "DequantizeLinear",
        "LeakyRelu",
        "HardSwish",
    }
    | {"HardSigmoid", "Elu", "Not", "And", "Or", "Equal", "Greater", "Less", "BatchNormalization", "Softmax"}
    | {"LayerNormalization"}
)


def estimate(model: ir.Model, spec: ModelSpec, profiles: tuple[Profile, ...]) -> Memory:
    """Estimate for a graph in its final dtypes, at the largest size that any profile gives a Dim. Changes its shapes.

    Activations are an upper bound: what a builder fuses never reaches memory.
    """
    weights = sum(_bytes(value) or 0 for value in model.graph.initializers.values())
    largest = {name: max(profile[name][2] for profile in profiles) for name in spec.dims}
    _fix(model, spec, largest)
    activations, unknown = _peak(model.graph)
    engine = weights + KERNELS * len(model.graph)
    return Memory(engine, weights, activations, BUILDER + COPIES * weights, unknown)


def _fix(model: ir.Model, spec: ModelSpec, sizes: Mapping[str, int]) -> None:
    """Give every value the shape it has at these sizes, as far as inference goes."""
    import onnx_ir as ir
    from onnx_ir.passes.common import ShapeInferencePass

    for value in model.graph.inputs:
        declared = spec.inputs.get(str(value.name))
        if declared is not None:
            value.shape = ir.Shape(sizes[d.name] if isinstance(d, Dim) else d for d in declared.shape)
    for value in _computed(model.graph):
        if value.shape is not None and not value.shape.is_static():
            # What is not a Dim by itself (a sum of two, say) is for inference to find.
            value.shape = ir.Shape(d if isinstance(d, int) else sizes.get(str(d.value)) for d in value.shape)
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def _computed(graph: ir.Graph) -> Iterator[ir.Value]:
    return (value for node in graph for value in node.outputs)


def _bytes(value: ir.Value) -> int | None:
    """None where dtype or shape are not known."""
    if value.dtype is None or value.shape is None or not value.shape.is_static():
        return None
    return -(-prod(d for d in value.shape if isinstance(d, int)) * value.dtype.bitwidth // 8)


def _peak(graph: ir.Graph) -> tuple[int, int]:
    """The largest sum of buffers that live at once in the graph's order, and how many values of unknown size there are.

    The caller's own buffers (inputs and outputs) and constants are not counted.
    """
    order = {node: index for index, node in enumerate(graph)}
    buffer: dict[ir.Value, ir.Value] = {}
    size: dict[ir.Value, int] = {}
    last: dict[ir.Value, int] = {}
    unknown = 0
    for index, node in enumerate(graph):
        for value in node.outputs:
            known = _bytes(value)
            unknown += known is None and bool(value.uses())
            home = _home(node, value, buffer)
            buffer[value] = home
            size[home] = max(size.get(home, 0), known or 0)
            uses = [order.get(use.node, index) for use in value.uses()]
            last[home] = max([last.get(home, index), index, *uses])
    kept = {buffer[value] for value in graph.outputs if value in buffer}
    ends: dict[int, list[ir.Value]] = {}
    for home, index in last.items():
        ends.setdefault(index, []).append(home)
    live, peak = 0, 0
    for index, node in enumerate(graph):
        live += sum(size[value] for value in node.outputs if buffer[value] is value and value not in kept)
        peak = max(peak, live)
        live -= sum(size[home] for home in ends.get(index, ()) if home not in kept)
    return peak, unknown


def _home(node: ir.Node, value: ir.Value, buffer: Mapping[ir.Value, ir.Value]) -> ir.Value:
    """The value whose buffer this one shares; itself where it has one of its own."""
    view = node.op_type in _VIEWS
    if (view or node.op_type in _IN_PLACE) and len(node.outputs) == 1:
        for given in node.inputs[: 1 if view else None]:
            if given is None or given not in buffer or given.is_graph_output():
                continue
            # In place: nobody else reads it, and it is no fraction of the result, as what is broadcast would be.
            alone = len(given.uses()) == 1 and (_bytes(given) or 0) >= (_bytes(value) or 0) // 4
            if view or alone:
                return buffer[given]
    return value
