"""Where Q/DQ goes in INT8 and FP8 graphs, and what stays wide for which reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from aot import origins
from aot.errors import GraphError
from aot.origins import Origin
from tests.precision.graphs import (
    FP16,
    Array,
    Feeds,
    converted,
    graph,
    node,
    observe,
    ops,
    precisions,
    reasons,
    recipe,
    run,
    sqnr,
)

rng = np.random.default_rng(3)


def normal(*shape: int, scale: float = 0.2) -> Array:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def source(value: ir.Value | None) -> ir.Node:
    assert value is not None
    producer = value.producer()
    assert producer is not None
    return producer


def check_form(model: ir.Model, form: ir.DataType) -> None:
    """What every strongly typed network asks of Q/DQ, TensorRT 11's refusals included."""
    for n in model.graph:
        if n.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            zero, scale = n.inputs[2], n.inputs[1]
            assert zero is not None
            assert scale is not None
            assert not zero.const_value.numpy().astype(np.float32).any()
            assert zero.shape == scale.shape
            assert (scale.const_value.numpy() > 0).all()
        if n.op_type == "QuantizeLinear":
            assert n.inputs[0].dtype == n.inputs[1].dtype
            assert n.outputs[0].dtype == n.inputs[2].dtype == form
            assert {u.op_type for u in n.outputs[0].consumers()} == {"DequantizeLinear"}
        if n.op_type == "DequantizeLinear":
            assert n.inputs[0].dtype == n.inputs[2].dtype == form
            assert n.outputs[0].dtype == n.inputs[1].dtype
    for value in model.graph.initializers.values():
        assert value.dtype != ir.DataType.INT32
        if value.dtype == form and value.shape.numpy() not in {(), (1,)} and len(value.shape) > 1:
            assert {u.op_type for u in value.consumers()} == {"DequantizeLinear"}


def quantized(body: str, feeds: Feeds, precision: str, **weights: Array) -> tuple[ir.Model, dict[str, str], float]:
    """The graph in that precision, the precision of every node, and its SQNR on the calibration data."""
    made = graph(body, **weights)
    model, outcome = converted(made, precision, observe(made, feeds))
    check_form(model, ir.DataType.INT8 if precision == "int8" else ir.DataType.FLOAT8E4M3FN)
    got = run(model, feeds)
    return model, precisions(outcome), min(sqnr(want, got[name]) for name, want in run(made, feeds).items())


LINEAR = "g (float[B, 32] x) => (float[B, 16] y) { h = MatMul(x, w)  r = Add(h, b)  a = Gelu(r)  y = MatMul(a, v) }"
LINEAR_WEIGHTS = {"w": normal(32, 48), "b": normal(48), "v": normal(48, 16)}
X32 = {"x": normal(64, 32, scale=1.0)}


@pytest.mark.parametrize(("precision", "least"), [("int8", 30.0), ("fp8", 25.0)])
def test_linear_layers_are_quantized_and_all_else_is_fp16(precision: str, least: float) -> None:
    model, found, quality = quantized(LINEAR, X32, precision, **LINEAR_WEIGHTS)
    assert found == {"h": precision, "r": "fp16", "a": "fp16", "y": precision}
    assert ops(model).count("QuantizeLinear") == 2
    assert ops(model).count("DequantizeLinear") == 4
    assert node(model, "h").outputs[0].dtype == FP16
    assert quality > least


def test_the_scales_are_those_of_the_ranges() -> None:
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    model, outcome = converted(made, "int8", {**observe(made, X32), "x": 12.7})
    q = next(n for n in model.graph if n.op_type == "QuantizeLinear")
    assert float(q.inputs[1].const_value.numpy()) == pytest.approx(0.1, rel=1e-3)
    assert "x reached 12.7, scale 0.1" in reasons(outcome)["h"]
    assert outcome.ops == {"MatMul": 2}
    assert outcome.qdq == 4


def test_a_tensor_that_several_layers_read_has_one_pair() -> None:
    body = "g (float[B, 32] x) => (float[B, 32] y) { q = MatMul(x, w)  k = MatMul(x, v)  y = Mul(q, k) }"
    model, _, _ = quantized(body, X32, "int8", w=normal(32, 32), v=normal(32, 32))
    assert ops(model).count("QuantizeLinear") == 1
    assert source(node(model, "q").inputs[0]) is source(node(model, "k").inputs[0])


