"""Small ONNX files, prepared and compared with what onnxruntime makes of the file itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from aot.declaration import Dim, Input
from aot.onnx_input import Prepared, prepare
from aot.onnx_input.loading import load

Array = np.ndarray[Any, Any]


def node_model(
    op: str,
    inputs: Mapping[str, Array],
    *,
    opset: int,
    fixed: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    dtypes: Sequence[int] | None = None,
    domain: str = "",
    names: Sequence[str] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """One node over `inputs` and the weights `fixed`, in that order unless `names` says another."""
    fixed = fixed or {}
    given = names or [*inputs, *fixed]
    kinds = dtypes or [onnx.TensorProto.FLOAT] * len(outputs)
    node = onnx.helper.make_node(op, given, outputs, "node", domain=domain, **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "graph",
        [tensor(name, array) for name, array in inputs.items()],
        [onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in zip(outputs, kinds, strict=True)],
        [onnx.numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    if domain:
        opsets.append(onnx.helper.make_opsetid(domain, 1))
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def tensor(name: str, array: Array) -> onnx.ValueInfoProto:
    """An input of the array's dtype and shape."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


def run(model: onnx.ModelProto | Path | str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """onnxruntime, its optimizations off."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {put.name for put in session.get_inputs()}
    return dict(zip(names, session.run(names, {n: a for n, a in inputs.items() if n in taken}), strict=True))


def prepared(
    model: onnx.ModelProto, folder: Path, shapes: Mapping[str, Sequence[int | Dim] | Input]
) -> tuple[onnx.ModelProto, Prepared]:
    """The file saved, loaded, prepared and found valid."""
    path = folder / "given.onnx"
    onnx.save(model, path)
    loaded = load(path)
    inputs = {name: shape if isinstance(shape, Input) else Input(shape) for name, shape in shapes.items()}
    done = prepare(loaded, inputs, str(path))
    after = ir.to_proto(loaded)
    onnx.checker.check_model(after, full_check=True)
    return after, done


def ops(model: onnx.ModelProto) -> list[str]:
    """Every op type, subgraphs left out."""
    return [node.op_type for node in model.graph.node]


def same(model: onnx.ModelProto, folder: Path, inputs: Mapping[str, Array], **tolerance: float) -> onnx.ModelProto:
    """Prepare the model and hold its outputs to those of the file; returns the prepared one."""
    after, _ = prepared(model, folder, {name: array.shape for name, array in inputs.items()})
    want, got = run(model, inputs), run(after, inputs)
    assert list(want) == list(got)
    for name, values in want.items():
        assert got[name].shape == values.shape, name
        np.testing.assert_allclose(got[name], values, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
    return after
