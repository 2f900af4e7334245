"""Reading an ONNX file as people write them: what the format allows, allows less strictly, or has left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aot.onnx_input.reading import not_whole, proto_of

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


Kept = Callable[["ir.Model"], Collection[tuple[str, str]]]
"""The domains and names of the functions that are not written out."""

_DAMAGED = (OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError)
"""What onnx_ir raises of its own: for a name that is no text, a body that reads what is not there, and the like."""


def load(path: Path, kept: Kept = lambda model: (), *, inline: bool = True) -> ir.Model:
    """The model of a file, its external weights left on disk.

    Sparse initializers and constants become dense ones, weights listed among the inputs are weights, calls of
    model-local functions are replaced by their bodies (those that are kept stay), nodes stand in an order in which
    they can run, and every node and value has a name of its own. inline False: functions stay, and so
    do, from IR version 4 on, weights that are inputs, which a caller may replace. Raises GraphError for a file that
    is no whole or no valid ONNX model.
    """
    import onnx_ir as ir

    from aot.onnx_input.vetting import vet

    vet(path)
    proto = proto_of(path)
    try:
        densify(proto.graph)
        model = ir.serde.deserialize_model(proto)
        ir.external_data.set_base_dir(model.graph, path.parent)
        for weight in model.graph.initializers.values():
            if weight.const_value is not None and weight.const_value.dtype != ir.DataType.STRING:
                weight.const_value.numpy()
        _tidy(model, kept, inline)
    except (*_DAMAGED, ir.serde.SerdeError, ir.passes.PassError) as error:
        said: BaseException = error
        while isinstance(said, ir.serde.SerdeError | RuntimeError) and said.__cause__ is not None:
            said = said.__cause__
        raise not_whole(path, said) from error
    return model


def densify(graph: onnx.GraphProto) -> None:
    """Replace sparse initializers and sparse Constant nodes by dense ones, in place, subgraphs included.

    Indices are either positions in the flattened tensor, shape [n], or coordinates, shape [n, rank].
    """
    from onnx import AttributeProto, helper

    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                densify(inner)
            if attribute.type == AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                attribute.CopyFrom(helper.make_attribute("value", _dense(attribute.sparse_tensor)))


def _graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    import numpy as np
    from onnx import numpy_helper

    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.size and indices.min() < 0:
        raise ValueError(f"the sparse weight '{sparse.values.name}' has a negative index")
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, sparse.values.name)


def _tidy(model: ir.Model, kept: Kept, inline: bool) -> None:
    from onnx_ir.passes import common

    graph = model.graph
    # Before IR version 4 weights were listed among the inputs as well.
    if inline or (model.ir_version or 0) < 4:
        graph.inputs[:] = [value for value in graph.inputs if value.name not in graph.initializers]
        model.ir_version = max(model.ir_version or 0, 4)
    if "ai.onnx" in graph.opset_imports:
        graph.opset_imports.setdefault("", graph.opset_imports.pop("ai.onnx"))
    if inline:
        _write_out(model, kept(model))
    for node in graph.all_nodes():
        if node.domain == "ai.onnx":
            node.domain = ""
    graph.sort()
    common.NameFixPass()(model)


def _write_out(model: ir.Model, kept: Collection[tuple[str, str]]) -> None:
    from onnx_ir.passes import common

    if not model.functions:
        return
    common.InlinePass(lambda function: (function.domain, function.name) not in kept)(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
