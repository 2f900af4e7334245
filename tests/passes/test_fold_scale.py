"""Constants folded into layers: against onnxruntime on the graph as it was, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from aot import passes
from aot.graph import infer_shapes
from tests.passes.test_limits import HEAD, ops, refused, run_by_onnxruntime

RNG = np.random.default_rng(0)


def model_of(text: str, **weights: Any) -> ir.Model:
    """The graph of `text` with initializers of those values, in FP32 unless they are of numpy already."""
    proto = onnx.parser.parse_model(HEAD + text)
    for name, value in weights.items():
        data = value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


def check(model: ir.Model, left: dict[str, int], sites: int | None = None, **inputs: Any) -> None:
    """Both passes together leave those ops, and the numbers as they were."""
    expected = run_by_onnxruntime(model, **inputs)
    done = passes.fold_batch_norm(model) + passes.fold_scale(model) + passes.fold_query_scale(model)
    assert sites is None or done == sites
    assert ops(model) == left
    got = run_by_onnxruntime(model, **inputs)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


LAYERS = {
    "conv": ("Conv<pads = [1, 1, 1, 1]>", (4, 3, 3, 3), (2, 3, 5, 5)),
    "grouped": ("Conv<group = 2, pads = [1, 1, 1, 1]>", (4, 2, 3, 3), (2, 4, 5, 5)),
    "depthwise": ("Conv<group = 4>", (4, 1, 3, 3), (2, 4, 5, 5)),
    "transposed": ("ConvTranspose", (3, 4, 2, 2), (2, 3, 5, 5)),
    "transposed, grouped": ("ConvTranspose<group = 2>", (4, 2, 2, 2), (2, 4, 5, 5)),
    "conv of one dim": ("Conv", (4, 3, 3), (2, 3, 7)),
}


@pytest.mark.parametrize("bias", ["", ", c"], ids=["no bias", "bias"])
@pytest.mark.parametrize("layer", LAYERS)
def test_scale_and_shift_behind_a_convolution_are_its_own(layer: str, bias: str) -> None:
    op, weight, shape = LAYERS[layer]
    rank = ",".join("PQRT"[: len(shape)])
    model = model_of(
        f"""(float[{",".join(map(str, shape))}] x) => (float[{rank}] y)
        {{ a = {op}(x, w{bias})  b = Div(a, s)  y = Sub(t, b) }}""",
        w=normal(*weight),
        s=np.abs(normal(4, *[1] * (len(shape) - 2))) + 0.5,
        t=normal(1, 4, *[1] * (len(shape) - 2)),
        **({"c": normal(4)} if bias else {}),
    )
    check(model, {op.partition("<")[0]: 1}, sites=2, x=normal(*shape))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_factor_in_front_of_a_convolution_is_its_own(layer: str) -> None:
    op, weight, shape = LAYERS[layer]
    rank = ",".join("PQRT"[: len(shape)])
    model = model_of(
        f"(float[{','.join(map(str, shape))}] x) => (float[{rank}] y) {{ r = Relu(x)  a = Mul(s, r)  y = {op}(a, w) }}",
        w=normal(*weight),
        s=normal(shape[1], *[1] * (len(shape) - 2)),
    )
    check(model, {"Relu": 1, op.partition("<")[0]: 1}, sites=1, x=normal(*shape))


def test_a_shift_passes_a_convolution_that_pads_nothing() -> None:
    model = model_of(
        """(float[2,4,5,5] x) => (float[P,Q,R,T] y)
        { r = Relu(x)  a = Mul(r, s)  b = Add(a, t)  y = Conv<group = 2>(b, w, c) }""",
        w=normal(6, 2, 3, 3),
        c=normal(6),
        s=normal(4, 1, 1),
        t=normal(4, 1, 1),
    )
    check(model, {"Relu": 1, "Conv": 1}, sites=2, x=normal(2, 4, 5, 5))


def test_a_factor_passes_a_shift_that_has_to_stay() -> None:
    """Zeros beyond the border are scaled, which changes nothing, but would have to be shifted."""
    model = model_of(
        """(float[2,4,5,5] x) => (float[P,Q,R,T] y)
        { r = Relu(x)  a = Mul(r, s)  b = Add(a, t)  y = Conv<pads = [1, 1, 1, 1]>(b, w) }""",
        w=normal(6, 4, 3, 3),
        s=np.float32(0.3),
        t=normal(4, 1, 1),
    )
    check(model, {"Relu": 1, "Add": 1, "Conv": 1}, sites=1, x=normal(2, 4, 5, 5))


def test_an_input_keeps_its_shift() -> None:
    """Pixels around 1000 with the mean taken off: folded, the layer's result would be a difference of large numbers."""
    text = """(float[2,3,5,5] x) => (float[P,Q,R,T] y) <float[1,3,1,1] w = {1, 2, 3}, float m = {1000}>
    { a = Sub(x, m)  y = Conv(a, w) }"""
    assert refused(passes.fold_scale, text) == []


