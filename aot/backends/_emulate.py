"""FP16 and BF16 graphs on the CPU: computed in FP32, rounded after every op.

onnxruntime's CPU provider lacks BF16 kernels for most ops. FP16 graphs it takes, but it casts around a run of
ops without an FP16 kernel and keeps FP32 between them, so that a value beyond 65504 survives that an engine
turns into infinity: exactly what verification is there to see. So both are rewritten here:

1. every FP16/BF16 tensor becomes FP32; constants keep their (already rounded) values;
2. each op output that was FP16/BF16 passes through Cast(FP32 -> narrow) and Cast(narrow -> FP32), a pair that
   onnxruntime keeps at every optimization level (a test holds it to that);
3. ops that only move values get no pair, for what they move is rounded already.

Inputs and outputs become FP32 too; `narrow_outputs` says what to convert back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.backends._graph import inner_graphs, load_structure, nodes

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_MOVES = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Expand", "Tile", "Concat"}
    | {"Split", "Slice", "Gather", "GatherElements", "GatherND", "Where", "Pad", "DepthToSpace", "SpaceToDepth"}
    | {"Relu", "Max", "Min", "Neg", "Abs", "MaxPool", "Constant", "ConstantOfShape"}
)
_ENDS = ("/unrounded", "/rounded", "/widened")
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type", "softmax_precision", "precision"})


def is_narrow(path: Path) -> bool:
    """Whether the graph computes anything in FP16 or BF16. Reads the structure only."""
    model = load_structure(path)
    kinds = _narrow()
    graph = model.graph
    typed = (value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info))
    return (
        any(kind in kinds for kind in typed)
        or any(tensor.data_type in kinds for tensor in graph.initializer)
        or any(a.i in kinds for node in nodes(graph) for a in node.attribute if a.name in _DTYPE_ATTRIBUTES)
    )


def emulated(path: Path) -> tuple[ModelProto, dict[str, str]]:
    """The rewritten model, weights loaded, and its narrow outputs: name -> `float16` or `bfloat16`."""
    import onnx
    from onnx import inliner, shape_inference

    bare = inliner.inline_local_functions(load_structure(path))
    model = shape_inference.infer_shapes(bare)
    onnx.load_external_data_for_model(model, str(path.parent))
    kinds = _narrow()
    outputs = {
        out.name: kinds[out.type.tensor_type.elem_type]
        for out in model.graph.output
        if out.type.tensor_type.elem_type in kinds
    }
    _rewrite(model.graph, {}, kinds)
    return model, outputs


def _narrow() -> dict[int, str]:
    from onnx import TensorProto

    return {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}


def _rewrite(graph: GraphProto, outer: dict[str, int], kinds: dict[int, str]) -> None:
    """Rewrite one graph in place; `outer` holds the types of the enclosing scope."""
    from onnx import TensorProto, helper

    values = (*graph.input, *graph.output, *graph.value_info)
    types = outer | {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for tensor in graph.initializer:
        _widen(tensor, kinds)
    for value in (*graph.input, *graph.output):
        widen(value)
    del graph.value_info[:]

    rewritten: list[NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in kinds:
                attribute.i = TensorProto.FLOAT
            for inner in inner_graphs(attribute):
                _rewrite(inner, types, kinds)
            for tensor in (attribute.t, *attribute.tensors):
                _widen(tensor, kinds)
        rewritten.append(node)
        if node.op_type in _MOVES:
            continue
        for index, name in enumerate(node.output):
            if types.get(name) in kinds:
                node.output[index] = f"{name}/unrounded"
                before, after = f"{name}/unrounded", f"{name}/rounded"
                down = helper.make_node("Cast", [before], [after], name=after, to=types[name])
                up = helper.make_node("Cast", [after], [name], name=f"{name}/widened", to=TensorProto.FLOAT)
                rewritten += [down, up]
    del graph.node[:]
    graph.node.extend(rewritten)


def unrounded(name: str) -> str:
    """The value that a value or node with such a name was made for; another name is returned as it is."""
    return next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)


def widen(value: ValueInfoProto) -> None:
    """Declare an FP16/BF16 value as FP32."""
    from onnx import TensorProto

    if value.type.tensor_type.elem_type in _narrow():
        value.type.tensor_type.elem_type = TensorProto.FLOAT


def widened(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An input as the emulated graph takes it: FP16/BF16 as FP32, another dtype as it is."""
    return array.astype("float32") if array.dtype.name in _narrow().values() else array


def _widen(tensor: TensorProto, kinds: dict[int, str]) -> None:
    """FP16/BF16 -> FP32, every value exact."""
    if tensor.data_type in kinds:
        from onnx import numpy_helper

        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
