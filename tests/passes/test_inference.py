"""What is inferred of branches and constants, and what is asked again."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from aot.graph import infer_shapes
from aot.graph_constants import lift_constants
from aot.optimize import optimize


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


def test_the_collector_is_left_as_it_was() -> None:
    before = gc.get_freeze_count()
    optimize(parse("(float[2] x) => (float[2] y) { y = Relu(x) }"))
    assert gc.get_freeze_count() == before