@pytest.mark.parametrize("weight", [(4, 6), (6, 4)], ids=["in, out", "transB"])
def test_factors_around_a_gemm(weight: tuple[int, int]) -> None:
    turned = "transB = 1, " if weight == (6, 4) else ""
    model = model_of(
        f"""(float[B,4] x) => (float[B,6] y)
        {{ r = Relu(x)  a = Mul(r, s)  b = Gemm<{turned}alpha = 0.5, beta = 2.0>(a, w, c)  y = Mul(b, t) }}""",
        w=normal(*weight),
        c=normal(6),
        s=normal(4),
        t=normal(1, 6),
    )
    check(model, {"Relu": 1, "Gemm": 1}, sites=2, x=normal(3, 4))


def test_factors_around_a_matmul_and_its_bias() -> None:
    model = model_of(
        """(float[B,S,4] x) => (float[B,S,6] y)
        { r = Relu(x)  a = Mul(r, s)  b = MatMul(a, w)  d = Add(c, b)  e = Mul(d, t)  y = Add(e, u) }""",
        w=normal(4, 6),
        c=normal(6),
        s=normal(4),
        t=normal(6),
        u=normal(6),
    )
    check(model, {"Relu": 1, "MatMul": 1, "Add": 1}, sites=3, x=normal(2, 3, 4))


def test_the_bias_of_a_matmul_of_three_dims_stays_an_add() -> None:
    text = """(float[B,S,2] x) => (float[B,S,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] c = {1, 2}>
    { a = MatMul(x, w)  y = Add(a, c) }"""
    assert refused(passes.fold_scale, text) == []


def test_constants_that_are_no_channels_stay() -> None:
    """A map of positions, one a row, and one that would give the result another rank."""
    for shape in ("4,5,5", "5,1", "1,1,4,1,1"):
        count = int(np.prod(tuple(map(int, shape.split(",")))))
        text = f"""(float[2,4,5,5] x) => (float[...] y) <float[4,4,1,1] w = {{{", ".join("1" * 16)}}},
        float[{shape}] t = {{{", ".join("2" * count)}}}> {{ a = Conv(x, w)  y = Mul(a, t) }}"""
        assert len(refused(passes.fold_scale, text.replace("float[...]", "float"))) == 1


def test_a_weight_that_is_read_elsewhere_is_not_scaled_but_takes_a_shift() -> None:
    text = "(float[2,3,5,5] x) => (float[2,3,5,5] y, float[2,3,5,5] z) { a = Conv(x, w)  y = OP(a, t)  z = Conv(y, w) }"
    weights = {"w": normal(3, 3, 1, 1), "t": np.float32(2)}
    assert passes.fold_scale(model_of(text.replace("OP", "Mul"), **weights)) == 0
    check(model_of(text.replace("OP", "Add"), **weights), {"Conv": 2}, sites=1, x=normal(2, 3, 5, 5))


def test_a_result_that_is_needed_too_stays() -> None:
    text = """(float[B,2] x) => (float[B,2] y, float[B,2] a) <float[2,2] w = {1, 2, 3, 4}, float t = {2}>
    { a = Gemm(x, w)  y = Mul(a, t) }"""
    assert any("needed too" in reason for reason in refused(passes.fold_scale, text))


def test_narrow_weights_and_those_that_would_overflow_stay() -> None:
    text = "(DTYPE[B,2] x) => (DTYPE[B,2] y) { a = Gemm(x, w)  y = Mul(a, t) }"
    half = model_of(text.replace("DTYPE", "float16"), w=np.ones((2, 2), np.float16), t=np.float16(2))
    assert passes.fold_scale(half) == 0
    large = model_of(text.replace("DTYPE", "float"), w=np.full((2, 2), 1e30, np.float32), t=np.float32(1e30))
    assert passes.fold_scale(large) == 0


