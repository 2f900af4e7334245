"""What the passes leave alone, and why they say so; and forms of a site other than the example's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir
import pytest

from aot import passes
from aot.graph import Pass, infer_shapes, run_passes

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '


def parse(text: str) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    for index, node in enumerate(model.graph):
        node.name = f"{node.op_type}{index}"
    infer_shapes(model)
    return model


def ops(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def run(model: ir.Model, **inputs: Any) -> Any:
    return onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)[0]


def run_by_onnxruntime(model: ir.Model, **inputs: Any) -> Any:
    """For what onnx's reference implementation gets wrong: grouped transposed convolutions."""
    import onnxruntime as ort

    proto = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


def refused(one: Pass, text: str) -> list[str]:
    """The reasons given; the graph must come out as it went in."""
    model, reasons = parse(text), []
    before = ops(model)
    assert one(model, lambda node, why: reasons.append(why)) == 0
    assert ops(model) == before
    return reasons


def test_guard_stays_where_the_mask_may_hold_infinity() -> None:
    text = """(float[B,S,4] q, float[B,4,S] k, float[B,S,S] mask) => (float[B,S,S] y) <float zero = {0}>
    { s = MatMul(q, k)  a = Add(s, mask)  p = Softmax(a)  n = IsNaN(p)  y = Where(n, zero, p) }"""
    assert any("-inf" in reason for reason in refused(passes.softmax_guard, text))


def test_infinite_masks_lose_their_guard_once_they_are_finite() -> None:
    text = """(float[B,S,4] q, float[B,4,S] k, bool[B,1,S] keep) => (float[B,S,S] y) <float zero = {0}, float low>
    { m = Where(keep, zero, low)  s = MatMul(q, k)  a = Add(s, m)  p = Softmax(a)  n = IsNaN(p)
      y = Where(n, zero, p) }"""
    proto = onnx.parser.parse_model(HEAD + text.replace("float low>", "float low = {0}>"))
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.float32(-np.inf), "low"))
    model = ir.from_proto(proto)
    infer_shapes(model)
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 4, 3)).astype(np.float32)
    keep = np.array([[[True, False, True]], [[True, True, False]]])
    expected = run(model, q=q, k=k, keep=keep)
    assert passes.softmax_guard(model) == 0
    assert passes.finite_mask(model) == 1
    assert passes.softmax_guard(model) == 1
    np.testing.assert_allclose(run(model, q=q, k=k, keep=keep), expected, rtol=1e-6)
    assert run(model, q=q, k=k, keep=keep)[0, 0, 1] == 0


def test_the_mask_of_older_models_is_made_finite() -> None:
    """(1 - mask) · lowest, as written before scaled_dot_product_attention."""
    text = """(float[B,S,S] s, float[B,1,S] mask) => (float[B,S,S] y) <float one = {1}, float low = {-3.4028235e38}>
    { u = Sub(one, mask)  m = Mul(u, low)  a = Add(s, m)  y = Softmax(a) }"""
    model = parse(text)
    assert passes.finite_mask(model) == 1
    assert min(float(v.const_value.numpy()) for v in model.graph.initializers.values() if v.uses()) == -32768  # type: ignore[union-attr]


def test_ordinary_masks_stay() -> None:
    text = """(float[B,S] s, bool[B,S] keep) => (float[B,S] y) <float zero = {0}, float low = {-10000}>
    { m = Where(keep, zero, low)  a = Add(s, m)  y = Softmax(a) }"""
    assert refused(passes.finite_mask, text) == []


