"""What hands on its input as it is falls away; what only seems to, stays. Equal nodes and constants are one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from aot import passes
from tests.passes.test_chains import check, ops, parse, run

CONSTANTS = """<float one = {1}, float zero = {0}, float minus = {-0.0}, float[4] ones = {1, 1, 1, 1},
 float[1,1,1] high = {1},
 int64[1] none = {0}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}, int64[4] nothing = {0, 0, 0, 0},
 int64[2] once = {1, 1}, int64[2] same = {0, 4}, int64[2] rest = {0, -1}, int64[1] unit = {1},
 bool yes = {1}, bool no = {0}>"""


@pytest.mark.parametrize(
    "node",
    [
        *("Mul(t, one)", "Mul(one, t)", "Mul(t, ones)", "Div(t, one)", "Pow(t, one)"),
        *("Add(t, zero)", "Add(minus, t)", "Sub(t, zero)", "Sub(t, minus)"),
        *("Cast<to = 1>(t)", "Transpose<perm = [0, 1]>(t)", "Reshape(t, same)", "Reshape(t, rest)", "Expand(t, once)"),
        *("Slice(t, none, end)", "Slice(t, none, end, last, unit)", "Pad(t, nothing)", "Tile(t, once)"),
        *("Concat<axis = 0>(t)", "Sum(t)", "Max(t)", "Clip(t)", "Dropout(t)", "Flatten(t)"),
        *("Where(yes, t, zero)", "Where(no, one, t)"),
        *("Split<axis = 1, num_outputs = 1>(t)", "ReduceMean<noop_with_empty_axes = 1>(t)"),
    ],
)
def test_what_changes_nothing_falls_away(node: str) -> None:
    head = f"(float[B,4] x) => (float[B,4] y) {CONSTANTS}"
    check(passes.drop_no_ops, f"{head} {{ t = Neg(x)  u = {node}  y = Exp(u) }}", ["Exp", "Neg"])


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("Mul(t, high)", "1,B,4"),
        ("Transpose<perm = [1, 0]>(t)", "4,B"),
        ("Cast<to = 11>(t)", "B,4"),
        ("Slice(t, unit, end)", "C,4"),
        ("Tile(t, two)", "B,8"),
        ("Sub(one, t)", "B,4"),
        ("Div(one, t)", "B,4"),
        ("Sub(zero, t)", "B,4"),
        ("Where(yes, zero, t)", "B,4"),
    ],
)
def test_what_changes_the_values_or_the_shape_stays(node: str, shape: str) -> None:
    constants = CONSTANTS.replace(">", ", int64[2] two = {1, 2}>")
    kind = "double" if "Cast" in node else "float"
    op = node.partition("(")[0].partition("<")[0]
    text = f"(float[B,4] x) => ({kind}[{shape}] y) {constants} {{ t = Neg(x)  u = {node}  y = Neg(u) }}"
    check(passes.drop_no_ops, text, ["Neg", "Neg", op], sizes=(2, 5))


@pytest.mark.parametrize(
    ("op", "zero", "kept"), [("Add", "0", 1), ("Add", "-0.0", 0), ("Sub", "0", 0), ("Sub", "-0.0", 1)]
)
def test_a_sum_with_zero_stays_where_the_sign_of_zero_is_seen(op: str, zero: str, kept: int) -> None:
    text = f"(float[2] x) => (float[2] y) <float z = {{{zero}}}> {{ t = Neg(x)  u = {op}(t, z)  y = Reciprocal(u) }}"
    model = parse(text)
    assert passes.drop_no_ops(model) == 1 - kept
    x = np.array([0.0, -0.0], np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(parse(text), x=x)[0])


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ("Resize(x, , ones)", 0),
        ("Resize(x, , , same)", 0),
        ("Resize(x, , more)", 1),
        ("Resize<coordinate_transformation_mode = 'tf_crop_and_resize'>(x, roi, ones)", 1),
        ("MaxPool<kernel_shape = [1, 1]>(x)", 0),
        ("MaxPool<kernel_shape = [1, 1], strides = [2, 2]>(x)", 1),
        ("DepthToSpace<blocksize = 1>(x)", 0),
        ("AveragePool<kernel_shape = [1, 1]>(x)", 0),
    ],
)
def test_a_resize_or_pool_of_one_falls_away_by_its_scales_not_by_its_shape(node: str, left: int) -> None:
    """Scales of 1.1 leave 4 rows at 4, and yet interpolate between them."""
    node = node.replace("'", '"')
    text = f"""(float[1,1,4,4] x) => (float[1,1,H,W] y) <float[4] ones = {{1, 1, 1, 1}},
    float[4] more = {{1, 1, 1.1, 1.1}}, int64[4] same = {{1, 1, 4, 4}}, float[8] roi = {{0, 0, 0, 0, 1, 1, 1, 1}}>
    {{ u = {node}  y = Neg(u) }}"""
    model = parse(text)
    assert passes.drop_no_ops(model) == 1 - left
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(model, x=x)[0], run(parse(text), x=x)[0])


def test_without_bounds_an_old_clip_still_bounds() -> None:
    """To the largest finite numbers, so that infinity is changed."""
    assert passes.drop_no_ops(parse("(float[2] x) => (float[2] y) { t = Clip(x)  y = Neg(t) }", 7)) == 0


def test_a_dropout_that_trains_or_whose_mask_is_read_stays() -> None:
    text = """(float[4] x) => (float[4] y, bool[4] m) <float half = {0.5}, bool yes = {1}>
    { a = Dropout(x, half, yes)  b, m = Dropout(x)  y = Add(a, b) }"""
    assert passes.drop_no_ops(parse(text)) == 0


def test_a_cast_like_something_of_known_type_is_a_cast() -> None:
    text = "(float[4] x, double[N] z) => (double[4] y) { y = CastLike(x, z) }"
    check(passes.drop_no_ops, text, ["Cast"])


def test_a_no_op_between_input_and_output_keeps_both_names() -> None:
    check(passes.drop_no_ops, "(float[B,4] x) => (float[B,4] y) { y = Cast<to = 1>(x) }", ["Identity"])


# --- what is there twice


def test_equal_nodes_are_one_whatever_the_order_of_a_sum() -> None:
    text = """(float[4] x, float[4] z) => (float[4] y)
    { a = Add(x, z)  b = Add(z, x)  c = Sub(a, b)  d = Sub(b, a)  y = Mul(c, d) }"""
    check(passes.share_subexpressions, text, ["Add", "Mul", "Sub"])


def test_nodes_that_differ_in_an_attribute_or_an_order_are_two() -> None:
    text = """(float[2,2] x, float[2,2] z) => (float[2,2] y) { a = Softmax<axis = 0>(x)  b = Softmax<axis = 1>(x)
    c = MatMul(a, b)  d = MatMul(b, a)  y = Sub(c, d) }"""
    assert passes.share_subexpressions(parse(text)) == 0


@pytest.mark.parametrize("op", ["RandomNormalLike", "Bernoulli", "other.Act"])
def test_what_draws_numbers_or_may_is_never_shared(op: str) -> None:
    head = '<ir_version: 8, opset_import: ["" : 20, "other" : 1]> g '
    text = f"(float[2] x) => (float[2] y) {{ a = {op}(x)  b = {op}(x)  y = Add(a, b) }}"
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    assert passes.share_subexpressions(model) == 0


def test_a_branch_uses_what_is_computed_around_it_but_not_in_its_neighbour() -> None:
    text = """(float[2] x, bool c) => (float[2] y) { a = Exp(x)
      b = If (c) <then_branch = t () => (float[2] p) { q = Exp(x)  r = Neg(x)  p = Add(q, r) },
                  else_branch = e () => (float[2] u) { v = Neg(x)  u = Mul(v, v) }>
      y = Add(a, b) }"""
    model = parse(text)
    assert passes.share_subexpressions(model) == 1
    assert ops(model) == sorted(["Exp", "If", "Add", "Neg", "Add", "Neg", "Mul"])
    x = np.array([1, 2], np.float32)
    for c in (True, False):
        np.testing.assert_array_equal(run(model, x=x, c=np.array(c))[0], run(parse(text), x=x, c=np.array(c))[0])


def weights(*arrays: np.ndarray) -> ir.Model:
    """A sum of products with these weights."""
    nodes, total = [], "x"
    for at in range(len(arrays)):
        nodes.append(helper.make_node("Add", [total, f"w{at}"], [f"s{at}"]))
        total = f"s{at}"
    kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, arrays[0].shape)],
        [helper.make_tensor_value_info(total, kind, None)],
        [numpy_helper.from_array(array, f"w{at}") for at, array in enumerate(arrays)],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def test_large_weights_are_one_where_every_byte_is_equal() -> None:
    weight = np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32)
    other = weight.copy()
    other[7, 9] += 1
    model = weights(weight, other, weight.copy())
    assert passes.share_subexpressions(model) == 1
    assert len({id(node.inputs[1]) for node in model.graph}) == 2


def test_zeros_of_either_sign_are_not_equal_and_nan_is() -> None:
    model = weights(np.array([0.0, np.nan], np.float32), np.array([-0.0, np.nan], np.float32))
    assert passes.share_subexpressions(model) == 0
    assert passes.share_subexpressions(weights(*[np.array([0.0, np.nan], np.float32)] * 2)) == 1


def test_a_constant_that_can_be_fed_is_not_shared() -> None:
    text = (
        "(float[1] x, float[1] a) => (float[1] y) <float[1] a = {1}, float[1] b = {1}> { s = Add(x, a)  y = Add(s, b) }"
    )
    assert passes.share_subexpressions(parse(text)) == 0
