"""What makes a file no ONNX model whatever is done with it: names that nothing gives, nodes that fit no op.

It is looked for before anything is asked of the user, and without reading large weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import GraphError
from aot.onnx_input.reading import not_whole

if TYPE_CHECKING:
    import onnx

_SMALL = 64
"""Elements up to which a weight may be a shape or axes, which sizes follow from."""

STANDARD = frozenset({"SimplifiedLayerNormalization"})
"""Ops of onnxruntime that its tools write into ONNX's own domain."""

_MISFIT = re.compile(r"\(op_type:[^,)]*, node name: (\d+)\): (?:\[\w+\] )?([^\n]+)")

_LARGEST = (1 << 31) - 1
"""Elements of the largest tensor of TensorRT: https://docs.nvidia.com/deeplearning/tensorrt, "Limitations"."""
_LARGEST_FILL = 1 << 28
"""Elements of the largest tensor that may be computed of constants alone: 1 GiB in FP32, at every run."""


def check(proto: onnx.ModelProto, where: str) -> None:
    """Raise GraphError for a model without outputs, without an opset or of one that onnx does not know, inputs or
    outputs of one name, a tensor that is not whole or lies elsewhere than beside the model, functions that call
    themselves, a value that nothing makes, an op that does not exist, or a node that is given what its op does not
    take, or makes more than a GPU holds."""
    import onnx

    from aot.onnx_input import weights

    if not proto.graph.output:
        raise not_whole(Path(where), ValueError("it has no outputs"))
    standard = any(node.domain in ("", "ai.onnx") for node in proto.graph.node)
    if standard and not any(item.domain in ("", "ai.onnx") for item in proto.opset_import):
        raise not_whole(Path(where), ValueError("it does not say which opset it was written in"))
    known = onnx.defs.onnx_opset_version()
    opset = max((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), default=known)
    if opset > known:
        raise GraphError(
            f"opset {opset} is newer than the onnx installed here knows ({known})",
            where=where,
            fix=f"pip install --upgrade onnx, or export the model with opset_version={known} or an older one",
        )
    if opset < 1:
        raise _invalid(f"there is no opset {opset}", where, "export the model again, with opset_version=20")
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        names = [value.name for value in values]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise _invalid(f"two {kind}s are called '{twice}'", where, "give each a name of its own")
    parts: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    for held in parts:
        for tensor in _tensors(held):
            weights.check(tensor, Path(where).parent, where)
        for sparse in _sparse(held):
            weights.check_sparse(sparse, Path(where).parent, where)
    ring = _ring({function_name(one): one.node for one in proto.functions})
    if ring:
        raise _invalid(f"its functions call each other in a circle: {' -> '.join(ring)}", where, "export it without")
    for user, name in (
        *_unmade(proto.graph, frozenset()),
        *(unmade for one in proto.functions for unmade in _unmade_in(one)),
    ):
        raise _invalid(
            f"{user} '{name}', which nothing in it makes", where, "export the model again; a part of it was cut off"
        )
    _check_ops(proto, opset, where)
    if opset >= 7:  # before it, sizes were made to fit by attributes
        _check_nodes(proto, where)


def _invalid(what: str, where: str, fix: str) -> GraphError:
    return GraphError(f"not a valid ONNX model: {what}", where=where, fix=fix)


def function_name(one: onnx.FunctionProto | onnx.NodeProto) -> str:
    """What a model-local function is called, and called by."""
    return f"{one.domain}::{one.name if hasattr(one, 'opset_import') else one.op_type}"


def _ring(functions: Mapping[str, Iterable[onnx.NodeProto]]) -> list[str]:
    """Functions each of which calls the next, the last being the first; empty where no function calls itself."""
    calls = {
        name: {function_name(node) for node in _all_nodes(nodes)} & set(functions) for name, nodes in functions.items()
    }
    left = dict(calls)
    while ends := [name for name, called in left.items() if not called & set(left)]:
        for name in ends:
            del left[name]
    path: list[str] = list(left)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(min(calls[path[-1]] & set(left)))
    return path[path.index(path[-1]) :] if path else []


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _all_nodes(graph.node)