def test_integers_and_infinities_stay() -> None:
    text = "(DTYPE[B,2] x) => (DTYPE[B,2] y) { a = MatMul(x, w)  y = Add(a, t) }"
    whole = model_of(text.replace("DTYPE", "int32"), w=np.ones((2, 2), np.int32), t=np.int32(2))
    assert passes.fold_scale(whole) == 0
    masked = model_of(text.replace("DTYPE", "float"), w=normal(2, 2), t=np.array([0, -np.inf], np.float32))
    assert passes.fold_scale(masked) == 0


def test_a_norm_keeps_its_scale() -> None:
    text = """(float[B,2] x, float[B,1] d) => (float[B,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] g = {1, 2}>
    { n = Div(x, d)  s = Mul(n, g)  y = MatMul(s, w) }"""
    assert refused(passes.fold_scale, text) == []


def test_a_layer_outside_a_branch_stays_there() -> None:
    """Folded, it would be computed within."""
    text = """(float[B,2] x, bool[] c) => (float[B,2] y) <float[2,2] w = {1, 2, 3, 4}, float t = {2}>
    { a = Gemm(x, w)  y = If(c)<then_branch = g () => (float[B,2] p) { p = Mul(a, t) },
                                else_branch = h () => (float[B,2] q) { q = Neg(x) }> }"""
    assert refused(passes.fold_scale, text) == []


NORM = {"g": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}


@pytest.mark.parametrize(
    ("layer", "weight", "left"),
    [
        ("Conv(n, w)", (6, 4, 3, 3), {"Conv": 1}),
        ("Conv<group = 2>(n, w)", (6, 2, 3, 3), {"Conv": 1}),
        ("Conv<pads = [0, 1, 0, 1]>(n, w)", (6, 4, 3, 3), {"BatchNormalization": 1, "Conv": 1}),
        ('Conv<auto_pad = "SAME_UPPER">(n, w)', (6, 4, 3, 3), {"BatchNormalization": 1, "Conv": 1}),
        ("ConvTranspose(n, w)", (4, 6, 3, 3), {"BatchNormalization": 1, "ConvTranspose": 1}),
    ],
)
def test_a_norm_in_front_of_a_convolution(layer: str, weight: tuple[int, ...], left: dict[str, int]) -> None:
    model = model_of(
        f"(float[2,4,5,5] x) => (float[P,Q,R,T] y) {{ n = BatchNormalization(x, g, b, m, v)  y = {layer} }}",
        w=normal(*weight),
        **NORM,
    )
    check(model, left, x=normal(2, 4, 5, 5))


def test_a_norm_in_front_of_and_behind_a_matmul() -> None:
    model = model_of(
        """(float[B,4] x) => (float[B,4] y)
        { n = BatchNormalization(x, g, b, m, v)  a = MatMul(n, w)  y = BatchNormalization(a, g, b, m, v) }""",
        w=normal(4, 4),
        **NORM,
    )
    check(model, {"Gemm": 1}, sites=2, x=normal(5, 4))


def test_a_norm_over_another_axis_than_the_matmul_s_stays() -> None:
    model = model_of(
        "(float[B,4,4] x) => (float[B,4,4] y) { a = MatMul(x, w)  y = BatchNormalization(a, g, b, m, v) }",
        w=normal(4, 4),
        **NORM,
    )
    assert passes.fold_batch_norm(model) == 0


def test_a_norm_of_values_far_from_zero_stays_in_front() -> None:
    model = model_of(
        "(float[B,4] x) => (float[B,4] y) { n = BatchNormalization(x, g, b, m, v)  y = MatMul(n, w) }",
        w=normal(4, 4),
        **{**NORM, "m": np.full(4, 1000, np.float32)},
    )
    assert passes.fold_batch_norm(model) == 0


def test_a_norm_in_training_mode_stays() -> None:
    text = """(float[B,1,3,3] x) => (float[B,1,3,3] y)
    <float[1,1,1,1] w = {2}, float[1] g = {1}, float[1] b = {0}, float[1] m = {0}, float[1] v = {1}>
    { c = Conv(x, w)  y, p, q = BatchNormalization<training_mode = 1>(c, g, b, m, v) }"""
    assert any("training" in reason for reason in refused(passes.fold_batch_norm, text))