def test_a_weight_that_two_layers_read_is_stored_once() -> None:
    body = "g (float[B, 32] x) => (float[B, 32] y) { q = MatMul(x, w)  y = MatMul(q, w) }"
    model, _, _ = quantized(body, X32, "int8", w=normal(32, 32))
    assert [v.name for v in model.graph.initializers.values() if len(v.shape) == 2] == ["w_int8_axis1"]
    assert ops(model).count("DequantizeLinear") == 3


@pytest.mark.parametrize(
    ("body", "weight", "axis"),
    [
        ("{ y = MatMul(x, w) }", (32, 24), 1),
        ("{ y = Gemm(x, w) }", (32, 24), 1),
        ("{ y = Gemm <transB = 1> (x, w) }", (24, 32), 0),
    ],
)
def test_the_channel_axis_of_matrices(body: str, weight: tuple[int, ...], axis: int) -> None:
    model, _, quality = quantized(f"g (float[B, 32] x) => (float[B, 24] y) {body}", X32, "int8", w=normal(*weight))
    dq = source(node(model, "y").inputs[1])
    assert dq.attributes["axis"].as_int() == axis
    assert dq.inputs[1].shape.numpy() == (24,)
    assert quality > 38


@pytest.mark.parametrize(
    ("op", "weight", "axis"),
    [
        ("Conv", (12, 8, 3, 3), 0),
        ("Conv <group = 2>", (12, 4, 3, 3), 0),
        ("ConvTranspose", (8, 12, 3, 3), 1),
        ("ConvTranspose <group = 2>", (8, 6, 3, 3), None),
    ],
)
def test_the_channel_axis_of_convolutions(op: str, weight: tuple[int, ...], axis: int | None) -> None:
    """With groups, axis 1 of a transposed convolution stands for several channels: one scale for all."""
    feeds = {"x": normal(2, 8, 6, 6, scale=1.0)}
    body = f"g (float[B, 8, 6, 6] x) => (float[B, 12, P, Q] y) {{ y = {op} (x, w, b) }}"
    made = graph(body, w=normal(*weight), b=normal(12))
    wanted = recipe("int8", ops=("Conv", "ConvTranspose"))
    model, _ = converted(made, wanted, observe(made, feeds))
    dq = source(node(model, "y").inputs[1])
    assert ("axis" in dq.attributes) == (axis is not None)
    if axis is not None:
        assert dq.attributes["axis"].as_int() == axis
    assert node(model, "y").inputs[2].dtype == FP16  # the bias is not quantized
    assert sqnr(run(made, feeds)["y"], run(model, feeds)["y"]) > 35


def test_per_tensor_weights_where_the_recipe_says_so() -> None:
    wanted = recipe("fp8").model_copy(update={"per_channel": False})
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    model, _ = converted(made, wanted, observe(made, X32))
    assert {n.inputs[1].shape.numpy() for n in model.graph if n.op_type == "DequantizeLinear"} == {()}


def test_biases_far_above_the_weights_survive() -> None:
    """An int32 bias of 5 / (scale of 1e-9 weights) would overflow."""
    weight = normal(16, 16, 3, 3)
    weight[:2] *= 1e-9
    bias = np.zeros(16, np.float32)
    bias[:2] = 5.0, -4.5
    feeds = {"x": normal(1, 16, 8, 8, scale=1.0)}
    body = "g (float[B, 16, 8, 8] x) => (float[B, 16, 6, 6] y) { y = Conv(x, w, b) }"
    model, found, quality = quantized(body, feeds, "int8", w=weight, b=bias)
    assert found == {"y": "int8"}
    np.testing.assert_allclose(
        run(model, feeds)["y"][:, :2], bias[:2].reshape(1, 2, 1, 1) + np.zeros((1, 2, 6, 6)), rtol=1e-2
    )
    assert quality > 38


RESIDUAL = """g (float[B, 16, 8, 8] x) => (float[B, 16, 8, 8] y) {
    i = Relu(x)  a = Conv <pads = [1, 1, 1, 1]> (i, w)  p = Relu(a)  b = Conv <pads = [1, 1, 1, 1]> (p, v)
    s = Add(b, i)  r = Relu(s)  c = Conv <pads = [1, 1, 1, 1]> (r, w)  d = Conv(r, u)  t = Add(c, d)  y = Relu(t) }"""


