"""Whether the passes keep a graph: valid, of the same signature and numbers, and settled after one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common
from onnxruntime.capi import onnxruntime_pybind11_state as _errors

from aot.graph import Pass, run_passes
from aot.optimize import optimize
from aot.passes import PASSES
from tests.passes.random_graphs.draft import Array

Feeds = Sequence[dict[str, Array]]
Outputs = list[Array]

_TOLERANCE = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-6}
"""Largest difference, relative to the largest magnitude of the output. FP16 rounds after every op, so that one op in
place of several differs by some of its roundings."""
_SHAKEN = 3e-7
"""How far, relatively, float inputs and weights are moved to see how an output hangs on roundings."""


def run(model: onnx.ModelProto, feeds: Feeds) -> list[Outputs]:
    """onnxruntime without its own optimizations; onnx's reference where it has no kernel, or loses a value: it removes
    a Cast of FP16 that only the body of an If reads."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [list(session.run(None, fed)) for fed in feeds]
    except (_errors.NotImplemented, _errors.Fail) as error:
        if isinstance(error, _errors.Fail) and "Missing Input" not in str(error):
            raise
        evaluator = ReferenceEvaluator(model)
        return [list(evaluator.run(None, dict(fed))) for fed in feeds]


def optimized(model: onnx.ModelProto, passes: Sequence[Pass] | None = None) -> onnx.ModelProto:
    """The model as `aot optimize --precision fp16` leaves it, which runs every pass; or after `passes` alone."""
    graph = ir.from_proto(model)
    if passes is None:
        optimize(graph, narrow=True)
    else:
        common.NameFixPass()(graph)
        run_passes(passes, graph)
        common.TopologicalSortPass()(graph)
    return ir.to_proto(graph)


def difference(want: Array, got: Array) -> float:
    """The largest difference relative to the output's magnitude; infinite where a shape, a type, a NaN, an infinity or
    an integer differs."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return np.inf
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(want, got) else np.inf
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return np.inf
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-2))


def unequal(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Feeds) -> str | None:
    """The first output that differs by more than its dtype's tolerance and than it moves when everything that is fed
    moves in its last digits."""
    wanted, shaken = run(before, feeds), None
    least = _TOLERANCE["float16"] if _holds_fp16(before.graph) else 0.0
    for number, (want, got) in enumerate(zip(wanted, run(after, feeds), strict=True)):
        for value, a, b in zip(before.graph.output, want, got, strict=True):
            far, allowed = difference(a, b), max(_TOLERANCE[a.dtype.name], least) if a.dtype.kind == "f" else 0.0
            if far <= allowed:
                continue
            if np.isfinite(far):
                shaken = shaken or run(_shaken(before), [_moved(fed) for fed in feeds])
                index = [v.name for v in before.graph.output].index(value.name)
                if far <= 10 * difference(a, shaken[number][index]):
                    continue
            return f"numbers: output '{value.name}', {a.shape} and {b.shape}, differs by {far:.3g} in run {number}"
    return None


def _holds_fp16(graph: onnx.GraphProto) -> bool:
    """Whether FP16 occurs: onnxruntime computes it in FP32, and rounds its values only where they are kept."""
    half = onnx.TensorProto.FLOAT16
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    return (
        any(value.type.tensor_type.elem_type == half for value in graph.input)
        or any(tensor.data_type == half for tensor in graph.initializer)
        or any((a.name == "to" and a.i == half) or a.t.data_type == half or _holds_fp16(a.g) for a in attributes)
    )


def _moved(fed: dict[str, Array]) -> dict[str, Array]:
    return {name: _shake(array) for name, array in fed.items()}


def _shake(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    eps = max(_SHAKEN, float(np.finfo(array.dtype).eps)) if array.dtype != np.float64 else _SHAKEN
    moved = array * (1 + eps * np.random.default_rng(array.size).choice([-1.0, 1.0], array.shape))
    return np.asarray(moved, array.dtype)


def _shaken(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.size > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(_shake(array), tensor.name))
    return copy


def signature(values: Iterable[onnx.ValueInfoProto]) -> list[tuple[str, int, int]]:
    """(name, dtype, rank) of inputs or outputs."""
    return [(v.name, v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim)) for v in values]


def fault(before: onnx.ModelProto, feeds: Feeds, passes: Sequence[Pass] | None = None) -> str | None:
    """What the passes do wrong to this model, `kind: details`; None where all is as it should be."""
    try:
        after = optimized(before, passes)
    except Exception as error:  # noqa: BLE001  whatever a pass raises is what is looked for
        return f"raises: {type(error).__name__}: {str(error)[:300]}"
    for part in ("input", "output"):
        was, now = signature(getattr(before.graph, part)), signature(getattr(after.graph, part))
        if was != now:
            return f"signature: {part}s {was} became {now}"
    try:
        onnx.checker.check_model(after, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return f"invalid: {str(error)[:300]}"
    try:
        wrong = unequal(before, after, feeds)
    except Exception as error:  # noqa: BLE001  the graph before has run, so this is about the one after
        return f"does not run: {str(error)[:300]}"
    if wrong is not None:
        return wrong
    if _computation(optimized(after, passes)) != _computation(after):
        names = [one.name for one in run_passes(passes or PASSES, ir.from_proto(after)) if one.sites]
        return f"unsettled: a second run changes the graph ({', '.join(names)})"
    return None


def _computation(model: onnx.ModelProto) -> bytes:
    """Everything but what is known of inner shapes, which may become more."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    return bare.SerializeToString(deterministic=True)
