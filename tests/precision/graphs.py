"""Small graphs for the tests of precision: made from text, calibrated and run by onnxruntime without optimization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from aot.config import Placement, Recipe
from aot.graph import infer_shapes
from aot.precision import Outcome, apply

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
FP16, BF16, FP32 = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT


def graph(body: str, opset: int = 20, **weights: Array) -> ir.Model:
    """A model from ONNX's text form, its initializers from `weights`, dtypes and shapes inferred.

    A node is called by its first output.
    """
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}, "own" : 1]> {body}')
    for node in proto.graph.node:
        node.name = node.name or node.output[0]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def session(model: ir.Model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: ir.Model, feeds: Feeds) -> Feeds:
    """The outputs, after the checker and full type inference agreed with the graph."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    made = session(model)
    return dict(zip([o.name for o in made.get_outputs()], made.run(None, feeds), strict=True))


def observe(model: ir.Model, feeds: Feeds) -> dict[str, float]:
    """The largest magnitude of every float value."""
    watched = model.clone()
    names = {o.name for o in watched.graph.outputs}
    floats = [v for n in watched.graph for v in n.outputs if v.dtype == FP32 and v.name not in names]
    watched.graph.outputs.extend(floats)
    found = {**feeds, **run(watched, feeds)}
    return {name: float(np.abs(a).max()) for name, a in found.items() if a.dtype == np.float32}


def recipe(precision: str, **placement: Any) -> Recipe:
    """A recipe that quantizes layers of any size."""
    if precision not in {"int8", "fp8"}:
        return Recipe(precision=precision)  # type: ignore[arg-type]
    return Recipe(precision=precision, placement=Placement(**{"min_channels": 1, **placement}))  # type: ignore[arg-type]


def converted(model: ir.Model, wanted: str | Recipe, amax: dict[str, float]) -> tuple[ir.Model, Outcome]:
    """A changed copy of the model, and what was decided."""
    copy = model.clone()
    return copy, apply(copy, recipe(wanted) if isinstance(wanted, str) else wanted, amax)


def precisions(outcome: Outcome) -> dict[str, str]:
    return {d.node: d.precision for d in outcome.decisions}


def reasons(outcome: Outcome) -> dict[str, str]:
    return {d.node: d.reason for d in outcome.decisions}


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph]


def node(model: ir.Model, name: str) -> ir.Node:
    return next(n for n in model.graph if n.name == name)


def value(model: ir.Model, name: str) -> ir.Value:
    return next(v for n in model.graph for v in n.outputs if v.name == name)


def sqnr(reference: Array, got: Array) -> float:
    """Signal to quantization noise in dB."""
    error = np.linalg.norm(reference.astype(np.float64) - got.astype(np.float64))
    return float(20 * np.log10(np.linalg.norm(reference) / max(error, 1e-30)))


def save(model: ir.Model, folder: Path) -> tuple[bytes, bytes]:
    """The bytes of the two files."""
    folder.mkdir()
    ir.save(model, folder / "model.onnx", external_data="model.onnx.data")
    data = folder / "model.onnx.data"
    return (folder / "model.onnx").read_bytes(), data.read_bytes() if data.exists() else b""