def test_scores_that_are_an_output_keep_their_mask() -> None:
    text = """(float[B,S] s, bool[B,S] keep) => (float[B,S] y, float[B,S] a) <float low = {-3e38}>
    { a = Where(keep, s, low)  y = Softmax(a) }"""
    assert any("output" in reason for reason in refused(passes.finite_mask, text))


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [("s0", "b0", "count"), ("b0", "s0", "repeated")],
    ids=["counters of the other dim", "values repeated along a dim"],
)
def test_gathers_that_are_no_view_stay(rows: str, columns: str, why: str) -> None:
    last = "S" if rows == "s0" else "S,2"
    expand = "" if rows == "s0" else "two = Concat<axis = 0>(shape, pair)"
    target = "shape" if rows == "s0" else "two"
    wide = "right" if rows == "s0" else "right3"
    left = "left" if rows == "s0" else "left3"
    text = f"""(float[B,S] x) => (float[P,Q,{last}] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, int64[2] right = {{1, 2}}, int64[2] left = {{0, 1}},
     int64[3] right3 = {{1, 2, 3}}, int64[3] left3 = {{0, 1, 3}}, int64[1] pair = {{2}}, int64[1] unit = {{1}},
     int64[{"S" if rows == "s0" else "B"}] r, int64[{"B" if rows == "s0" else "S"}] c>
    {{ b = Shape<start = 0, end = 1>(x)  b0 = Squeeze(b)  s = Shape<start = 1, end = 2>(x)  s0 = Squeeze(s)
      r = Range(zero, {rows}, one)  c = Range(zero, {columns}, one)
      r3 = Unsqueeze(r, {wide})  c3 = Unsqueeze(c, {left})
      shape = Concat<axis = 0>({"s, unit, b" if rows == "s0" else "b, unit, s"})  {expand}
      re = Expand(r3, {target})  ce = Expand(c3, {target})
      r4 = Unsqueeze(re, last)  c4 = Unsqueeze(ce, last)  index = Concat<axis = -1>(r4, c4)
      y = GatherND(x, index) }}"""
    assert any(why in reason for reason in refused(passes.gather_by_ranges, text))


def test_a_view_that_is_no_transpose_stays() -> None:
    text = """(float[B,2,6,6] x) => (float[B,2,4,9] y) <int64[3] flat = {-1, 6, 6}, int64[4] back = {0, 2, 4, 9}>
    { r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)  y = Reshape(t, back) }"""
    assert refused(passes.transpose_through_views, text) != []


def test_a_reshape_with_two_dims_that_cannot_be_copied_stays() -> None:
    text = """(float[N,6] x, float[B,S] like) => (float[B,S,6] y) <int64[1] six = {6}>
    { b = Shape(like)  t = Concat<axis = 0>(b, six)  y = Reshape(x, t) }"""
    assert any("more than one dim" in reason for reason in refused(passes.shape_arithmetic, text))


def test_dims_called_by_a_placeholder_are_not_taken_for_equal() -> None:
    text = """(float[A,B,6] x, float[A,B] like) => (float[A,B,2,3] y) <int64[2] tail = {2, 3}>
    { b = Shape(like)  t = Concat<axis = 0>(b, tail)  y = Reshape(x, t) }"""
    assert passes.shape_arithmetic(parse(text)) == 1
    proto = onnx.parser.parse_model(HEAD + text)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "?"
    model = ir.from_proto(proto)
    infer_shapes(model)
    assert passes.shape_arithmetic(model) == 0


def test_a_true_mask_that_gives_an_output_its_shape_stays() -> None:
    text = (
        """(bool[B,1] keep, bool[1,4] other) => (bool[B,4] y) <bool[1,4] all = {1, 1, 1, 1}> { y = And(keep, all) }"""
    )
    assert any("shape of a result" in reason for reason in refused(passes.true_masks, text))


def test_erf_of_something_else_is_no_gelu() -> None:
    text = """(float[B,4] x) => (float[B,4] y) <float two = {2}, float one = {1}, float half = {0.5}>
    { a = Div(x, two)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half) }"""
    assert refused(passes.erf_gelu, text) != []


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, rs)  b = Erf(a)  c = Add(one, b)  d = Mul(half, x)  y = Mul(d, c)",
        "a = Div(x, r)  b = Erf(a)  c = Add(b, one)  d = Mul(c, half)  y = Mul(x, d)",
        "a = Mul(rs, x)  b = Erf(a)  c = Add(b, one)  d = Mul(c, x)  y = Mul(half, d)",
    ],
)
def test_every_order_of_the_factors_is_a_gelu(body: str) -> None:
    head = "(float[B,4] x) => (float[B,4] y)"
    consts = "<float r = {1.4142135}, float rs = {0.70710678}, float one = {1}, float half = {0.5}>"
    model = parse(f"{head} {consts} {{ {body} }}")
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    expected = run(model, x=x)
    assert passes.erf_gelu(model) == 1
    assert ops(model) == Counter(Gelu=1)
    np.testing.assert_allclose(run(model, x=x), expected, rtol=1e-6, atol=1e-7)


def test_a_convolution_that_is_read_elsewhere_keeps_its_norm() -> None:
    text = """(float[B,1,3,3] x) => (float[B,1,3,3] y, float[B,1,3,3] c)
    <float[1,1,1,1] w = {2}, float[1] g = {1}, float[1] b = {0}, float[1] m = {0}, float[1] v = {1}>
    { c = Conv(x, w)  y = BatchNormalization(c, g, b, m, v) }"""
    assert any("needed too" in reason for reason in refused(passes.fold_batch_norm, text))