def _tensors(held: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """The weights of a graph or function and of its bodies, and the tensors that nodes hold."""
    return _held(held, "initializer", "t", "tensors")


def _sparse(held: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.SparseTensorProto]:
    return _held(held, "sparse_initializer", "sparse_tensor", "sparse_tensors")


def _held(part: onnx.GraphProto | onnx.FunctionProto, weights: str, one: str, many: str) -> Iterator[Any]:
    """What lies in these fields of a graph (a function has no weights), of its nodes' attributes, and of the bodies."""
    yield from getattr(part, weights, ())
    for node in part.node:
        for attribute in node.attribute:
            if attribute.HasField(one):
                yield getattr(attribute, one)
            yield from getattr(attribute, many)
        for inner in _graphs(node):
            yield from _held(inner, weights, one, many)


def _check_ops(proto: onnx.ModelProto, opset: int, where: str) -> None:
    """No op of ONNX's own domain may be unknown; one newer than the opset is known and may be meant."""
    import onnx

    local = {one.name for one in proto.functions if one.domain in ("", "ai.onnx")}
    for node in _all_nodes(proto.graph.node):
        if node.domain in ("", "ai.onnx") and node.op_type not in local | STANDARD and not onnx.defs.has(node.op_type):
            raise _invalid(
                f"ONNX has no op '{node.op_type}', in opset {opset} or any other",
                f"{node_title(node)} in {where}",
                "an op of your own belongs to a domain of its own; one of a newer ONNX wants a newer onnx package",
            )


def node_title(node: onnx.NodeProto) -> str:
    """`node 'name' (Op)`, by its first output where it has no name."""
    op = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    return f"node '{node.name or next(iter(node.output), '')}' ({op})"


def _unmade(graph: onnx.GraphProto, outside: frozenset[str]) -> Iterator[tuple[str, str]]:
    made = {value.name for value in graph.input} | {weight.name for weight in graph.initializer}
    made |= {sparse.values.name for sparse in graph.sparse_initializer}
    made |= {name for node in graph.node for name in node.output}
    names = outside | made | {""}
    for node in graph.node:
        yield from ((f"{node_title(node)} reads", name) for name in node.input if name not in names)
        for inner in _graphs(node):
            yield from _unmade(inner, names)
    yield from (("an output is", value.name) for value in graph.output if value.name not in names)


def _unmade_in(function: onnx.FunctionProto) -> Iterator[tuple[str, str]]:
    names = {*function.input, *(name for node in function.node for name in node.output), ""}
    for node in function.node:
        yield from ((f"{node_title(node)} reads", name) for name in node.input if name not in names)
        for inner in _graphs(node):
            yield from _unmade(inner, frozenset(names))
    yield from (("an output of a function is", name) for name in function.output if name not in names)


def _check_nodes(proto: onnx.ModelProto, where: str) -> None:
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
        if not any(_graphs(node)):
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = str(index)
    _check_amounts(proto, _inferred(proto, light, where), where)
    _inferred(proto, light, where, check_type=True)


def _inferred(
    proto: onnx.ModelProto, light: onnx.ModelProto, where: str, *, check_type: bool = False
) -> onnx.ModelProto:
    """What onnx infers of the copy; raises GraphError where it says that a node does not fit its op.

    check_type: types and numbers of inputs as well, as far as every type is known where it is asked for.
    """
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(light, check_type=check_type, strict_mode=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        found = _MISFIT.search(str(error))
        # The first comes of a type that is not known; the second of a body by which onnx defines the op.
        if found is None or "instead is null" in found[2] or found[2].startswith("Inference error"):
            return light
        index, said = int(found[1]), re.sub(r" in node \w+ \(\d+\)\.?$", "", found[2].strip())
        raise _invalid(
            said,
            f"{node_title(proto.graph.node[index])} in {where}",
            "export the model again; this node does not fit what ONNX says of its op",
        ) from error


def _check_amounts(proto: onnx.ModelProto, made: onnx.ModelProto, where: str) -> None:
    """No node may make a tensor of more elements than a GPU holds, whatever is fed."""
    counts = {
        value.name: math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)
        for value in made.graph.value_info
    }
    constant = {weight.name for weight in proto.graph.initializer} | {""}
    for node in proto.graph.node:
        fill = set(node.input) <= constant and not any(_graphs(node))
        if fill:
            constant.update(node.output)
        for name in node.output:
            if counts.get(name, 0) > (_LARGEST_FILL if fill else _LARGEST):
                raise GraphError(
                    f"it makes a tensor of {counts[name]:,} elements" + (" of constants alone" if fill else ""),
                    where=f"{node_title(node)} in {where}",
                    fix="check the sizes in the model; let ops broadcast instead of filling tensors",
                )