def test_a_weight_is_rounded_once_however_much_is_folded_into_it() -> None:
    w, s, t = normal(4, 3, 1, 1), normal(4, 1, 1), normal(1)
    model = model_of(
        """(float[2,3,5,5] x) => (float[2,4,5,5] y)
        { a = Conv(x, w)  n = BatchNormalization(a, g, b, m, v)  d = Mul(n, s)  y = Mul(d, t) }""",
        w=w,
        s=s,
        t=t,
        **NORM,
    )
    assert passes.fold_batch_norm(model) + passes.fold_scale(model) == 3
    (conv,) = model.graph
    folded = conv.inputs[1]
    assert folded is not None
    assert folded.const_value is not None
    gamma, var = NORM["g"].astype(np.float64), NORM["v"].astype(np.float64)
    exact = (
        w
        * (gamma / np.sqrt(var + float(np.float32(1e-5)))).reshape(-1, 1, 1, 1)
        * s.reshape(-1, 1, 1, 1)
        * np.float64(t)
    )
    np.testing.assert_array_equal(folded.const_value.numpy(), exact.astype(np.float32))


def test_a_sign_is_the_layer_s_own() -> None:
    model = model_of(
        "(float[2,3,5,5] x) => (float[2,4,5,5] y) { a = Conv(x, w, c)  y = Neg(a) }", w=normal(4, 3, 1, 1), c=normal(4)
    )
    check(model, {"Conv": 1}, sites=1, x=normal(2, 3, 5, 5))


def test_a_scale_of_channels_passes_a_transpose() -> None:
    model = model_of(
        """(float[B,3,5,8] x) => (float[B,8,3,5] y)
        { a = MatMul(x, w)  b = Add(a, c)  t = Transpose<perm = [0, 3, 1, 2]>(b)  u = Mul(t, s)  y = Relu(u) }""",
        w=normal(8, 8),
        c=normal(8),
        s=normal(8, 1, 1),
    )
    check(model, {"MatMul": 1, "Add": 1, "Transpose": 1, "Relu": 1}, sites=1, x=normal(2, 3, 5, 8))


def test_a_shift_of_channels_passes_a_squeeze_and_an_unsqueeze() -> None:
    model = model_of(
        """(float[B,3,7,1] x) => (float[B,1,4,7] y)
        { a = Conv(x, w)  b = Squeeze(a, last)  u = Unsqueeze(b, first)  s = Add(u, c)  y = Relu(s) }""",
        w=normal(4, 3, 1, 1),
        c=normal(4, 1),
        last=np.array([-1], np.int64),
        first=np.array([1], np.int64),
    )
    check(model, {"Conv": 1, "Squeeze": 1, "Unsqueeze": 1, "Relu": 1}, sites=1, x=normal(2, 3, 7, 1))


def test_a_scale_of_heads_does_not_pass_the_view_that_makes_them() -> None:
    model = model_of(
        "(float[B,3,8] x) => (float[B,3,2,4] y) { a = MatMul(x, w)  r = Reshape(a, heads)  y = Mul(r, s) }",
        w=normal(8, 8),
        s=normal(2, 1),
        heads=np.array([0, 0, 2, 4], np.int64),
    )
    assert passes.fold_scale(model) + passes.fold_query_scale(model) == 0


@pytest.mark.parametrize("size", [0.3, 30.0])
def test_factors_wait_for_the_graph_to_be_written_and_are_rounded_once(size: float) -> None:
    weight, first, second = normal(80, 80), np.float32(size), normal(80)
    model = model_of(
        "(float[B,80] x) => (float[B,80] y) { a = MatMul(x, w)  b = Mul(a, s)  y = Mul(b, t) }",
        w=weight,
        s=first,
        t=second,
    )
    check(model, {"MatMul": 1}, sites=2, x=normal(3, 80))
    (left,) = (value.const_value for value in model.graph.initializers.values())
    assert isinstance(left, ir.LazyTensor)
    exact = weight.astype(np.float64) * np.float64(first) * second.astype(np.float64)
    np.testing.assert_array_equal(left.numpy(), exact.astype(np.float32))


def test_what_may_overflow_does_not_wait() -> None:
    """The largest weight meets the smallest factor: each alone says no more than that their product may overflow."""
    text = "(float[B,80] x) => (float[B,80] y) { a = MatMul(x, w)  y = Mul(a, t) }"
    weight, factor = np.ones((80, 80), np.float32), np.full(80, 1e20, np.float32)
    weight[:, 0], factor[0] = 1e30, 1
    fine = model_of(text, w=weight, t=factor)
    check(fine, {"MatMul": 1}, sites=1, x=np.abs(normal(3, 80)))
    (left,) = (value.const_value for value in fine.graph.initializers.values())
    assert not isinstance(left, ir.LazyTensor)
    weight[:, 1] = 1e30
    assert passes.fold_scale(model_of(text, w=weight, t=factor)) == 0
