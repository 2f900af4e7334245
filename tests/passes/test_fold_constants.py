"""Constants are folded to what onnxruntime computes, in every opset; and what has to stay, stays."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot import passes
from aot.graph import infer_shapes

A = np.array([[-7.5, 2.25, 0.5], [3.0, -1.0, 9.75]], np.float32)
B = np.array([[2.0], [-0.5]], np.float32)
N = np.array([[-7, 2, 5], [3, -1, 9]], np.int64)
J = np.array([2, -3, 4], np.int64)
T = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def fold(
    op: str, inputs: list[Any], opset: int, outputs: int = 1, **attributes: Any
) -> tuple[list[Any], list[Any], ir.Model]:
    """What onnxruntime computes of one node over constants; what it is folded to; the folded model.

    An Identity reads every result, so that the results are no outputs of the graph themselves.
    """
    given = [f"i{at}" if value is not None else "" for at, value in enumerate(inputs)]
    made = [f"t{at}" for at in range(outputs)]
    nodes = [helper.make_node(op, given, made, **attributes)]
    nodes += [helper.make_node("Identity", [f"t{at}"], [f"o{at}"]) for at in range(outputs)]
    held = [numpy_helper.from_array(v, n) for n, v in zip(given, inputs, strict=True) if v is not None]
    kinds = [helper.make_empty_tensor_value_info(f"o{at}") for at in range(outputs)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [], kinds, held), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})
    folded = ir.from_proto(model)
    infer_shapes(folded)
    assert passes.fold_constants(folded) > 0
    assert {node.op_type for node in folded.graph} == {"Identity"}
    results = [node.inputs[0].const_value.numpy() for node in folded.graph]  # type: ignore[union-attr]
    return list(expected), results, folded


CASES: list[tuple[str, list[Any], int, dict[str, Any]]] = [
    *((op, [A, B], 13, {}) for op in ("Add", "Sub", "Mul", "Div", "Less", "Greater", "Equal", "LessOrEqual")),
    *((op, [N, J], 13, {}) for op in ("Add", "Sub", "Mul", "Div", "Mod", "Less", "Equal", "GreaterOrEqual")),
    ("Add", [A, B], 7, {}),
    ("Mod", [N, J], 13, {"fmod": 1}),
    ("Mod", [A, B], 13, {"fmod": 1}),
    ("Pow", [np.abs(A), B], 13, {}),
    ("Pow", [A, ints(2)], 13, {}),
    ("Pow", [N, np.array(2.0, np.float32)], 13, {}),
    *((op, [A], 13, {}) for op in ("Neg", "Abs", "Sign", "Ceil", "Floor", "Round", "Relu", "Reciprocal")),
    *((op, [A], 13, {}) for op in ("Exp", "Tanh", "Sigmoid", "Erf", "Softmax", "HardSigmoid")),
    ("Round", [np.array([0.5, 1.5, -2.5], np.float32)], 13, {}),
    *((op, [A, B, A[:1]], 13, {}) for op in ("Min", "Max", "Sum")),
    *((op, [A > 0, B > 0], 13, {}) for op in ("And", "Or", "Xor")),
    ("Not", [A > 0], 13, {}),
    ("Where", [A > 0, A, B], 13, {}),
    ("Clip", [A], 7, {"min": -1.0, "max": 2.0}),
    ("Clip", [A], 7, {"max": 2.0}),
    ("Clip", [A, np.float32(-1).reshape(()), None], 13, {}),
    ("Clip", [A, None, np.float32(1).reshape(())], 13, {}),
    *(("Cast", [A], 13, {"to": to}) for to in (1, 3, 5, 6, 7, 9, 10, 11)),
    *(("Cast", [N], 13, {"to": to}) for to in (1, 2, 3, 6, 9, 10, 11)),
    ("CastLike", [A, N], 15, {}),
    *((op, [T, ints(1)], 18, {"keepdims": 0}) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")),
    *((op, [T], 13, {"axes": [0, -1]}) for op in ("ReduceMean", "ReduceMax", "ReduceL2", "ReduceSumSquare")),
    ("ReduceSum", [T, ints(0, -1)], 13, {}),
    ("ReduceSum", [T, ints()], 13, {"noop_with_empty_axes": 1}),
    ("ReduceSum", [T], 11, {"axes": [1]}),
    ("ReduceMean", [T], 18, {}),
    ("ArgMax", [N], 13, {"axis": 1}),
    ("ArgMin", [np.array([[1, 1, 2]], np.float32)], 13, {"axis": -1, "keepdims": 0, "select_last_index": 1}),
    ("CumSum", [T, np.array(1, np.int64)], 14, {}),
    ("CumSum", [T, np.array(-1, np.int64)], 14, {"exclusive": 1, "reverse": 1}),
    ("MatMul", [T, T[0].T.copy()], 13, {}),
    ("Reshape", [T, ints(0, -1)], 13, {}),
    ("Reshape", [np.zeros((0, 3), np.float32), ints(3, 0)], 14, {"allowzero": 1}),
    ("Flatten", [T], 13, {"axis": 2}),
    ("Flatten", [T], 13, {"axis": 0}),
    ("Transpose", [T], 13, {}),
    ("Transpose", [T], 13, {"perm": [1, 2, 0]}),
    ("Unsqueeze", [T], 11, {"axes": [0, 4]}),
    ("Unsqueeze", [T, ints(-1, 1)], 13, {}),
    ("Squeeze", [T[:1, :1]], 11, {"axes": [0]}),
    ("Squeeze", [T[:1, :1], ints(-2)], 13, {}),
    ("Squeeze", [T[:1, :1]], 13, {}),
    ("Expand", [B, ints(4, 1, 3)], 13, {}),
    ("Tile", [A, ints(2, 3)], 13, {}),
    ("Concat", [A, A], 13, {"axis": -1}),
    ("Slice", [T], 9, {"starts": [1, -3], "ends": [9, -1], "axes": [0, 2]}),
    ("Slice", [T, ints(-1, 0), ints(-9, 9), ints(2, 1), ints(-2, 2)], 13, {}),
    ("Slice", [T, ints(1), ints(2)], 10, {}),
    ("Gather", [T, ints(-1, 0, 1)], 13, {"axis": 2}),
    ("Gather", [T, np.array(1, np.int64)], 13, {}),
    ("GatherElements", [A, np.array([[0, -1], [1, 1]], np.int64)], 13, {"axis": 1}),
    ("GatherND", [T, ints(1, 2)], 13, {}),
    ("GatherND", [T, np.array([[[0, 1]], [[2, 3]]], np.int64)], 13, {"batch_dims": 1}),
    ("ScatterND", [T, np.array([[1, 2], [0, 0]], np.int64), T[0, 1:]], 13, {}),
    ("ScatterND", [A, np.array([[0], [0]], np.int64), A], 16, {"reduction": "add"}),
    ("ScatterElements", [A, np.array([[2, 0], [1, 1]], np.int64)[:, :1], B], 13, {"axis": 1}),
    ("Pad", [A], 7, {"pads": [0, 1, 1, 0], "value": 2.0}),
    ("Pad", [A, ints(0, 1, 1, -1), np.float32(3).reshape(())], 13, {}),
    ("Pad", [T, ints(1, 1), None, ints(-1)], 18, {"mode": "reflect"}),
    ("Pad", [A, ints(1, 1, 1, 1)], 13, {"mode": "edge"}),
    ("Shape", [T], 15, {"start": 1, "end": -1}),
    ("Size", [T], 13, {}),
    ("ConstantOfShape", [ints(2, 0, 3)], 9, {}),
    ("ConstantOfShape", [ints(2, 3)], 9, {"value": numpy_helper.from_array(ints(7))}),
    ("Range", [np.array(7, np.int64), np.array(-2, np.int64), np.array(-3, np.int64)], 11, {}),
    ("Range", [np.float32(0.5).reshape(()), np.float32(3).reshape(()), np.float32(0.75).reshape(())], 11, {}),
    ("Trilu", [A, np.array(-1, np.int64)], 14, {"upper": 0}),
    ("Trilu", [T], 14, {}),
    ("NonZero", [A * (A > 0)], 13, {}),
    ("OneHot", [ints(1, 0), np.array(3, np.int64), np.array([0, 1], np.float32)], 11, {}),
]


@pytest.mark.parametrize(("op", "inputs", "opset", "attributes"), CASES, ids=[case[0] for case in CASES])
def test_a_constant_is_what_onnxruntime_computes(op: str, inputs: Any, opset: int, attributes: Any) -> None:
    (expected,), (got,), _ = fold(op, inputs, opset, **attributes)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    # onnxruntime approximates the sigmoid.
    np.testing.assert_allclose(got, expected, rtol=1e-5 if op == "Sigmoid" else 1e-6, atol=0)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes"),
    [(11, [T], {"split": [1, 3]}), (13, [T, ints(1, 3)], {}), (18, [T], {"num_outputs": 2}), (13, [T], {})],
)
def test_every_part_of_a_split_is_a_constant(opset: int, inputs: Any, attributes: Any) -> None:
    expected, got, _ = fold("Split", inputs, opset, outputs=2, axis=2, **attributes)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["FP16", "BF16"])
def test_narrow_floats_are_rounded_after_every_node(dtype: Any) -> None:
    a, b = (np.random.default_rng(seed).normal(size=(5, 7)).astype(np.float32) for seed in (0, 1))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Cast", ["a"], ["p"], to=kind),
                helper.make_node("Cast", ["b"], ["q"], to=kind),
                helper.make_node("Mul", ["p", "q"], ["r"]),
                helper.make_node("Add", ["r", "p"], ["s"]),
                helper.make_node("ReduceSum", ["s"], ["t"]),
                helper.make_node("Identity", ["t"], ["y"]),
            ],
            "g",
            [],
            [helper.make_empty_tensor_value_info("y")],
            [numpy_helper.from_array(a, "a"), numpy_helper.from_array(b, "b")],
        )
    )
    folded = ir.from_proto(model)
    infer_shapes(folded)
    passes.fold_constants(folded)
    p, q = a.astype(dtype), b.astype(dtype)
    rounded = (p.astype(np.float32) * q.astype(np.float32)).astype(dtype)
    total = (rounded.astype(np.float32) + p.astype(np.float32)).astype(dtype).astype(np.float32).sum().astype(dtype)
    (node,) = folded.graph
    assert node.inputs[0].const_value.numpy() == total  # type: ignore[union-attr]


def parsed(text: str, head: str = '<ir_version: 10, opset_import: ["" : 20]> g ') -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    for index, node in enumerate(model.graph):
        node.name = f"{node.op_type}{index}"
    infer_shapes(model)
    return model


@pytest.mark.parametrize(
    "text",
    [
        "() => (int64[1] y) <int64[1] a = {1}, int64[1] b = {0}> { t = Div(a, b)  y = Neg(t) }",
        "() => (int32[1] y) <float[1] a = {3e9}> { t = Cast<to = 6>(a)  y = Neg(t) }",
        "() => (float[2] y) <float[2] a = {1, 2}> { t = RandomNormalLike(a)  y = Neg(t) }",
        "() => (float[2] y) <float[2] a = {1, 2}> { t = Bernoulli(a)  y = Neg(t) }",
        "() => (float[2] y) <float[2] a = {1,2}, float s = {1}> { q = QuantizeLinear(a,s) y = DequantizeLinear(q, s) }",
        "() => (float[2] y) <float[2] a = {1, 2}> { t = other.Add(a, a)  y = Neg(t) }",
        "(float[2] a) => (float[2] y) <float[2] a = {1, 2}> { y = Neg(a) }",
        "() => (int64[1] y) <int64[1] a = {1}, int64[1] i = {5}> { t = Gather(a, i)  y = Neg(t) }",
    ],
    ids=["division by zero", "overflow", "random", "drawn", "quantized", "domain", "overridable", "out of range"],
)
def test_what_is_no_constant_stays(text: str) -> None:
    head = '<ir_version: 10, opset_import: ["" : 20, "other" : 1]> g '
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    before = [node.op_type for node in model.graph]
    assert passes.fold_constants(model) == 0
    assert [node.op_type for node in model.graph] == before


def test_a_file_does_not_grow_by_what_is_expanded() -> None:
    model = parsed(
        """(float[1,8,512,512] x) => (float[1,8,512,512] y) <float[1,1] row = {3}, int64[4] to = {1, 8, 512, 512}>
        { e = Expand(row, to)  y = Mul(x, e) }"""
    )
    reasons: list[str] = []
    assert passes.fold_constants(model, lambda node, why: reasons.append(why)) == 0
    assert reasons == ["its result of 8,388,608 bytes would make the model larger"]


def test_a_gigabyte_is_not_even_computed() -> None:
    model = parsed(
        """(float[1] x) => (float[1] y) <int64[3] to = {1024, 512, 512}, int64[1] zero = {0}>
        { e = ConstantOfShape(to)  p = Mul(e, e)  s = ReduceMax<keepdims = 0>(p)  y = Add(x, s) }"""
    )
    assert passes.fold_constants(model) == 0


def test_something_large_on_the_way_to_something_small_is_folded() -> None:
    model = parsed(
        """(float[1] x) => (float[1] y) <int64[3] to = {8, 512, 512}>
        { e = ConstantOfShape(to)  s = ReduceMax<keepdims = 0>(e)  y = Add(x, s) }"""
    )
    assert passes.fold_constants(model) == 2


def weighted(tail: str) -> ir.Model:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[B,1024] x, int64[B] i) => (float y)'
        f" <float[512,1024] w> {{ t = Transpose<perm = [1, 0]>(w)  {tail} }}"
    )
    data = np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(data, "w"))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def test_a_weight_is_transposed_in_place_of_itself() -> None:
    model = weighted("y = MatMul(x, t)")
    assert passes.fold_constants(model) == 1
    (node,) = model.graph
    assert node.inputs[1].const_value.shape == (1024, 512)  # type: ignore[union-attr]


def test_a_weight_that_is_read_as_it_is_too_is_not_doubled() -> None:
    assert passes.fold_constants(weighted("g = Gather(w, i)  h = MatMul(x, t)  y = Add(g, g)")) == 0


def test_small_results_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["aot.passes.fold_constants"], "GROWTH", 100)
    model = parsed(
        """(float[8] x) => (float[8] y) <float[1] a = {2}, float[1] b = {3}, float[1] c = {4}, float[1] d = {5},
        int64[1] to = {8}>
        { p = Expand(a, to)  q = Expand(b, to)  r = Expand(c, to)  s = Expand(d, to)
          u = Add(x, p)  v = Add(u, q)  w = Add(v, r)  y = Add(w, s) }"""
    )
    assert passes.fold_constants(model) == 3


def test_an_output_that_is_constant_keeps_its_name() -> None:
    model = parsed("(float[1] x) => (float[1] y, float[1] z) <float[1] a = {2}> { y = Neg(a)  z = Add(x, y) }")
    assert passes.fold_constants(model) > 0
    assert passes.fold_constants(model) == 0
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    y, z = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": np.ones(1, np.float32)})
    assert (y, z) == (-2, -1)


def test_constants_of_a_branch_are_folded_and_reach_its_outputs() -> None:
    model = parsed(
        """(bool c, float[1] x) => (float[1] y) <float[1] a = {2}> {
            y = If (c) <then_branch = t () => (float[1] p) { k = Constant <value = float[1] {3}> ()  p = Mul(k, a) },
                        else_branch = e () => (float[1] q) { k = Constant <value = float[1] {5}> ()  r = Mul(k, a)
                                                             q = Add(x, r) }> }"""
    )
    expected = [6.0, 11.0]
    assert passes.fold_constants(model) >= 3
    proto = ir.to_proto(model)
    session = ort.InferenceSession(proto.SerializeToString())
    for choice, value in zip((True, False), expected, strict=True):
        assert session.run(None, {"c": np.array(choice), "x": np.ones(1, np.float32)})[0] == value


def test_a_number_that_an_attribute_of_a_constant_holds_is_folded() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 20]> g (int64[B] x) => (int64[B] y)
            { a = Constant<value_int = 3>()  b = Cast<to = 1>(a)  c = CastLike(b, x)  d = Add(x, a)  y = Mul(d, c) }"""
        )
    )
    infer_shapes(model)
    assert passes.fold_constants(model) > 0
    assert [node.op_type for node in model.graph] == ["Add", "Mul"]
