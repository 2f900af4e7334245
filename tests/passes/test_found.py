"""Graphs, cut down to what matters, on which random graphs once found a pass wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from tests.passes.random_graphs import DIMS, Graph
from tests.passes.random_graphs.draft import RUNS
from tests.passes.random_graphs.judge import fault, optimized

FOUND: dict[str, str | tuple[int, str]] = {
    "a half that is an output beside the rotation": """
        g (float[A,B,4] x, float[A,4,B] k) => (float[A,B,B] y, float[A,B,2] first)
        <float[4] c = {1, 2, 3, 4}, float[4] cos = {0.5, -1, 2, 1}, float[4] sin = {1, 3, -2, 0.5}, float half = {0.5},
         int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}>
        { q = Add(x, c)  first = Slice(q, zero, two, two)  second = Slice(q, two, four, two)
          turned = Concat<axis = 2>(second, first)  a = Mul(q, cos)  b = Mul(turned, sin)  s = Add(a, b)
          t = Mul(s, half)  y = MatMul(t, k) }
    """,
    "Relu behind a Clip whose upper bound is negative": """
        g (float[A] x) => (float[A] y) <float low = {-2}> { c = Clip(x, "", low)  y = Relu(c) }
    """,
    "bounds that cross": """
        g (float[A,4] x) => (float[A,4] y) <float zero = {0}, float low = {-2}, float one = {1}>
        { a = Clip(x, zero, low)  y = Clip(a, zero, one) }
    """,
    "a shift of higher rank in front of a product": """
        g (float[3] x) => (float[1,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[1,1] shift = {0.5}>
        { a = Sub(x, shift)  y = MatMul(a, w) }
    """,
    "a factor of higher rank in front of a product": """
        g (float[A,B,2] x) => (float[1,A,B,3] y) <float[1,1,1,1] factor = {2}, float[2,3] w = {1, 2, 3, 4, 5, 6}>
        { a = Mul(x, factor)  y = MatMul(a, w) }
    """,
    "a factor of higher rank in front of a convolution": """
        g (float[1,3,4] x) => (float[1,2,3,4] y) <float[1,1,1,1] factor = {2}, float[2,1,1,1] w = {3, -1}>
        { a = Mul(factor, x)  y = Conv(a, w) }
    """,
    "a branch that nothing reads, which reads others": """
        g (float[A,4] x, bool k) => (float[A,4] y)
        { s = Sigmoid(x)
          d = If(k) <then_branch = t () => (float[A,4] a) { a = Relu(x) },
                     else_branch = e () => (float[A,4] b) { c = Neg(s)  b = Abs(x) }>
          y = Relu(x) }
    """,
    "two equal reshapes, one of which is reshaped to the same again": """
        g (int64[4] x, float[B,1,A] z) => (float[1,B,1,A] y, float[1,B,1,A] w)
        <int64[4] same = {1, 0, 0, 0}, int64 zero = {0}, int64[1] one = {1}, int64[1] at = {0}>
        { s = Shape(z)  t = Concat<axis = 0>(one, s)  a = Reshape(z, t)  y = Reshape(z, t)  w = Reshape(a, same) }
    """,
    "a slice of a slice of the whole": """
        g (float[A,3] x) => (float[A,2] y)
        <int64[1] start = {-100}, int64[1] end = {2147483648}, int64[1] zero = {0}, int64[1] one = {1},
         int64[1] last = {-1}, int64[1] first = {-100}, int64[1] back = {-2}>
        { a = Slice(x, start, end, zero, one)  y = Slice(a, last, first, one, back) }
    """,
    "a norm of constants in an opset in which onnx's reference gets it wrong": (
        13,
        """
        g (float[A,2] x) => (float[A,2] y)
        <float[1,2] c = {0.5, -2}, float[2] s = {0.8, -0.1}, float[2] b = {0.3, -0.5}, float[2] m = {0.6, -0.2},
         float[2] v = {1.9, 0.5}>
        { n = BatchNormalization(c, s, b, m, v)  y = Add(x, n) }
        """,
    ),
    "gate and up, one of which is an output": """
        g (float[A,B,2] x) => (float[A,B,2] y, float[A,B,2] gate)
        <float[2,2] v = {1, 2, 3, 4}, float[2,2] w = {0.5, -1, 2, 1}>
        { gate = MatMul(x, v)  up = MatMul(x, w)  y = Mul(gate, up) }
    """,
    "a transpose that leaves a region of transposed nodes and comes back into it": """
        g (float[A,6,B] x) => (float[A,B,B] y) <int64[2] parts = {5, 1}, bool[1,1] c = {0}>
        { p, q = Split<axis = 1>(x, parts)  a = Transpose<perm = [0, 2, 1]>(q)  n = Neg(a)
          b = Transpose<perm = [0, 2, 1]>(n)  y = Where(c, a, b) }
    """,
    "a dim that is what another one gets by padding": """
        g (float[A,B,8] x, float[A,2,3,B,4] z) => (float[A,2,C,4] y)
        <int64[6] pads = {0, 1, 0, 0, 1, 0}, int64[4] apart = {-1, 0, 2, 4},
         int64[10] more = {0, 0, 0, 0, 0, 0, 0, 0, 2, 0}, int64[1] two = {2}>
        { v = Pad(x, pads)  h = Reshape(v, apart)  t = Transpose<perm = [0, 2, 1, 3]>(h)  s = Shape(t)
          w = Pad(z, more)  m = ReduceMax<keepdims = 0>(w, two)  r = Reshape(m, s)  y = Add(t, r) }
    """,
    "a dim that a product has from a reshape": """
        g (bool[A,B] m, float[A,2,2,B] k, float[A,B,4] x) => (float[A,1,1,B] y)
        <int64[4] heads = {-1, 0, 2, 2}, float low = {-30000}, float[1] zero = {0}, int64[1] start = {0},
         int64[1] end = {1}, int64[2] ones = {1, 1}>
        { h = Reshape(x, heads)  t = Transpose<perm = [0, 2, 1, 3]>(h)  p = MatMul(t, k)  s = Shape(p)
          b = Slice(s, start, end, start)  l = Shape<start = 1>(m)  n = Concat<axis = 0>(b, ones, l)
          r = Reshape(m, n)  y = Where(r, zero, low) }
    """,
    "integers that are divided as hard swish divides": """
        g (int32[A,4] x) => (int32[A,4] y, int32[A,4] z) <int32 three = {3}, int32 zero = {0}, int32 six = {6}>
        { a = Add(x, three)  c = Clip(a, zero, six)  p = Mul(x, c)  y = Div(p, six)
          d = Clip(a, zero, six)  z = Div(d, six) }
    """,
    "integers whose halves add up as those of LeakyRelu do": """
        g (int32[A,4] x) => (int32[A,4] y) <int32 slope = {2}>
        { p = Relu(x)  m = Neg(x)  q = Relu(m)  r = Mul(q, slope)  y = Add(p, r) }
    """,
    "integers that are laid out as for a convolution": """
        g (int32[A,2,3,4] x) => (int32[A,3,3,4] y)
        <int32[2,3] w = {1, 2, 3, 4, 5, 6}, int64[3] flat = {0, 0, -1}, int64[4] image = {0, 3, 3, 4}>
        { r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)  m = MatMul(t, w)
          u = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(u, image) }
    """,
    "an index of ranges in an opset in which axes are attributes": (
        12,
        """
        g (float[A,B] x) => (float[A,1,B] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, int64[1] end = {2}>
        { s = Shape(x)  a1 = Slice(s, first, second)  a0 = Squeeze(a1)  b1 = Slice(s, second, end)  b0 = Squeeze(b1)
          r = Range(zero, a0, one)  c = Range(zero, b0, one)  r3 = Unsqueeze<axes = [1, 2]>(r)
          c3 = Unsqueeze<axes = [0, 1]>(c)  both = Max(r3, c3)  t = Shape(both)  re = Expand(r3, t)
          ce = Expand(c3, t)  r4 = Unsqueeze<axes = [3]>(re)  c4 = Unsqueeze<axes = [3]>(ce)
          index = Concat<axis = -1>(r4, c4)  y = GatherND(x, index) }
        """,
    ),
    "a choice that is always the same, and two of its readers that meet again": """
        g (float[A] x) => (float[A] y) <bool yes = {1}, float[1] c = {2}>
        { w = Where(yes, c, x)  m = Mul(w, c)  y = Add(w, m) }
    """,
    "a cast of a squeezed constant and back": """
        g (int64[A] x) => (int64[A] y) <int64[1] axis = {-1}>
        { c = Constant<value = int64[1] {1}>()  s = Squeeze(c, axis)  f = Cast<to = 1>(s)  i = Cast<to = 7>(f)
          y = Add(x, i) }
    """,
}

"""By name: the graph, in opset 20, or the opset and the graph."""


def fed(model: onnx.ModelProto) -> Graph:
    feeds = []
    for run in range(RUNS):
        rng, feed = np.random.default_rng(run), {}
        for value in model.graph.input:
            shape = [DIMS[d.dim_param][run] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feed[value.name] = np.asarray(rng.normal(size=shape) * 2).astype(dtype)
        feeds.append(feed)
    return Graph(model, tuple(feeds))


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_right_now(name: str) -> None:
    found = FOUND[name]
    opset, text = (20, found) if isinstance(found, str) else found
    graph = fed(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}'))
    assert fault(graph.model, graph.feeds) is None


@pytest.mark.parametrize(
    "text",
    [
        """
        g (double[A,4] x) => (double[A,4] y) <double three = {3}, double zero = {0}, double six = {6}>
        { a = Add(x, three)  c = Clip(a, zero, six)  p = Mul(x, c)  y = Div(p, six) }
        """,
        """
        g (double[A,4] x) => (double[A,4] y, double[A,4] z) <double slope = {0.1}, double zero = {0}>
        { s = Mul(x, slope)  c = Greater(x, zero)  y = Where(c, x, s)  z = Max(s, x) }
        """,
        """
        g (double[A,4] x) => (double[A,4] y) <double[4] slope = {1, 2, 3, 4}>
        { p = Relu(x)  m = Neg(x)  q = Relu(m)  r = Mul(q, slope)  y = Add(p, r) }
        """,
        """
        g (double[A,2,3,4] x) => (double[A,3,3,4] y)
        <double[2,3] w = {1, 2, 3, 4, 5, 6}, int64[3] flat = {0, 0, -1}, int64[4] image = {0, 3, 3, 4}>
        { r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)  m = MatMul(t, w)
          u = Transpose<perm = [0, 2, 1]>(m)  y = Reshape(u, image) }
        """,
    ],
    ids=["hard swish", "leaky", "halves", "image"],
)
def test_what_onnxruntime_runs_in_fp64_it_still_runs(text: str) -> None:
    """It has no kernel in FP64 for some of the ops that take the place of several."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}')
    for one in (model, optimized(model)):
        ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
