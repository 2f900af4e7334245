"""Transposes that cancel: how many are left, with the numbers of onnxruntime on the graph before."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.cancel_transposes import cancel_transposes
from aot.passes.view_chains import view_chains
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

THERE, BACK = "Transpose<perm = [0, 2, 3, 1]>", "Transpose<perm = [0, 3, 1, 2]>"
NUMBERS = """<float[3] vector = {1, 2, 3}, float[4,1] column = {1, 2, 3, 4}, float half = {0.5},
 int64[8] pads = {0, 1, 0, 2, 0, 0, 1, 0}, int64[2] starts = {1, 0}, int64[2] ends = {9, 2}, int64[2] axes = {1, -1},
 int64[1] last = {-1}, int64[2] image = {1, 2}, int64[2] sizes = {1, 2}, float zero = {0}, float six = {6}>"""


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(t, vector)  b = Add(column, a)  r = Max(b, t, half)",
        "r = Pad(t, pads, half)",
        "r = Slice(t, starts, ends, axes)",
        "r = Softmax<axis = 3>(t)",
        "a = ReduceMean<keepdims = 1>(t, last)  r = Sub(t, a)",
        "a, b = Split<axis = -1>(t, sizes)  r = Concat<axis = -1>(b, a, b)",
        "a = Clip(t, zero, six)  b = Greater(a, half)  r = Where(b, a, vector)",
        "a = Cast<to = 10>(t)  r = Cast<to = 1>(a)",
        "a = PRelu(t, vector)  r = Pow(a, half)",
    ],
    ids=lambda body: body.split("= ", 1)[1].split("(")[0].split("<")[0],
)
def test_transposes_around_ops_that_take_any_layout_are_gone(body: str) -> None:
    model = parse(f"(float[B,3,4,S] x) => (float[B,C,P,Q] y) {NUMBERS} {{ t = {THERE}(x)  {body}  y = {BACK}(r) }}")
    x = np.abs(np.random.default_rng(0).normal(size=(2, 3, 4, 4))).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert cancel_transposes(model) == 1
    assert ops(model)["Transpose"] == 0
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-6)


def test_a_mean_over_the_image_needs_no_transpose() -> None:
    model = parse(f"""(float[B,3,4,S] x) => (float[B,3] y) {NUMBERS}
    {{ t = {THERE}(x)  r = Relu(t)  y = ReduceMean<keepdims = 0>(r, image) }}""")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert cancel_transposes(model) == 1
    assert ops(model) == {"Relu": 1, "ReduceMean": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-6)


def test_several_that_are_joined_come_out_as_one() -> None:
    model = parse(f"""(float[B,3,4,S] x, float[B,3,4,S] z) => (float[B,8,S,3] y, float[B,4,S,3] o)
    {{ a = {THERE}(x)  b = {THERE}(z)  n = Neg(b)  o = Add(a, n)  c = Concat<axis = 1>(a, n)  y = Relu(c) }}""")
    x, z = np.random.default_rng(0).normal(size=(2, 2, 3, 4, 5)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x, z=z)
    # Two outputs want it transposed: two in, two out.
    assert cancel_transposes(model) == 0
    model = parse(f"""(float[B,3,4,S] x, float[B,3,4,S] z) => (float[B,8,S,3] y)
    {{ a = {THERE}(x)  b = {THERE}(z)  n = Neg(b)  c = Concat<axis = 1>(a, n)  y = Relu(c) }}""")
    assert cancel_transposes(model) == 1
    assert ops(model)["Transpose"] == 1
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x, z=z), expected, rtol=1e-5)


def test_attention_with_the_sequence_first_joins_the_views_of_its_heads() -> None:
    weight = ", ".join(["0.1", "-0.2", "0.3", "0.4"] * 4)
    model = parse(f"""(float[B,7,4] x) => (float[B,2,7,2] y) <float[4,4] w = {{{weight}}}, float[4] b = {{1, 2, 3, 4}},
     int64[4] heads = {{7, -1, 2, 2}}>
    {{ t = Transpose<perm = [1, 0, 2]>(x)  m = MatMul(t, w)  a = Add(m, b)  r = Reshape(a, heads)
      y = Transpose<perm = [1, 2, 0, 3]>(r) }}""")
    x = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert cancel_transposes(model) == 1
    view_chains(model)
    assert ops(model) == {"MatMul": 1, "Add": 1, "Reshape": 1, "Transpose": 1}
    assert cancel_transposes(model) == 0
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5)


def test_a_bias_of_an_axis_that_stays_is_left_as_it_is() -> None:
    """Per-head norms have such weights, and are looked for by their form."""
    model = parse("""(float[B,2,S,3] x) => (float[B,2,S,3] y) <float[3] w = {1, 2, 3}>
    { t = Transpose<perm = [0, 2, 1, 3]>(x)  m = Mul(t, w)  u = Transpose<perm = [0, 2, 1, 3]>(m)
      y = Relu(u) }""")
    assert cancel_transposes(model) == 1
    assert ops(model) == {"Mul": 1, "Relu": 1}
    assert model.graph[0].inputs[1] is model.graph.initializers["w"]


def test_a_transposed_output_that_others_read_as_well_keeps_its_value() -> None:
    model = parse(f"""(float[B,3,4,S] x) => (float[B,3,4,S] y, float[B,4,S,3] n)
    {{ t = {THERE}(x)  n = Neg(t)  y = {BACK}(n) }}""")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert cancel_transposes(model) == 1
    assert ops(model)["Transpose"] == 1
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)
    assert [value.name for value in model.graph.outputs] == ["y", "n"]


@pytest.mark.parametrize(
    "body",
    ["r = LayerNormalization<axis = -1>(t, vector)", "a = Add(t, v)  r = Neg(a)", "r = Reshape(t, where)"],
    ids=["along the channels", "a vector that is computed", "a reshape"],
)
def test_what_depends_on_the_layout_stays(body: str) -> None:
    text = f"""(float[B,3,4,5] x, float[3] v, int64[4] where) => (float[B,3,4,5] y) {NUMBERS}
    {{ t = {THERE}(x)  {body}  y = {BACK}(r) }}"""
    assert refused(cancel_transposes, text) == []
