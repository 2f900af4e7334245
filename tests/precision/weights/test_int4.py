"""INT4 weights in blocks: what the graph says, what onnxruntime makes of it, and that TensorRT takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from aot.config import Recipe, parse
from aot.errors import GraphError, TargetError, UsageError
from aot.precision import apply
from aot.targets import check_precision
from tests.precision.graphs import Array, graph, node, precisions, reasons
from tests.precision.rtx import build
from tests.precision.weights.observing import outputs, relative, statistics

rng = np.random.default_rng(15)


def normal(*shape: int) -> Array:
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)


WEIGHTS = {"w": normal(256, 64), "v": normal(32, 64 * 2), "u": normal(48, 16), "c": normal(64)}
BODY = """g (float[b, 5, 256] x, float[b, 128] z) => (float[b, 5, 64] y, float[b, 32] t, float[b, 16] s) {
    h = MatMul(x, w)  y = Add(h, c)  t = Gemm <transB = 1> (z, v)  p = Slice(z, zero, end, one)  s = MatMul(p, u) }"""
FEEDS = {"x": normal(4, 5, 256) * 10, "z": normal(3, 128) * 10}
ENDS = {"zero": np.array([0]), "end": np.array([48]), "one": np.array([1])}


def recipe(**weights: Any) -> Recipe:
    settings = {
        "precision": "int4",
        "activations": False,
        "placement": {"ops": ["MatMul", "Gemm"]},
        "weights": {"block": 128, **weights},
    }
    return parse(Recipe, settings, "a test")


def made(opset: int = 20) -> ir.Model:
    return graph(BODY, opset, **WEIGHTS, **{**ENDS, "one": np.array([1])})


def quantized(wanted: Recipe, model: ir.Model) -> Any:
    seen = statistics(model, [FEEDS])
    return apply(model, wanted, seen.amax(), seen)


def test_a_weight_is_cut_into_blocks_along_what_is_summed_over() -> None:
    model = made()
    outcome = quantized(recipe(), model)
    assert precisions(outcome) | {"p": "fp16", "y": "fp16"} == {
        "h": "int4",
        "y": "fp16",
        "t": "int4",
        "p": "fp16",
        "s": "fp16",
    }
    assert "48 input channels" in reasons(outcome)["s"]
    assert model.opset_imports[""] == 21
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for name, axis, shape in (("h", 0, (2, 64)), ("t", 1, (32, 1))):
        dq = node(model, name).inputs[1].producer()  # type: ignore[union-attr]
        assert dq is not None
        assert (dq.attributes["axis"].as_int(), dq.attributes["block_size"].as_int()) == (axis, 128)
        kept, scale, zero = dq.inputs
        assert kept is not None
        assert scale is not None
        assert zero is not None
        assert (kept.dtype, scale.dtype, zero.dtype) == (ir.DataType.INT4, ir.DataType.FLOAT16, ir.DataType.INT4)
        assert tuple(scale.shape or ()) == tuple(zero.shape or ()) == shape
        assert kept.const_value is not None
        assert kept.const_value.nbytes * 8 == WEIGHTS["w" if name == "h" else "v"].nbytes


def test_onnxruntime_computes_with_the_values_that_are_stored() -> None:
    model = made()
    quantized(recipe(), model)
    dq = node(model, "h").inputs[1].producer()  # type: ignore[union-attr]
    assert dq is not None
    kept, scale = (np.asarray(v.const_value.numpy()).astype(np.float32) for v in dq.inputs[:2])  # type: ignore[union-attr]
    weight = kept * np.repeat(scale, 128, axis=0)
    assert (np.abs(kept) <= 8).all()
    expected = FEEDS["x"].astype(np.float16).astype(np.float32) @ weight + WEIGHTS["c"]
    assert relative(expected, outputs(model, FEEDS)[0]) < 2e-3


def test_adaptive_rounding_leaves_less_error() -> None:
    reference = outputs(made(), FEEDS)
    errors = []
    for rounding in ("nearest", "adaptive"):
        model = made()
        quantized(recipe(rounding=rounding), model)
        errors.append([relative(a, b) for a, b in zip(reference, outputs(model, FEEDS), strict=True)])
    assert errors[0][0] < 0.15
    assert errors[1][0] < 0.8 * errors[0][0]
    assert errors[1][1] < 0.8 * errors[0][1]


def test_an_opset_that_cannot_be_raised_is_refused() -> None:
    body = """g (float[b, 128] x, float[b, 4, 8] q) => (float[b, 32] y, float[b, 4, 8] r) {
        y = MatMul(x, w)  r = GroupNormalization <num_groups = 2> (q, s, s) }"""
    model = graph(body, w=normal(128, 32), s=np.ones(2, np.float32))
    with pytest.raises(GraphError, match="int4 needs opset 21 or later, the graph has 20"):
        apply(model, recipe(), {})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"activations": True}, "no kernels for INT4 activations"),
        ({"weights": {"block": 32}}, "64 or 128"),
        ({"weights": {}}, "64 or 128"),
        ({"precision": "int8"}, "INT4 weights alone"),
    ],
)
def test_what_kernels_do_not_take_is_refused_in_the_recipe(settings: dict[str, Any], says: str) -> None:
    data = {"precision": "int4", "activations": False, "weights": {"block": 128}, **settings}
    with pytest.raises(UsageError, match=says):
        parse(Recipe, data, "a test")


def test_int4_begins_with_sm80() -> None:
    check_precision("int4", "sm80")
    with pytest.raises(TargetError, match="sm75 has no INT4: it begins with sm80"):
        check_precision("int4", "sm75")


@pytest.mark.parametrize(
    "wanted",
    [
        recipe(),
        recipe(block=64),
        Recipe.model_validate({"precision": "int8", "activations": False}),
        Recipe.model_validate({"precision": "fp8", "activations": False}),
    ],
    ids=["int4, 128", "int4, 64", "int8", "fp8"],
)
def test_tensorrt_rtx_builds_weights_alone(wanted: Recipe) -> None:
    model = made()
    outcome = quantized(wanted, model)
    assert sum(outcome.ops.values()) >= 2
    assert "QuantizeLinear" not in [n.op_type for n in model.graph]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    reference = outputs(made(), FEEDS)
    for a, b in zip(reference, outputs(model, FEEDS), strict=True):
        assert relative(a, b) < (0.15 if wanted.precision == "int4" else 0.05)
    sizes = {name: [(size, *array.shape[1:]) for size in (1, 4, 8)] for name, array in FEEDS.items()}
    assert build(model, sizes)
