"""Ways in which graph surgery of other tools went wrong in public, each held against eager or onnxruntime.

The models are ours; what they have in common with the reports is the shape of the graph.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from aot.optimize import optimize
from aot.optimize_file import optimize_file
from tests.passes.random_graphs.judge import run

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 10, opset_import: ["" : 20]> '
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def model(text: str, **weights: Array) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


def optimized(proto: onnx.ModelProto) -> onnx.ModelProto:
    graph = ir.from_proto(proto)
    optimize(graph)
    after = ir.to_proto(graph)
    onnx.checker.check_model(after, full_check=True)
    return after


def held_equal(proto: onnx.ModelProto, *feeds: dict[str, Array], rtol: float = 1e-5) -> onnx.ModelProto:
    """The optimized model, found equal to the given one on every set of inputs."""
    after = optimized(proto)
    assert [value.name for value in after.graph.output] == [value.name for value in proto.graph.output]
    for want, got in zip(run(proto, feeds), run(after, feeds), strict=True):
        for a, b in zip(want, got, strict=True):
            assert b.shape == a.shape
            np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * max(float(np.abs(a).max(initial=0)), 1e-3))
    return after


def ops(proto: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.graph.node)


def bytes_of_weights(proto: onnx.ModelProto) -> int:
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in proto.graph.initializer)


# Slices in a row: https://github.com/inisis/OnnxSlim/issues/277, where merging them changed the numbers.


def sliced(*steps: tuple[int, int, int]) -> onnx.ModelProto:
    """x[B, N], sliced along N by (start, end, step) again and again."""
    nodes, weights, last = [], [], "x"
    for index, step in enumerate(steps):
        names = [f"{part}{index}" for part in ("start", "end", "axis", "step")]
        for name, value in zip(names, (step[0], step[1], 1, step[2]), strict=True):
            weights.append(numpy_helper.from_array(np.array([value], np.int64), name))
        out = "y" if index == len(steps) - 1 else f"t{index}"
        nodes.append(helper.make_node("Slice", [last, *names], [out]))
        last = out
    put = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", "N"])
    get = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["B", None])
    graph = helper.make_graph(nodes, "slices", [put], [get], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


END = (1 << 63) - 1


@pytest.mark.parametrize(
    "steps",
    [
        [(2, END, 1), (0, -3, 1), (0, END, 2)],
        [(1, 9, 1), (3, 100, 1)],
        [(-6, END, 1), (1, -1, 1)],
        [(0, END, 2), (1, END, 2)],
        [(4, END, 1), (0, 2, 1)],
        [(-1, -END, -1), (2, END, 1)],
        [(-100, 5, 1), (-2, END, 1)],
        [(0, -1, 1), (0, -1, 1), (-3, -1, 1)],
    ],
    ids=str,
)
def test_slices_in_a_row_give_what_numpy_gives(steps: list[tuple[int, int, int]]) -> None:
    proto = sliced(*steps)
    feeds = [{"x": drawn(2, n)} for n in (10, 14, 15, 31)]
    after = held_equal(proto, *feeds)
    for feed, (got,) in zip(feeds, run(after, feeds), strict=True):
        want = feed["x"]
        for start, end, step in steps:
            want = want[:, start : None if abs(end) == END else end : step]
        np.testing.assert_array_equal(got, want)


def test_a_slice_that_two_read_is_right_for_both() -> None:
    text = """g (float[B,N] x) => (float[B,2] y)
    <int64[1] four = {4}, int64[1] six = {6}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] two = {2},
     int64[1] end = {9223372036854775807}>
    { a = Slice(x, four, end, one)  b = Slice(a, zero, two, one)  c = Slice(x, four, six, one)  y = Add(b, c) }"""
    held_equal(model(text), {"x": drawn(2, 9)}, {"x": drawn(3, 6)})


# A bias is one on either side: https://github.com/inisis/OnnxSlim/issues/160, where only one was seen.


def test_a_bias_on_either_side_joins_its_product() -> None:
    left, right = (
        model(f"g (float[M,4] x) => (float[M,6] y) {{ h = MatMul(x, w)  y = Add({sides}) }}", w=drawn(4, 6), b=drawn(6))
        for sides in ("h, b", "b, h")
    )
    x = drawn(3, 4)
    after = [held_equal(proto, {"x": x}) for proto in (left, right)]
    assert ops(after[0]) == ops(after[1]) == {"Gemm": 1}


def test_a_product_that_two_read_stays_for_both() -> None:
    text = """g (float[M,4] x, float[2,M,4] z) => (float[M,6] y, float[2,M,6] r, float[2,M,6] u, float[M,6] v)
    <int64[1] zero = {0}, int64[1] one = {1}>
    { p = MatMul(x, w)  h = Add(b, p)  g = Mul(h, s)  y = Add(g, b)  a = Relu(h)  r = MatMul(a, w3)
      q = MatMul(z, w)  u = Add(q, b)  top = Slice(h, zero, one, zero)  k = MatMul(x, w)  v = Add(k, top) }"""
    proto = model(text, w=drawn(4, 6), b=drawn(6), s=drawn(6), w3=drawn(2, 6, 6))
    after = held_equal(proto, *({"x": drawn(m, 4), "z": drawn(2, m, 4)} for m in (3, 1)))
    assert sum(ops(after)[op] for op in ("MatMul", "Gemm")) == 3  # x w is computed once
    batched = next(n for n in after.graph.node if "w3" in n.input)
    assert batched.op_type == "MatMul"  # a weight of a matrix for each batch is no weight of a Gemm


# A branch that is never taken: https://github.com/microsoft/onnxscript/issues/2810, where axes were lost with it;
# https://github.com/NVIDIA/TensorRT/issues/2846, where TensorRT wants branches of one shape.


@pytest.mark.parametrize("flag", [True, False])
def test_a_decided_branch_takes_its_constants_along(flag: bool) -> None:
    text = """g (float[B,1,4,5] x) => (float[B,1,5] y)
    { y = If(flag) <
        then_branch = t () => (float[B,1,5] m) <int64[1] two = {2}, int64[1] one = {1}>
          { a = ReduceMean(x, two)  m = Squeeze(a, one) },
        else_branch = e () => (float[B,1,5] n)
          { two = Constant<value = int64[1] {2}>()  one = Constant<value = int64[1] {1}>()
            a = ReduceMax(x, two)  n = Squeeze(a, one) }> }"""
    proto = model(text, flag=np.array(flag))
    after = held_equal(proto, {"x": drawn(3, 1, 4, 5)}, {"x": drawn(1, 1, 4, 5)})
    assert "If" not in ops(after)
    assert ops(after)["ReduceMean" if flag else "ReduceMax"] == 1
    assert after.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "B"


# Norms behind convolutions: https://github.com/onnx/tensorflow-onnx/pull/2454 and
# https://github.com/pytorch/pytorch/issues/166797, with a bias of the wrong length, or along the wrong axis.


def test_norms_fold_along_the_output_channels_and_only_where_nothing_else_reads() -> None:
    text = """g (float[B,4,6,6] x) => (float[B,6,12,12] y, float[B,6,12,12] z, float[B,6,12,12] raw)
    { c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2>(x, w1)  n = BatchNormalization(c, g8, b8, m8, v8)
      r = Relu(n)  u = ConvTranspose<strides = [2, 2], group = 2>(r, w2)  k = BatchNormalization(u, g6, b6, m6, v6)
      raw = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(k, w3)
      y = BatchNormalization(raw, h6, b6, m6, v6)
      f = Neg(k)  d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(f, w3)
      z = BatchNormalization(d, g6, b6, m6, v6) }"""
    weights = {"w1": drawn(8, 2, 3, 3), "w2": drawn(8, 3, 2, 2), "w3": drawn(6, 6, 3, 3)}
    for size, names in ((8, "gbm"), (6, "gbmh")):
        weights |= {f"{name}{size}": drawn(size) for name in names}
        weights[f"v{size}"] = np.abs(drawn(size)) + np.float32(0.5)
    after = held_equal(model(text, **weights), {"x": drawn(2, 4, 6, 6)}, {"x": drawn(1, 4, 6, 6)})
    assert ops(after)["Conv"] == 3
    assert ops(after)["BatchNormalization"] == 1  # the one whose convolution is an output itself
    shapes = {tensor.name: tuple(tensor.dims) for tensor in after.graph.initializer}
    for node in after.graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 2:
            weight = shapes[node.input[1]]
            groups = next((a.i for a in node.attribute if a.name == "group"), 1)
            assert shapes[node.input[2]] == (weight[1] * groups if node.op_type == "ConvTranspose" else weight[0],)


# Folding that makes a file larger: https://github.com/onnxsim/onnxsim/issues/178, 1 MB that became gigabytes.


def test_folding_does_not_blow_a_file_up() -> None:
    """Rows and columns of 512 that are expanded to 8 x 512 x 512, repeated, and ones of that size."""
    text = """g (float[1,8,512,512] x) => (float[1,8,512,512] y)
    <int64[4] full = {1, 8, 512, 512}, int64[4] once = {1, 1, 1, 1}, int64[3] times = {8, 1, 512}, int64[1] first = {0},
     int64[1] second = {1}>
    { sum = Add(row, column)  four = Unsqueeze(sum, second)  e = Expand(four, full)  grid = Tile(e, once)
      tiled = Tile(row, times)  tile = Unsqueeze(tiled, first)
      one = ConstantOfShape<value = float[1] {1}>(full)
      a = Mul(x, grid)  b = Mul(tile, one)  y = Add(a, b) }"""
    proto = model(text, row=drawn(1, 512, 1), column=drawn(1, 1, 512))
    # A megabyte of weight as a model has it beside its constants.
    proto.graph.node.append(helper.make_node("Gather", ["table", "second"], ["looked"]))
    proto.graph.output.append(helper.make_tensor_value_info("looked", onnx.TensorProto.FLOAT, [1, 256]))
    proto.graph.initializer.append(numpy_helper.from_array(drawn(1024, 256), "table"))
    after = held_equal(proto, {"x": drawn(1, 8, 512, 512)})
    assert bytes_of_weights(after) <= 1.5 * bytes_of_weights(proto)


# One matrix for embedding and head: https://github.com/huggingface/optimum/pull/1326, where it was stored twice.


def test_a_matrix_of_two_uses_is_stored_once() -> None:
    text = """g (int64[B,T] ids) => (float[B,T,2000] y)
    { e = Gather(table, ids)  h = MatMul(e, w)  r = Relu(h)  t = Transpose<perm = [1, 0]>(table)  y = MatMul(r, t) }"""
    proto = model(text, table=drawn(2000, 64), w=drawn(64, 64))
    after = held_equal(proto, {"ids": RNG.integers(0, 2000, (2, 5))}, {"ids": RNG.integers(0, 2000, (1, 9))})
    assert bytes_of_weights(after) <= 600_000
    assert bytes_of_weights(after) <= 1.02 * bytes_of_weights(proto)


# Weights beyond the 2 GB of a protobuf: https://github.com/onnx/onnx/issues/6529.


@pytest.mark.slow
def test_weights_beyond_two_gigabytes_stay_beside_the_file(tmp_path: Path) -> None:
    """A table of 9,000,000 x 64 in FP32, of which only the first rows are not zero: a sparse file on most disks."""
    rows, width, size = 9_000_000, 64, 9_000_000 * 64 * 4
    text = """g (int64[B,5] ids) => (float[B,4] y) <int64[1] one = {1}>
    { i = Identity(ids)  e = Gather(table, i)  m = ReduceMean<keepdims = 0>(e, one)  y = Gemm(m, w, b) }"""
    proto = model(text, w=drawn(width, 4), b=drawn(4))
    table = onnx.TensorProto(name="table", dims=[rows, width], data_type=onnx.TensorProto.FLOAT)
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "table.bin", "offset": 0, "length": size}.items():
        table.external_data.add(key=key, value=str(value))
    proto.graph.initializer.append(table)
    head = drawn(100, width)
    with (tmp_path / "table.bin").open("wb") as file:
        file.write(head.tobytes())
        file.truncate(size)
    onnx.save(proto, tmp_path / "in.onnx")
    optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 1 << 20
    after = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert "Identity" not in ops(after)
    ids = RNG.integers(0, 100, (4, 5))
    (got,) = ort.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"]).run(
        None, {"ids": ids}
    )
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    want = head[ids].mean(1) @ numpy_helper.to_array(weights["w"]) + numpy_helper.to_array(weights["b"])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