def test_residual_adds_take_the_skip_quantized_and_the_convolution_directly() -> None:
    feeds = {"x": normal(2, 16, 8, 8, scale=1.0)}
    made = graph(RESIDUAL, w=normal(16, 16, 3, 3), v=normal(16, 16, 3, 3), u=normal(16, 16, 1, 1))
    model, outcome = converted(made, recipe("int8", residual=True), observe(made, feeds))
    check_form(model, ir.DataType.INT8)
    identity, projected = node(model, "s"), node(model, "t")
    assert source(identity.inputs[0]).op_type == "Conv"
    assert source(identity.inputs[1]) is source(node(model, "a").inputs[0])  # the block input's own pair
    assert [source(v).op_type for v in projected.inputs] == ["DequantizeLinear", "Conv"]  # the last conv fuses
    assert precisions(outcome)["s"] == precisions(outcome)["t"] == "int8"
    assert sqnr(run(made, feeds)["y"], run(model, feeds)["y"]) > 30


def test_without_the_flag_adds_are_left_alone() -> None:
    feeds = {"x": normal(2, 16, 8, 8, scale=1.0)}
    _, found, _ = quantized(
        RESIDUAL, feeds, "int8", w=normal(16, 16, 3, 3), v=normal(16, 16, 3, 3), u=normal(16, 16, 1, 1)
    )
    assert found["s"] == found["t"] == "fp16"


ATTENTION = """g (float[B, T, 32] x, float[B, 32, T] k) => (float[B, T, 32] y)
{ s = MatMul(x, k)  p = Softmax(s)  y = MatMul(p, x) }"""


def test_attention_is_quantized_on_request() -> None:
    feeds = {"x": normal(2, 5, 32, scale=1.0), "k": normal(2, 32, 5, scale=0.3)}
    made = graph(ATTENTION)
    amax = observe(made, feeds)
    _, outcome = converted(made, "fp8", amax)
    assert set(precisions(outcome).values()) == {"fp16"}
    assert "both operands are activations" in reasons(outcome)["s"]
    [warning] = outcome.warnings
    assert warning.startswith("nothing is quantized to fp8: node 's' (MatMul): both operands are activations")
    assert warning.endswith("; 1 more layers")
    model, outcome = converted(made, recipe("fp8", attention=True), amax)
    assert precisions(outcome) == {"s": "fp8", "p": "fp16", "y": "fp8"}
    assert ops(model).count("QuantizeLinear") == 3  # x is read twice
    assert sqnr(run(made, feeds)["y"], run(model, feeds)["y"]) > 25


def test_a_layer_that_cancels_stays_wide_and_so_does_its_feeder() -> None:
    """Folded batch normalization of a dead channel: outputs of 1 from a bias of 400."""
    body = """g (float[B, 16] x) => (float[B, 16] y)
    { f = Gemm(x, u, c)  h = Gemm(f, w, b)  r = Relu(h)  y = Gemm(r, v, c) }"""
    weights = {
        "u": np.eye(16, dtype=np.float32),
        "c": np.ones(16, np.float32),
        "w": normal(16, 16),
        "v": normal(16, 16),
    }
    weights |= {"b": np.full(16, -400.0, np.float32)}
    amax = {"x": 1.0, "f": 4.0, "h": 1.0, "r": 1.0, "y": 4.0}
    _, outcome = converted(graph(body, **weights), recipe("fp8", sensitive=True), amax)
    assert {precisions(outcome)[name] for name in "fhy"} == {"fp8"}
    _, outcome = converted(graph(body, **weights), "fp8", amax)
    assert precisions(outcome) == {"f": "fp16", "h": "fp16", "r": "fp16", "y": "fp8"}
    assert "grow 400 times" in reasons(outcome)["h"]
    assert "feeds h" in reasons(outcome)["f"]


def test_patterns_keep_nodes_and_modules_wide() -> None:
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    amax = observe(made, X32)
    origins.set(node(made, "y"), Origin("net.head.linear", "m.py", 3))
    _, outcome = converted(made, recipe("int8", keep=("net.h*", "nowhere")), amax)
    assert precisions(outcome)["y"] == "fp16"
    assert reasons(outcome)["y"] == "the recipe keeps 'net.h*' wide"
    assert outcome.warnings == ("the recipe keeps 'nowhere' wide, but no node or module is called that",)
    _, outcome = converted(made, recipe("int8", keep=("h",)), amax)
    assert (precisions(outcome)["h"], precisions(outcome)["y"]) == ("fp16", "int8")


