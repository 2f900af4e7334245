"""What a graph takes and gives: names, dtypes, shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.declaration import Dim, ModelSpec
from aot.records import GraphRecord, Program

if TYPE_CHECKING:
    import onnx


def describe_io(final: GraphRecord, spec: ModelSpec) -> dict[str, list[dict[str, Any]]]:
    """`{inputs: [{name, dtype, shape}], outputs: [...]}`; a dynamic dimension is its name."""
    inputs = [
        {
            "name": name,
            "dtype": tensor.dtype,
            "shape": [dim.name if isinstance(dim, Dim) else dim for dim in tensor.shape],
        }
        for name, tensor in spec.inputs.items()
    ]
    if isinstance(final, Program):
        return {"inputs": inputs, "outputs": list(final.facts["outputs"])}
    import onnx

    graph = onnx.load(str(final.model), load_external_data=False).graph
    return {"inputs": inputs, "outputs": [_describe(value) for value in graph.output]}


def _describe(value: onnx.ValueInfoProto) -> dict[str, Any]:
    import onnx

    tensor = value.type.tensor_type
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    shape = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in tensor.shape.dim]
    return {"name": value.name, "dtype": dtype, "shape": shape}
