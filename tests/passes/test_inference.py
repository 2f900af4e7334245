"""What is inferred of branches and constants, and what is asked again."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from aot.graph import Pass, Skip, infer_shapes, run_passes
from aot.graph.constants import lift_constants
from aot.graph.order import name_apart, sort
from aot.optimize import optimize
from aot.passes.fold_constants import fold_constants
from aot.passes.shape_arithmetic import shape_arithmetic


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {text}'))


def shapes(model: ir.Model) -> dict[str | None, str]:
    return {value.name: str(value.shape) for node in model.graph.all_nodes() for value in node.outputs}


BRANCHES = """(bool c, float[B,6] x) => (float[P,Q,R] y) <int64[2] tail = {3, 2}> {
    s = Shape<end = 1>(x)  t = Concat<axis = 0>(s, tail)
    z = If (c) <then_branch = t () => (float[P,Q,R] p) { p = Reshape(x, t) },
                else_branch = e () => (float[P,Q,R] q) {
                    k = Constant<value = int64[1] {0}>()  a = Unsqueeze(x, k)  b = Squeeze(a, k)  q = Reshape(b, t) }>
    y = Relu(z) }"""


def test_a_branch_knows_the_contents_of_what_is_around_it() -> None:
    model = parse(BRANCHES)
    for body in (
        node.attributes[name].as_graph() for node in model.graph if node.op_type == "If" for name in node.attributes
    ):
        body.outputs[0].shape = None
    infer_shapes(model)
    found = shapes(model)
    assert found["p"] == found["q"] == found["z"] == "[B,3,2]"
    assert found["a"] == "[1,B,6]"


def test_constants_of_bodies_are_held_by_the_main_graph_under_names_of_their_own() -> None:
    model = parse("""(bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] p) <float[2] k = {1, 2}> { p = Add(x, k) },
                    else_branch = e () => (float[2] q) { k = Constant<value = float[2] {3, 4}>()  q = Add(x, k) }> }""")
    assert lift_constants(model) == 2
    assert lift_constants(model) == 0
    assert [node.op_type for node in model.graph.all_nodes()] == ["If", "Add", "Add"]
    held = [value.const_value.numpy().tolist() for value in model.graph.initializers.values() if value.const_value]
    assert sorted(held) == [[1, 2], [3, 4]]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_a_constant_that_is_an_output_or_holds_strings_stays() -> None:
    model = parse("""() => (float[1] y, string[1] z) {
        y = Constant<value = float[1] {1}>()  s = Constant<value_strings = ["a"]>()  z = Identity(s) }""")
    assert lift_constants(model) == 0


def test_what_is_known_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    infer = onnx.shape_inference.infer_shapes

    def spy(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        asked.append(len(model.graph.node))
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    model = parse("""(float[N,1,A,A] x) => (float[N,1,H,W] y) <float[1,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        a = Conv(x, w)  b = Relu(a)  c = NonZero(b)  y = Conv(b, w) }""")
    infer_shapes(model)
    infer_shapes(model)
    assert asked == [3]
    (first, *_) = model.graph
    first.inputs[1].const_value = ir.Tensor(np.zeros((1, 1, 3, 3), np.float32))  # type: ignore[union-attr]
    infer_shapes(model)  # no size follows from the numbers of a weight
    assert asked == [3]
    model.graph.inputs[0].shape = ir.Shape(["N", 1, 8, 8])
    infer_shapes(model)
    assert shapes(model)["b"] == "[N,1,6,6]"


def test_dims_of_inputs_have_names_while_passes_run_and_then_their_own() -> None:
    """`unk__7`, which tf2onnx writes, is the name of one dim wherever it stands; no name is a dim of its own."""
    model = parse("(float[B,4] x, float[B,4] z) => (float[B,4] y) { a = Relu(x)  b = Neg(a)  y = Add(b, z) }")
    x, z = model.graph.inputs
    x.shape, z.shape = ir.Shape(["unk__7", 4]), ir.Shape([None, 4])
    model.graph.outputs[0].shape = None
    asked: list[dict[str | None, str]] = []

    def look(model: ir.Model, skip: Skip) -> int:
        asked.append({value.name: str(value.shape) for value in model.graph.inputs} | shapes(model))
        return 0

    run_passes([Pass("look", look, "")], model)
    named = {"x": "[dim_0,4]", "z": "[dim_1,4]", "a": "[dim_0,4]", "b": "[dim_0,4]"}
    assert {name: asked[0][name] for name in named} == named
    assert (str(x.shape), str(z.shape)) == ("[unk__7,4]", "[None,4]")
    assert (shapes(model)["a"], shapes(model)["b"]) == ("[unk__7,4]", "[unk__7,4]")


def test_what_can_be_folded_blindly_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    infer = onnx.shape_inference.infer_shapes

    def spy(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        asked.append([node.op_type for node in model.graph.node])
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    model = parse("""(float[B,4] x) => (float[B,4] y) <float[4] k = {1, 2, 3, 4}, float[4] l = {5, 6, 7, 8}> {
        a = Mul(k, l)  b = Sqrt(a)  c = Sigmoid(x)  y = Add(c, b) }""")
    run_passes([fold_constants], model)
    assert asked == [["Sigmoid"]]
    assert model.graph.initializers["b"].const_value is not None
    np.testing.assert_allclose(model.graph.initializers["b"].const_value.numpy() ** 2, [5, 12, 21, 32], rtol=1e-6)


def test_ranks_and_sizes_behind_a_computed_reshape_follow_at_once() -> None:
    """Paddle's attention: tokens are counted at the first layer, and every layer behind reshapes to that count."""
    model = parse("""(float[B,6,H,W] x) => (float[B,N,6] y)
    <int64[1] nought = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] six = {6}, int64[1] minus = {-1},
     int64[1] axis = {2}> {
        s = Shape(x)  b = Slice(s, nought, one)  t = Concat<axis = 0>(b, six, minus)  f = Reshape(x, t)
        p = Transpose<perm = [0, 2, 1]>(f)  m = ReduceMean(p, axis)  q = Sub(p, m)
        u = Shape(q)  n = Slice(u, one, two)  v = Concat<axis = 0>(b, n, two, minus)  r = Reshape(q, v)
        k = Transpose<perm = [0, 2, 3, 1]>(r)  l = Transpose<perm = [0, 2, 1, 3]>(r)  a = MatMul(l, k)
        w = Softmax(a)  o = MatMul(w, l)  z = Transpose<perm = [0, 2, 1, 3]>(o)
        c = Concat<axis = 0>(b, n, six)  y = Reshape(z, c) }""")
    changes: list[str] = []
    run_passes([shape_arithmetic], model, lambda one, before, after: changes.append(one.name))
    assert changes == ["shape_arithmetic"]
    assert "Shape" not in [node.op_type for node in model.graph]
    found = shapes(model)
    tokens = found["f"].split(",")[2].rstrip("]")
    assert (found["r"], found["a"]) == (f"[B,{tokens},2,3]", f"[B,2,{tokens},{tokens}]")


def test_names_and_order_are_brought_about_where_they_are_missing() -> None:
    model = parse("(float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }")
    relu, neg, exp = model.graph
    relu.name, neg.name, exp.name = None, "same", "same"
    exp.inputs[0].name = "a"  # type: ignore[union-attr]
    model.graph.remove(relu)
    model.graph.append(relu)
    sort(model)
    name_apart(model)
    assert [node.op_type for node in model.graph] == ["Relu", "Neg", "Exp"]
    assert len({node.name for node in model.graph} - {None, ""}) == 3
    assert len({value.name for node in model.graph for value in node.outputs}) == 3
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["x", "y"]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    before, was = gc.get_freeze_count(), gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        optimize(parse("(float[2] x) => (float[2] y) { y = Relu(x) }"))
        assert (gc.get_freeze_count(), gc.isenabled()) == (before, enabled)
    finally:
        (gc.enable if was else gc.disable)()
