"""Nodes of one kind in a row: against onnxruntime, at every combination, and what has to stay."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot import passes
from aot.graph import Pass, infer_shapes

KINDS = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


def parse(text: str, opset: int = 20) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}'))
    infer_shapes(model)
    return model


def run(model: ir.Model, **inputs: Any) -> list[Any]:
    proto = ir.to_proto(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def ops(model: ir.Model) -> list[str]:
    return sorted(node.op_type for node in model.graph.all_nodes())


def check(one: Pass, text: str, left: list[str], opset: int = 20, sizes: tuple[int, ...] = (1, 2, 5)) -> ir.Model:
    """The pass leaves these ops; the outputs keep their names and, at these sizes of every dim, their bits."""
    before, after = parse(text, opset), parse(text, opset)
    one(after)
    assert ops(after) == sorted(left)
    assert [value.name for value in after.graph.outputs] == [value.name for value in before.graph.outputs]
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    rng = np.random.default_rng(0)
    for size in sizes:
        inputs = {}
        for value in before.graph.inputs:
            shape = [dim if isinstance(dim, int) else size for dim in value.shape or ()]
            inputs[str(value.name)] = (rng.normal(size=shape) * 3).astype(value.dtype.numpy())  # type: ignore[union-attr]
        for expected, got in zip(run(before, **inputs), run(after, **inputs), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
    return after


# --- slices


def sliced(first: tuple[int, int, int], second: tuple[int, int, int], dim: int | str) -> ir.Model:
    held = {name: numpy_helper.from_array(np.array([v], np.int64), name) for name, v in (("axis", 1),)}
    nodes = []
    for at, (source, made, part) in enumerate((("x", "t", first), ("t", "y", second))):
        for name, number in zip("sep", part, strict=True):
            held[f"{name}{at}"] = numpy_helper.from_array(np.array([number], np.int64), f"{name}{at}")
        nodes.append(helper.make_node("Slice", [source, f"s{at}", f"e{at}", "axis", f"p{at}"], [made]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, dim])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(held.values()),
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
    infer_shapes(model)
    return model


END = 2**63 - 1
PARTS = [
    (0, END, 2),
    (2, END, 1),
    (1, 9, 1),
    (3, 100, 2),
    (0, -3, 1),
    (-6, END, 1),
    (1, -1, 1),
    (-1, -END, -1),
    (4, 1, -1),
]


@pytest.mark.parametrize("dim", [14, "N"])
def test_a_slice_of_a_slice_takes_the_same_elements_at_every_size(dim: int | str) -> None:
    merged = 0
    for first, second in itertools.product(PARTS, PARTS):
        model = sliced(first, second, dim)
        changed = passes.merge_slices(model)
        merged += changed
        assert len(model.graph) == 2 - changed
        if not changed:
            continue
        sizes = (14,) if dim == 14 else (1, 3, 6, 7, 10, 15, 31)
        for size in sizes:
            x = np.arange(2 * size, dtype=np.float32).reshape(2, size)
            (a, b, c), (d, e, f) = first, second
            np.testing.assert_array_equal(run(model, x=x)[0], x[:, a:b:c][:, d:e:f], err_msg=f"{first} {second} {size}")
    assert merged == (len(PARTS) ** 2 if dim == 14 else 22)


def test_slices_of_a_slice_that_something_else_reads_stay() -> None:
    text = """(float[B,S,8] x) => (float[B,T,4] y, float[B,U,8] z) <int64[1] two = {2}, int64[1] end = {99},
    int64[1] zero = {0}, int64[1] one = {1}> { a = Slice(x, two, end, one)  y = Slice(a, zero, two, zero)
      z = Relu(a) }"""
    assert passes.merge_slices(parse(text)) == 0


# --- bounds

CLIPS = [(None, None), (0.0, None), (0.0, 6.0), (-1.0, 1.0), (2.0, 4.0), (None, 3.0), (5.0, None)]


@pytest.mark.parametrize(("opset", "kind"), [(7, "float"), (13, "float"), (13, "double")])
def test_a_clip_of_a_clip_clamps_to_the_same_numbers(opset: int, kind: str) -> None:
    x = np.array([-9, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.5, 5.5, 9], np.float32 if kind == "float" else np.float64)
    for first, second in itertools.product(CLIPS, CLIPS):
        steps, held = [], []
        for at, (low, high) in enumerate((first, second)):
            ends = [(f"{name}{at}", end) for name, end in (("min", low), ("max", high))]
            if opset < 11:
                given = " , ".join(f"{name[:3]} = {end}" for name, end in ends if end is not None)
                steps.append(f"{'ty'[at]} = Clip {f'<{given}>' if given else ''} ({'xt'[at]})")
            else:
                held += [f"{kind} {name} = {{{end}}}" for name, end in ends if end is not None]
                named = ", ".join(name if end is not None else "" for name, end in ends).rstrip(" ,")
                steps.append(f"{'ty'[at]} = Clip({', '.join(filter(None, ['xt'[at], named]))})")
        constants = f"<{', '.join(held)}>" if held else ""
        text = f"({kind}[10] x) => ({kind}[10] y) {constants} {{ {' '.join(steps)} }}"
        expected = run(parse(text, opset), x=x)[0]
        model = parse(text, opset)
        assert passes.merge_clips(model) == 1
        assert len([op for op in ops(model) if op != "Identity"]) == 1
        np.testing.assert_array_equal(run(model, x=x)[0], expected, err_msg=text)


def test_a_clip_whose_input_is_needed_too_stays() -> None:
    text = """(float[4] x) => (float[4] y, float[4] z) <float a = {-2}, float b = {2}, float c = {0}, float d = {1}>
    { z = Clip(x, a, b)  y = Clip(z, c, d) }"""
    assert passes.merge_clips(parse(text)) == 0


# --- casts


@pytest.mark.parametrize(
    ("kind", "middle", "last", "left"),
    [
        ("float16", TensorProto.FLOAT, TensorProto.FLOAT16, 1),
        ("float", TensorProto.FLOAT16, TensorProto.FLOAT, 2),
        ("int32", TensorProto.INT64, TensorProto.INT32, 1),
        ("int64", TensorProto.INT32, TensorProto.INT64, 2),
        ("bool", TensorProto.INT32, TensorProto.FLOAT, 1),
        ("float", TensorProto.INT64, TensorProto.FLOAT, 2),
        ("int32", TensorProto.FLOAT, TensorProto.INT32, 2),
        ("float", TensorProto.DOUBLE, TensorProto.INT64, 1),
    ],
)
def test_casts_merge_only_where_nothing_is_rounded(kind: str, middle: int, last: int, left: int) -> None:
    to = TensorProto.DataType.Name(last).lower()
    text = f"({kind}[N] x) => ({to}[N] y) {{ a = Cast<to = {middle}>(x)  y = Cast<to = {last}>(a) }}"
    check(passes.merge_casts, text, ["Cast"] * left)


# --- concatenations


def test_concatenations_of_one_axis_are_one() -> None:
    text = """(float[B,2] x, float[B,3] z) => (float[B,9] y)
    { a = Concat<axis = 1>(x, z)  b = Concat<axis = -1>(a, x)  y = Concat<axis = 1>(x, b) }"""
    check(passes.merge_concats, text, ["Concat"])


def test_a_concatenation_along_another_axis_or_that_is_needed_stays() -> None:
    text = """(float[B,2] x) => (float[C,4] y, float[B,4] c, float[B,6] z)
    { a = Concat<axis = 0>(x, x)  y = Concat<axis = 1>(a, a)  c = Concat<axis = 1>(x, x)
      z = Concat<axis = 1>(c, x) }"""
    check(passes.merge_concats, text, ["Concat"] * 4)


def test_what_is_split_and_joined_in_another_order_stays() -> None:
    text = """(float[B,4] x) => (float[B,4] y)
    { a, b = Split<axis = 1, num_outputs = 2>(x)  y = Concat<axis = 1>(b, a) }"""
    check(passes.merge_concats, text, ["Concat", "Split"])


@pytest.mark.parametrize("index", [0, 2, -1, -3])
def test_a_pick_that_keeps_its_dim_is_a_slice(index: int) -> None:
    text = f"""(float[B,3,4] x) => (float[B,1,4] y) <int64 i = {{{index}}}, int64[1] at = {{-2}}>
    {{ g = Gather<axis = -2>(x, i)  y = Unsqueeze(g, at) }}"""
    check(passes.kept_picks, text, ["Slice"])


# --- pads


@pytest.mark.parametrize(
    ("layer", "left"),
    [
        ("Conv(p, w)", ["Conv"]),
        ("Conv<pads = [1, 0, 2, 1]>(p, w)", ["Conv"]),
        ("Conv<strides = [2, 2], dilations = [2, 1]>(p, w)", ["Conv"]),
        ("Conv<auto_pad = 'VALID'>(p, w)", ["Conv"]),
        ("Conv<auto_pad = 'SAME_UPPER'>(p, w)", ["Conv", "Pad"]),
        ("AveragePool<kernel_shape = [3, 3]>(p)", ["AveragePool"]),
        ("AveragePool<kernel_shape = [4, 4], pads = [1, 1, 1, 1], count_include_pad = 1>(p)", ["AveragePool"]),
        ("AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p)", ["AveragePool", "Pad"]),
        ("AveragePool<kernel_shape = [2, 2]>(p)", ["AveragePool", "Pad"]),
        ("MaxPool<kernel_shape = [3, 3]>(p)", ["MaxPool", "Pad"]),
    ],
)
def test_a_pad_goes_into_the_layer_that_can_take_it(layer: str, left: list[str]) -> None:
    weights = ", ".join(str(number) for number in range(1, 10))
    text = f"""(float[B,1,6,7] x) => (float[B,1,H,W] y) <int64[8] pads = {{0, 0, 1, 0, 0, 0, 2, 1}},
    float[1,1,3,3] w = {{{weights}}}> {{ p = Pad(x, pads)  y = {layer.replace("'", '"')} }}"""
    before, after = parse(text), parse(text)
    passes.merge_pads(after)
    assert ops(after) == left
    x = np.random.default_rng(0).normal(size=(2, 1, 6, 7)).astype(np.float32)
    np.testing.assert_allclose(run(after, x=x)[0], run(before, x=x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "pad",
    ["Pad(x, pads, one)", "Pad<mode = 'edge'>(x, pads)", "Pad(x, channels)", "Pad(x, less)"],
    ids=["ones", "edge", "channels", "cut"],
)
def test_other_pads_stay_in_front_of_a_layer(pad: str) -> None:
    text = f"""(float[B,1,6,7] x) => (float[B,C,H,W] y) <int64[8] pads = {{0, 0, 1, 0, 0, 0, 2, 1}}, float one = {{1}},
    int64[8] channels = {{0, 1, 1, 0, 0, 0, 2, 1}}, int64[8] less = {{0, 0, -1, 0, 0, 0, 2, 1}}>
    {{ p = {pad.replace("'", '"')}  y = Conv(p, w) }}"""
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 20]> g ' + text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w"))
    model = ir.from_proto(proto)
    infer_shapes(model)
    assert passes.merge_pads(model) == 0


def test_pads_in_a_row_add_up_along_named_axes() -> None:
    text = """(float[B,3,N] x) => (float[C,3,M] y) <int64[2] a = {1, 2}, int64[1] last = {-1},
    int64[6] b = {1, 0, 1, 0, 0, 1}, float two = {2}> { p = Pad(x, a, two, last)  y = Pad(p, b, two) }"""
    check(passes.merge_pads, text, ["Pad"])


def test_pads_with_other_constants_stay_two() -> None:
    text = """(float[B,N] x) => (float[C,M] y) <int64[4] a = {1, 2, 0, 0}, float two = {2}>
    { p = Pad(x, a, two)  y = Pad(p, a) }"""
    check(passes.merge_pads, text, ["Pad", "Pad"])


def test_a_pad_in_front_of_an_unsqueeze_goes_into_the_convolution_too() -> None:
    text = """(float[B,1,6] x) => (float[B,1,1,T] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}, int64[1] rows = {2},
    float[1,1,1,3] w = {1, 2, 3}> { p = Pad(x, pads)  u = Unsqueeze(p, rows)  y = Conv(u, w) }"""
    check(passes.merge_pads, text, ["Conv", "Unsqueeze"])


# --- branches

IF = """(float[B,4] x, bool c) => (float[B,4] y, float[B,4] z) <bool {which}, float[1] two = {{2}}> {{
  y, z = If ({condition}) <
    then_branch = t () => (float[B,4] p, float[B,4] q) {{ a = Mul(x, two)  p = Relu(a)  q = Identity(x) }},
    else_branch = e () => (float[B,4] p, float[B,4] q) {{ a = Neg(x)  p = Exp(a)  q = Exp(a) }}> }}"""


@pytest.mark.parametrize(("which", "left"), [("k = {1}", {"Mul", "Relu"}), ("k = {0}", {"Neg", "Exp"})])
def test_a_known_branch_takes_the_place_of_its_if(which: str, left: set[str]) -> None:
    text = IF.format(which=which, condition="k")
    before, after = parse(text), parse(text)
    assert passes.known_branches(after) == 1
    assert set(ops(after)) - {"Identity"} == left
    proto = ir.to_proto(after)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for expected, got in zip(run(before, x=x, c=np.array(True)), run(after, x=x, c=np.array(True)), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_an_if_on_an_input_stays() -> None:
    assert passes.known_branches(parse(IF.format(which="k = {1}", condition="c"))) == 0


def test_an_if_within_the_branch_that_is_taken_follows() -> None:
    text = """(float[2] x) => (float[2] y) <bool yes = {1}, bool no = {0}> {
      y = If (yes) <
        then_branch = t () => (float[2] p) {
          p = If (no) <then_branch = u () => (float[2] q) { q = Exp(x) },
                       else_branch = v () => (float[2] r) { r = Neg(x) }> },
        else_branch = e () => (float[2] s) { s = Relu(x) }> }"""
    check(passes.known_branches, text, ["Identity", "Neg"])


# --- expansions


def test_an_expansion_that_gives_the_result_its_shape_stays() -> None:
    text = """(float[B,1] x, float[1,1] z) => (float[B,4] y) <int64[2] to = {1, 4}>
    { e = Expand(z, to)  y = Mul(x, e) }"""
    check(passes.drop_expands, text, ["Expand", "Mul"])


def test_every_reader_of_an_expansion_broadcasts_by_itself() -> None:
    text = """(float[B,4] x, float[1,4] z) => (float[B,4] y, float[B,4] w)
    { s = Shape(x)  e = Expand(z, s)  c = Less(x, e)  y = Where(c, x, e)  w = Max(e, x, z) }"""
    check(passes.drop_expands, text, ["Less", "Max", "Where"])
