"""FP16 and BF16 graphs: dtypes inside, dtypes at the edge, and no cast too many."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from aot.errors import GraphError
from tests.precision.graphs import (
    BF16,
    FP16,
    FP32,
    converted,
    graph,
    node,
    observe,
    ops,
    precisions,
    reasons,
    recipe,
    run,
    save,
    value,
)

rng = np.random.default_rng(0)
X = {"x": rng.standard_normal((3, 8)).astype(np.float32)}
W = (rng.standard_normal((8, 8)) / 3).astype(np.float32)
MLP = "g (float[B, 8] x) => (float[B, 8] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, w) }"


def test_inside_is_fp16_and_the_edge_keeps_its_dtype() -> None:
    model, outcome = converted(graph(MLP, w=W), "fp16", {})
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [FP32, FP32]
    assert value(model, "h").dtype == value(model, "r").dtype == FP16
    assert ops(model) == ["Cast", "MatMul", "Relu", "MatMul", "Cast"]
    assert set(precisions(outcome).values()) == {"fp16"}
    half = X["x"].astype(np.float16).astype(np.float32)
    expected = np.maximum(half @ W.astype(np.float16).astype(np.float32), 0) @ W
    np.testing.assert_allclose(run(model, X)["y"], expected, atol=5e-3)


def test_a_weight_keeps_its_name_and_is_stored_once() -> None:
    model, _ = converted(graph(MLP, w=W), "fp16", {})
    assert list(model.graph.initializers) == ["w"]
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), W.astype(np.float16))


def test_fp32_is_the_graph_as_it_came() -> None:
    source = graph(MLP, w=W)
    model, outcome = converted(source, "fp32", {})
    assert ir.to_proto(model) == ir.to_proto(source)
    assert set(precisions(outcome).values()) == {"fp32"}


def test_one_cast_serves_every_reader() -> None:
    text = "g (float[B, 8] x) => (float[B, 8] y) { a = MatMul(x, w)  b = MatMul(x, w)  y = Add(a, b) }"
    model, _ = converted(graph(text, w=W), "fp16", {})
    assert ops(model).count("Cast") == 2  # one in, one out


def test_an_output_that_is_also_read_inside() -> None:
    text = "g (float[B, 8] x) => (float[B, 8] h, float[B, 8] y) { h = MatMul(x, w)  y = Relu(h) }"
    model, _ = converted(graph(text, w=W), "fp16", {})
    assert [o.name for o in model.graph.outputs] == ["h", "y"]
    assert node(model, "y").inputs[0].dtype == FP16
    found = run(model, X)
    np.testing.assert_array_equal(found["y"], np.maximum(found["h"], 0))


def test_an_input_that_is_returned_untouched() -> None:
    model, _ = converted(graph("g (float[B, 8] x) => (float[B, 8] y) { y = Identity(x) }"), "fp16", {})
    assert run(model, X)["y"].dtype == np.float32


def test_integers_and_booleans_are_left_alone() -> None:
    text = """g (float[B, 8] x, int64[B] i) => (float[B, 8] y, int64[B] j)
    { j = Add(i, i)  m = Less(x, zero)  y = Where(m, zero, x) }"""
    model, outcome = converted(graph(text, zero=np.zeros((), np.float32)), "fp16", {})
    assert value(model, "j").dtype == ir.DataType.INT64
    assert value(model, "m").dtype == ir.DataType.BOOL
    assert precisions(outcome) == {"j": "int64", "m": "fp16", "y": "fp16"}


def test_attributes_that_name_a_dtype_follow() -> None:
    text = """g (int64[2] s, int64[2, 3] i) => (float[P, Q] y)
    { c = ConstantOfShape <value = float[1] {2.0}> (s)  f = Cast <to = 1> (i)  y = Mul(c, f) }"""
    model, _ = converted(graph(text), "fp16", {"f": 5.0})
    assert node(model, "f").attributes["to"].as_int() == FP16
    feeds = {"s": np.array([2, 3]), "i": np.arange(6).reshape(2, 3)}
    np.testing.assert_array_equal(run(model, feeds)["y"], 2.0 * feeds["i"])


def test_casts_of_the_model_that_change_nothing_any_more_go() -> None:
    text = """g (float[B, 8] x) => (float[B, 8] y)
    { h = Relu(x)  c = Cast <to = 10> (h)  d = Sqrt(c)  y = Cast <to = 1> (d) }"""
    model, _ = converted(graph(text), "fp16", {})
    assert ops(model) == ["Cast", "Relu", "Sqrt", "Cast"]


def test_operators_that_onnx_gives_no_fp16_stay_fp32() -> None:
    text = "g (float[1, N, 4] b, float[1, 1, N] s) => (int64[M, 3] y) { t = Relu(s)  y = NonMaxSuppression(b, t) }"
    model, outcome = converted(graph(text), "fp16", {})
    assert precisions(outcome)["y"] == "fp32"
    assert "no FP16 form" in reasons(outcome)["y"]
    assert node(model, "y").inputs[0].dtype == FP32


def test_resize_keeps_fp32_scales_in_a_fp16_network() -> None:
    text = 'g (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) { y = Resize <mode = "nearest"> (x, , scales) }'
    model, _ = converted(graph(text, scales=np.array([1, 1, 2, 2], np.float32)), "fp16", {})
    resize = node(model, "y")
    assert (resize.inputs[0].dtype, resize.inputs[2].dtype) == (FP16, FP32)
    assert run(model, {"x": np.ones((1, 1, 4, 4), np.float32)})["y"].shape == (1, 1, 8, 8)


def test_a_subgraph_stays_fp32_with_casts_at_its_edge() -> None:
    text = """g (float[B, 8] x, bool p) => (float[B, 8] y) {
        h = MatMul(x, w)
        c = If (p) <then_branch = t () => (float[B, 8] a) { a = Relu(h) },
                    else_branch = e () => (float[B, 8] b) { b = Neg(h) }>
        y = MatMul(c, w)
    }"""
    model, outcome = converted(graph(text, w=W), "fp16", {})
    assert precisions(outcome) == {"h": "fp16", "c": "fp32", "y": "fp16"}
    for p in (True, False):
        h = X["x"] @ W
        expected = (np.maximum(h, 0) if p else -h) @ W
        np.testing.assert_allclose(run(model, {**X, "p": np.array(p)})["y"], expected, atol=1e-2)


def test_an_operator_without_a_schema_stays_fp32() -> None:
    model = graph("g (float[B, 8] x) => (float[B, 8] y) { a = Relu(x)  y = own.Twist(a) }")
    model, outcome = converted(model, "fp16", {})
    assert precisions(outcome) == {"a": "fp32", "y": "fp32"}
    assert "own::Twist" in reasons(outcome)["y"]


def test_bf16_raises_the_opset_where_convolution_needs_it() -> None:
    text = "g (float[B, 4, 5, 5] x) => (float[B, 4, 5, 5] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"
    model, outcome = converted(graph(text, w=rng.standard_normal((4, 4, 3, 3)).astype(np.float32)), "bf16", {})
    assert model.opset_imports[""] == 22
    assert precisions(outcome) == {"y": "bf16"}
    assert node(model, "y").inputs[1].dtype == BF16


def test_bf16_leaves_the_opset_where_nothing_needs_it() -> None:
    model, _ = converted(graph(MLP, w=W), "bf16", {})
    assert model.opset_imports[""] == 20
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), W.astype(ml_dtypes.bfloat16))


def test_a_value_of_unknown_dtype_is_refused_by_name() -> None:
    model = graph(MLP, w=W)
    value(model, "h").type = None
    with pytest.raises(GraphError, match="dtype of 'h'"):
        converted(model, "fp16", {})


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8"])
def test_the_same_graph_gives_the_same_bytes(precision: str, tmp_path: Path) -> None:
    source = graph(MLP, w=W)
    amax = observe(source, X)
    files = [save(converted(source, recipe(precision), amax)[0], tmp_path / str(i)) for i in range(2)]
    assert files[0] == files[1]
