"""What makes a file no ONNX model whatever is done with it: names that nothing gives, sizes that do not fit.

It is looked for before anything is asked of the user, and without reading large weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aot.errors import GraphError

if TYPE_CHECKING:
    import onnx

_SMALL = 64
"""Elements up to which a weight may be a shape or axes, which sizes follow from."""

_MISFIT = re.compile(r"\(op_type:[^,)]*, node name: (\d+)\): \[ShapeInferenceError\] ([^\n]+)")


def check(proto: onnx.ModelProto, where: str) -> None:
    """Raise GraphError for an opset that onnx does not know yet, two inputs of one name, a value that nothing makes,
    or a node whose inputs cannot have the sizes that they have."""
    import onnx

    known = onnx.defs.onnx_opset_version()
    opset = max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=known)
    if opset > known:
        raise GraphError(
            f"opset {opset} is newer than the onnx installed here knows ({known})",
            where=where,
            fix=f"pip install --upgrade onnx, or export the model with opset_version={known} or an older one",
        )
    inputs = [value.name for value in proto.graph.input]
    twice = next((name for name in inputs if inputs.count(name) > 1), None)
    if twice is not None:
        raise GraphError(
            f"not a valid ONNX model: two inputs are called '{twice}'", where=where, fix="give each a name of its own"
        )
    for user, name in _unmade(proto.graph, frozenset()):
        raise GraphError(
            f"not a valid ONNX model: {user} '{name}', which nothing in it makes",
            where=where,
            fix="export the model again; a part of it was cut off",
        )
    if opset >= 7:  # before it, sizes were made to fit by attributes
        _check_sizes(proto, where)


def node_title(node: onnx.NodeProto) -> str:
    """`node 'name' (Op)`, by its first output where it has no name."""
    op = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return f"node '{node.name or next(iter(node.output), '')}' ({op})"


def _unmade(graph: onnx.GraphProto, outside: frozenset[str]) -> Iterator[tuple[str, str]]:
    made = {value.name for value in (*graph.input, *graph.initializer)}
    made |= {sparse.values.name for sparse in graph.sparse_initializer}
    made |= {name for node in graph.node for name in node.output}
    names = outside | made | {""}
    for node in graph.node:
        yield from ((f"{node_title(node)} reads", name) for name in node.input if name not in names)
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _unmade(inner, names)
    yield from (("an output is", value.name) for value in graph.output if value.name not in names)


def _check_sizes(proto: onnx.ModelProto, where: str) -> None:
    """Let onnx infer the sizes of a copy without large weights, whose nodes have their index as name.

    Nodes with subgraphs stay out of it: a branch that is never taken may not fit. So do the sizes that the file states
    for inner values and outputs: exporters write those of their example.
    """
    import onnx

    light = onnx.ModelProto(ir_version=max(proto.ir_version, 4), opset_import=proto.opset_import)
    graph = light.graph
    graph.name = "sizes"
    weights = {weight.name for weight in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in weights:
            put = graph.input.add()
            put.CopyFrom(value)
            for dim in put.type.tensor_type.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value <= 0:
                    dim.Clear()
    for weight in proto.graph.initializer:
        count = 1
        for size in weight.dims:
            count *= size
        if count <= _SMALL and weight.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.add().CopyFrom(weight)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    for index, node in enumerate(proto.graph.node):
        if not any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = str(index)
    try:
        onnx.shape_inference.infer_shapes(light, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        found = _MISFIT.search(str(error))
        if found is not None:
            raise GraphError(
                f"not a valid ONNX model: {found[2].strip()}",
                where=f"{node_title(proto.graph.node[int(found[1])])} in {where}",
                fix="export the model again; its inputs do not have the sizes that this node needs",
            ) from error
