"""Ops that TensorRT lacks and that ONNX itself defines by other ops: the definition takes the place of the node."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from aot.onnx_input._instead import Instead, standard
from aot.passes._edit import array

OPS = frozenset(
    ["AffineGrid", "Attention", "BlackmanWindow", "CausalConvWithState", "CenterCropPad", "DynamicQuantizeLinear",
     "HammingWindow", "HannWindow", "LinearAttention", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss",
     "RMSNormalization", "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "Swish"]
)  # fmt: skip
"""Read of the parser of TensorRT-RTX 1.7. It has Attention in FP16 only, and of one output."""
_SMALL = 64


def write_out(model: ir.Model, keep: Collection[str] = ()) -> int:
    """Replace every node of `OPS` but those of `keep` by its definition, in place; returns how many.

    A node whose definition depends on what is not known (a rank, a dtype) stays.
    """
    opset = model.graph.opset_imports[""]
    sites = 0
    for node in tuple(model.graph.all_nodes()):
        if node.graph is not None and standard(node, *OPS) and node.op_type not in keep:
            sites += _replace(node, opset)
    return sites


def _replace(node: ir.Node, opset: int) -> int:
    body = _defined(node, opset)
    if body is None:
        return 0
    put = Instead(node)
    outer = {str(value.name): value for value in node.inputs if value is not None}
    for value in body.inputs:
        ir.convenience.replace_all_uses_with(value, outer[str(value.name)])
    for name, value in tuple(body.initializers.items()):
        ir.convenience.replace_all_uses_with(value, outer[name])
    results = list(body.outputs)
    inner = list(body)
    body.outputs.clear()
    body.remove(inner)
    for one in inner:
        one.metadata_props.update(node.metadata_props)
        one.name = f"{node.name}_{one.name or one.op_type}"
        for out in one.outputs:
            out.name = f"{node.name}_{out.name}" if out.name else None
    assert node.graph is not None
    node.graph.insert_before(node, inner)
    by_name = dict(zip([str(out.name) for out in node.outputs if out.name], results, strict=True))
    return put.done(*(by_name.get(str(out.name)) for out in node.outputs))


def _defined(node: ir.Node, opset: int) -> ir.Graph | None:
    """The definition as a graph of the node's inputs and outputs, from a model of this node alone."""
    import onnx
    from onnx import inliner

    values = dict.fromkeys(value for value in node.inputs if value is not None)
    if any(value.dtype is None or value.shape is None for value in values):
        return None
    alone = ir.serde.serialize_node(node)
    for name, described in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
        if name not in node.attributes and described.default_value.name:
            alone.attribute.append(described.default_value)
    graph = onnx.GraphProto(name="definition", node=[alone])
    for value in values:
        known = array(value)
        if known is not None and known.size <= _SMALL and value.const_value is not None:
            # A definition may look at what a small constant holds.
            tensor = ir.serde.serialize_tensor(ir.tensor(known, name=value.name))
            graph.initializer.append(tensor)
        else:
            graph.input.append(ir.serde.serialize_value(value))
    for out in node.outputs:
        if out.name:
            graph.output.append(ir.serde.serialize_value(out))
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=[onnx.helper.make_opsetid("", opset)])
    try:
        made = inliner.inline_selected_functions(model, [("", node.op_type)], inline_schema_functions=True)
    except (RuntimeError, ValueError):
        return None
    loaded = ir.from_proto(made).graph
    return None if any(one.op_type == node.op_type for one in loaded) else loaded