def test_a_layer_is_kept_by_the_module_that_owns_its_weight() -> None:
    """What is left of a convolution and the batch norm behind it is recorded under the norm's path."""
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    amax = observe(made, X32)
    head = node(made, "y")
    origins.set(head, Origin("net.norm", "m.py", 3))
    weight = head.inputs[1]
    assert weight is not None
    made.graph.initializers.pop("v")
    weight.name = "net.head.weight"
    made.graph.initializers.add(weight)
    _, outcome = converted(made, recipe("int8", keep=("net.head",)), amax)
    assert reasons(outcome)["y"] == "the recipe keeps 'net.head' wide"
    assert not outcome.warnings


def test_what_was_not_observed_stays_wide() -> None:
    _, outcome = converted(graph(LINEAR, **LINEAR_WEIGHTS), "int8", {"x": 3.0})
    assert precisions(outcome)["h"] == "int8"
    assert reasons(outcome)["y"] == "a was not observed in calibration"


def test_a_moved_tensor_has_the_range_of_its_source() -> None:
    body = "g (float[B, 4, 32] x) => (float[P, 16] y) { r = Reshape(x, shape)  y = MatMul(r, w) }"
    made = graph(body, shape=np.array([-1, 32]), w=normal(32, 16))
    _, outcome = converted(made, "int8", {"x": 12.7})
    assert "scale 0.1" in reasons(outcome)["y"]


def test_a_tensor_of_zeros_is_quantized_with_the_smallest_scale() -> None:
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    model, outcome = converted(made, "fp8", {"x": 0.0, "a": 2.0})
    assert precisions(outcome)["h"] == "fp8"
    assert np.isfinite(run(model, X32)["y"]).all()


def test_outliers_beyond_calibration_saturate() -> None:
    """FP8 clips at amax instead of making NaN; a row 1000 times larger and one 1e-6 times smaller stay finite."""
    w, v = normal(32, 64), normal(64, 16)
    w[:, 0] *= 1000
    v[:, 3] *= 1e-6
    body = "g (float[B, 32] x) => (float[B, 16] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"
    made = graph(body, w=w, v=v)
    model, _ = converted(made, "fp8", observe(made, X32))
    far = X32["x"].copy()
    far[0, 0] = 900.0
    near = far.copy()
    near[0, 0] = np.abs(X32["x"]).max()
    got = run(model, {"x": far})["y"]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, run(model, {"x": near})["y"], rtol=2e-2, atol=1e-2)


def test_a_tied_embedding_is_stored_once_and_stays_float() -> None:
    body = """g (int64[B] i) => (float[B, 64] y)
    { e = Gather(table, i)  h = MatMul(e, w)  y = Gemm <transB = 1> (h, table) }"""
    made = graph(body, table=normal(64, 32), w=normal(32, 32))
    model, outcome = converted(made, "int8", {"e": 1.0, "h": 1.0})
    assert precisions(outcome) == {"e": "fp16", "h": "int8", "y": "fp16"}
    assert "also read by Gather e" in reasons(outcome)["y"]
    assert [v.name for v in model.graph.initializers.values() if v.shape.numpy() == (64, 32)] == ["table"]


def test_a_layer_in_a_range_island_is_not_quantized() -> None:
    made = graph(LINEAR, **LINEAR_WEIGHTS)
    _, outcome = converted(made, "int8", {**observe(made, X32), "h": 60000.0})
    assert precisions(outcome)["h"] == "fp32"
    assert "6e+04" in reasons(outcome)["h"]


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_an_older_opset_is_refused(precision: str) -> None:
    body = "g (float[B, 32] x) => (float[B, 16] y) { y = MatMul(x, w) }"
    with pytest.raises(GraphError, match="needs opset 19 or later, the graph has 17"):
        converted(graph(body, opset=17, w=normal(32, 16)), precision, {})


def test_weights_that_are_no_numbers_are_refused_by_name() -> None:
    weight = normal(32, 16)
    weight[3, 3] = np.nan
    body = "g (float[B, 32] x) => (float[B, 16] y) { y = MatMul(x, w) }"
    with pytest.raises(GraphError, match="weight 'w' holds NaN"):
        converted(graph(body, w=weight), "int8", {"x": 1.0})