@pytest.mark.parametrize(
    ("layer", "weight", "inputs"),
    [
        ("ConvTranspose<group = 2>", (4, 1, 3, 3), (2, 4, 5, 5)),
        ("ConvTranspose", (4, 2, 3, 3), (2, 4, 5, 5)),
        ("Conv<group = 2>", (2, 2, 3, 3), (2, 4, 5, 5)),
        ("Gemm<alpha = 0.5, beta = 2.0>", (4, 2), (3, 4)),
        ("Gemm<transB = 1>", (2, 4), (3, 4)),
    ],
)
def test_norms_fold_into_every_linear_layer(layer: str, weight: tuple[int, ...], inputs: tuple[int, ...]) -> None:
    shape = ",".join(map(str, inputs))
    rank = ",".join("PQRT"[: len(inputs)])
    rng = np.random.default_rng(0)
    values = rng.normal(size=weight).astype(np.float32)
    dims, listed = ",".join(map(str, weight)), ", ".join(str(float(value)) for value in values.ravel())
    model = parse(
        f"""(float[{shape}] x) => (float[{rank}] y)
        <float[{dims}] w = {{{listed}}}, float[2] bias = {{0.5, -1}}, float[2] g = {{1, -2}}, float[2] b = {{3, 1}},
         float[2] m = {{0.1, 0.2}}, float[2] v = {{0.5, 2}}>
        {{ c = {layer}(x, w, bias)  y = BatchNormalization<epsilon = 0.01>(c, g, b, m, v) }}"""
    )
    x = rng.normal(size=inputs).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert passes.fold_batch_norm(model) == 1
    assert sum(ops(model).values()) == 1
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-4, atol=1e-5)


def test_a_weight_that_two_layers_share_is_folded_for_each() -> None:
    text = """(float[B,1,3,3] x) => (float[B,1,3,3] y)
    <float[1,1,1,1] w = {2}, float[1] g = {3}, float[1] h = {5}, float[1] b = {1}, float[1] m = {0}, float[1] v = {1}>
    { c = Conv(x, w)  d = BatchNormalization(c, g, b, m, v)  e = Conv(d, w)  y = BatchNormalization(e, h, b, m, v) }"""
    model = parse(text)
    x = np.random.default_rng(0).normal(size=(2, 1, 3, 3)).astype(np.float32)
    expected = run(model, x=x)
    assert passes.fold_batch_norm(model) == 2
    np.testing.assert_allclose(run(model, x=x), expected, rtol=1e-5)


def test_reasons_reach_the_report() -> None:
    model = parse(
        """(float[N,6] x, float[B,S] like) => (float[B,S,6] y) <int64[1] six = {6}>
        { b = Shape(like)  t = Concat<axis = 0>(b, six)  y = Reshape(x, t) }"""
    )
    (report,) = run_passes([passes.shape_arithmetic], model)
    assert report.sites == 0
    assert list(report.skipped) == ["Reshape2"]


def test_two_clips_of_one_value_merge_with_limits_of_their_own() -> None:
    """onnxscript names both pairs of new limits alike, and the graph would hold only one."""
    model = parse(
        """(float[B,4] x) => (float[B,4] y, float[B,4] z)
        <float a = {-2}, float b = {2}, float c = {-1}, float d = {1}, float e = {0}>
        { i = Neg(x)  p = Clip(i, a, b)  y = Clip(p, c, d)  q = Clip(i, a, b)  z = Clip(q, e, b) }"""
    )
    assert passes.merge_clips(model) == 2
    x = np.array([[-3, -1.5, 0.5, 3]], np.float32)
    y, z = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.clip(-x, -1, 1))
    np.testing.assert_array_equal(z, np.clip(-x, 0, 2))


@pytest.mark.parametrize(
    "text",
    [
        "(float[B,4] x) => (float[B,4] y, float[B,4] z) { y = Relu(x)  z = Identity(y) }",
        "(float[B,4] x) => (float[B,4] y, float[B,4] z) { t = Relu(x)  y = Identity(t)  z = Identity(t) }",
        "(float[B,4] x) => (float[B,4] y, float[B,4] z) { y = Relu(x)  z = Relu(x) }",
    ],
)
def test_two_outputs_of_one_value_keep_their_names(text: str) -> None:
    model = parse(text)
    run_passes([passes.share_subexpressions, passes.drop_identities], model)
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert ops(model) == {"Relu": 1, "Identity": 1}
    onnx.checker.check_model(ir.to_proto(model))
