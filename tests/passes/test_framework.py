"""How passes run: which, how often, and what they may rely on afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

from aot import origins
from aot.graph import Pass, infer_shapes, run_passes
from aot.graph.constants import lift_constants
from aot.graph.shapes import forget_wrong_shapes
from aot.graph.state import State
from aot.origins import Origin
from aot.passes import PASSES
from aot.passes._edit import before, bypass, constant, nodes, replace
from aot.passes.fold_constants import fold_constants
from tests.passes.test_limits import HEAD


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def swap(op: str, to: str, **options: Any) -> Pass:
    """A pass that puts `to` in the place of every `op`."""

    def rewrite(model: ir.Model, skip: Any) -> int:
        return len([replace(node, to, node.inputs) for node in nodes(model, op)])

    return Pass(f"{op}_to_{to}", rewrite, "", **options)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes()]


CHAIN = "(float[B,4] x) => (float[B,4] y) { a = Relu(x)  y = Neg(a) }"


def test_a_pass_without_an_anchor_in_the_graph_is_not_called() -> None:
    def never(model: ir.Model, skip: Any) -> int:
        raise AssertionError("called")

    (done,) = run_passes([Pass("never", never, "", anchors=("Erf", "Conv"))], parse(CHAIN))
    assert (done.sites, done.skipped) == (0, {})


def test_an_anchor_inside_a_body_counts() -> None:
    model = parse(
        """(float[B,4] x, bool c) => (float[B,4] y)
        { y = If (c) <then_branch = t () => (float[B,4] a) { a = Relu(x) },
                      else_branch = f () => (float[B,4] b) { b = Abs(x) }> }"""
    )
    (done,) = run_passes([swap("Relu", "Sigmoid", anchors=("Relu",))], model)
    assert done.sites == 1
    assert ops(model) == ["If", "Sigmoid", "Abs"]


def test_the_list_runs_again_for_what_a_later_pass_made_possible() -> None:
    model = parse(CHAIN)
    late, early = swap("Relu", "Sigmoid"), swap("Sigmoid", "Tanh")
    done = run_passes([early, late, early], model)
    assert ops(model) == ["Tanh", "Neg"]
    assert {one.name: one.sites for one in done} == {"Sigmoid_to_Tanh": 1, "Relu_to_Sigmoid": 1}


def test_two_passes_that_undo_each_other_come_to_an_end() -> None:
    run_passes([swap("Relu", "Sigmoid"), swap("Sigmoid", "Relu")], parse(CHAIN))


def test_a_pass_that_never_settles_is_a_bug() -> None:
    def always(model: ir.Model, skip: Any) -> int:
        return 1

    with pytest.raises(RuntimeError, match="'always' still changes the graph"):
        run_passes([Pass("always", always, "")], parse(CHAIN))


def test_only_what_holds_in_the_end_is_said_to_be_left() -> None:
    def hesitant(model: ir.Model, skip: Any) -> int:
        for node in nodes(model, "Relu"):
            skip(node, "not yet")
        return 0

    (_, left) = run_passes([swap("Relu", "Sigmoid"), Pass("hesitant", hesitant, "")], parse(CHAIN))
    assert left.skipped == {}


def test_what_nothing_reads_any_more_is_gone_bodies_and_weights_included() -> None:
    model = parse(
        """(float[B,4] x, bool c) => (float[B,4] y) <float k = {3}>
        {
            a = Mul(x, k)  b = Exp(a)
            y = If (c) <then_branch = t () => (float[B,4] p) { d = Sin(x)  e = Add(d, b)  p = Relu(e) },
                        else_branch = f () => (float[B,4] q) { q = Abs(x) }>
        }"""
    )

    def shorten(model: ir.Model, skip: Any) -> int:
        for node in nodes(model, "Relu"):
            replace(node, "Neg", [model.graph.inputs[0]])
            return 1
        return 0

    run_passes([Pass("shorten", shorten, "")], model)
    assert ops(model) == ["If", "Neg", "Abs"]
    assert not model.graph.initializers


class TestShapes:
    def value(self, model: ir.Model, name: str) -> ir.Value:
        return State.of(model).values[name]

    def test_new_values_have_dtype_and_shape(self) -> None:
        def around(model: ir.Model, skip: Any) -> int:
            for node in nodes(model, "Relu"):
                turned = ir.node("Transpose", [node.inputs[0]], {"perm": [1, 0]}, name="turned")
                same = ir.node("Sigmoid", turned.outputs, name="same")
                turned.outputs[0].name, same.outputs[0].name = "t", "u"
                assert node.graph is not None
                node.graph.insert_before(node, (turned, same))
                replace(node, "Transpose", same.outputs, {"perm": [1, 0]})
                return 1
            return 0

        model = parse("(float16[B,4] x) => (float16[B,4] y) { y = Relu(x) }")
        run_passes([Pass("around", around, "")], model)
        for name in "tu":
            assert self.value(model, name).shape == ir.Shape([4, "B"])
            assert self.value(model, name).dtype == ir.DataType.FLOAT16

    def test_sizes_computed_from_symbols_keep_their_names(self) -> None:
        model = parse(
            """(float[B,S,4] x, float[B,S] w) => (float[P,Q,R] y) <int64[1] one = {1}, int64[1] nought = {0}>
            { s = Shape(x)  b = Gather(s, nought)  l = Gather(s, one)  t = Concat<axis = 0>(l, one, b)
              e = Expand(w, t)  r = Relu(e)  z = Reshape(w, t)  y = Neg(z) }"""
        )
        infer_shapes(model)
        assert self.value(model, "z").shape == ir.Shape(["S", 1, "B"])

    def test_dims_that_nothing_names_are_unlike_each_other_and_known_ones_stay(self) -> None:
        model = parse("(float[B] x, float[B] z) => (int64[R,N] y) { y = NonZero(x)  v = NonZero(z)  w = Neg(v) }")
        model.graph.outputs[0].shape = ir.Shape([1, "found"])
        infer_shapes(model)
        first, second, third = (self.value(model, name).shape for name in "yvw")
        assert first == ir.Shape([1, "found"])
        assert second == third
        assert second is not None
        assert str(second[1]).startswith("unk__")
        infer_shapes(model)
        assert self.value(model, "v").shape == second

    def test_what_follows_from_a_size_that_is_folded_is_known_then(self) -> None:
        model = parse(
            """(float[6] x) => (float[P,Q] y) <int64[2] a = {2, 1}, int64[2] b = {1, 3}>
            { t = Max(a, b)  r = Reshape(x, t)  n = Neg(r)  y = Exp(n) }"""
        )
        run_passes([fold_constants], model)
        assert self.value(model, "n").shape == ir.Shape([2, 3])

    def test_bodies_are_inferred_with_what_they_capture(self) -> None:
        model = parse(
            """(float[B,4] x, int64 n, bool go) => (float[B,4] y)
            { y = Loop (n, go, x) <body = b (int64 i, bool c, float[B,4] v) => (bool k, float[B,4] r)
                { k = Not(c)  d = Transpose<perm = [1, 0]>(x)  e = Transpose<perm = [1, 0]>(d)  r = Add(v, e) }> }"""
        )
        infer_shapes(model)
        found = [
            value.shape for node in model.graph.all_nodes() if node.op_type == "Transpose" for value in node.outputs
        ]
        assert found == [ir.Shape([4, "B"]), ir.Shape(["B", 4])]

    def test_shapes_that_contradict_the_inputs_are_all_forgotten(self) -> None:
        text = "(float[B,4] x) => (float[B,4] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }"
        for stated, wrong in (([1, 4], True), (["B", 4], False), (["M", 4], False), ([None, 5], True)):
            model = parse(text)
            for node in model.graph:
                node.outputs[0].shape = ir.Shape(stated)
            assert forget_wrong_shapes(model) is wrong
            shapes = [node.outputs[0].shape for node in model.graph]
            assert shapes == [None] * 3 if wrong else shapes == [ir.Shape(stated)] * 3


def test_what_a_later_pass_leaves_or_makes_in_vain_goes_too() -> None:
    """After the first change only what lost a reader, and what is new, is asked whether anything reads it."""

    def in_vain(model: ir.Model, skip: Any) -> int:
        found = list(nodes(model, "Tanh"))
        for node in found:
            before(node, "Abs", [constant(model, "unused", np.ones(4, np.float32))])
            replace(node, "Sqrt", [node.inputs[0]])
        return len(found)

    def second_input_gone(model: ir.Model, skip: Any) -> int:
        return len([replace(node, "Exp", node.inputs[:1]) for node in nodes(model, "Add")])

    model = parse(
        """(float[B,4] x, bool c) => (float[B,4] y) <float[4] w = {1, 2, 3, 4}>
        { k = Relu(x)  t = Tanh(k)  p = Mul(x, w)
          d = If (c) <then_branch = t () => (float[B,4] u) { m = Sin(p)  u = Neg(m) },
                      else_branch = f () => (float[B,4] v) { v = Identity(p) }>
          y = Add(t, d) }"""
    )
    found = [Pass("in_vain", in_vain, ""), Pass("second_input_gone", second_input_gone, "")]
    run_passes([swap("Relu", "Sigmoid"), *found], model)
    assert ops(model) == ["Sigmoid", "Sqrt", "Exp"]
    assert not model.graph.initializers


def test_equal_small_constants_are_one_initializer_wherever_they_are() -> None:
    model = parse(
        """(float[B,4] x, bool c) => (float[B,4] y)
        { one = Constant<value = float[1] {1.0}>()  a = Add(x, one)
          b = If (c) <then_branch = t () => (float[B,4] u) { w = Constant<value = float[1] {1.0}>()  u = Mul(a, w) },
                      else_branch = f () => (float[B,4] v) { o = Constant<value = int64[1] {1}>()
                                                             e = Cast<to = 1>(o)  v = Div(a, e) }>
          y = Sub(b, one) }"""
    )
    model = ir.from_proto(ir.to_proto(model))  # as a file is read
    assert lift_constants(model) == 3
    assert {name: value.dtype for name, value in model.graph.initializers.items()} == {
        "one": ir.DataType.FLOAT,
        "o": ir.DataType.INT64,
    }
    assert sorted(use.node.op_type for use in model.graph.initializers["one"].uses()) == ["Add", "Mul", "Sub"]


def test_a_new_node_inherits_the_origin_of_what_it_replaced() -> None:
    model = parse(CHAIN)
    for number, node in enumerate(model.graph, 1):
        origins.set(node, Origin("layer", "m.py", number))

    def anew(model: ir.Model, skip: Any) -> int:
        for node in nodes(model, "Relu"):
            new = ir.node("Sigmoid", node.inputs, name="new")
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], [new], node.outputs, new.outputs)
            return 1
        return 0

    run_passes([Pass("anew", anew, "")], model)
    assert [origins.of(node) for node in model.graph] == [Origin("layer", "m.py", 1), Origin("layer", "m.py", 2)]


def test_states_tell_a_node_that_took_over_from_one_that_changed() -> None:
    model = parse("(float[B,4] x) => (float[B,4] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }")
    before = State.of(model)
    (relu,) = nodes(model, "Relu")
    new = replace(relu, "Sigmoid", relu.inputs)
    after = State.of(model)
    assert after.changed(before) == [new]
    (neg,) = nodes(model, "Neg")
    bypass(neg, new.outputs[0])
    assert [node.op_type for node in State.of(model).changed(after)] == ["Exp"]


@pytest.mark.parametrize("one", dict.fromkeys(PASSES), ids=lambda one: one.name)
def test_the_whole_list_settles_on_every_example(one: Pass) -> None:
    model = ir.from_proto(onnx.parser.parse_model(one.example))
    run_passes(PASSES, model)
    assert {again.name: again.sites for again in run_passes(PASSES, model) if again.sites} == {}


def test_a_long_vector_is_not_followed_element_by_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx keeps a number for each element of a vector of known length, of a waveform as of a shape."""
    longest = 0
    infer = onnx.shape_inference.infer_shapes

    def spy(model: onnx.ModelProto, data_prop: bool, **options: Any) -> onnx.ModelProto:
        nonlocal longest
        found = infer(model, data_prop=data_prop, **options)
        for value in (*found.graph.input, *found.graph.value_info, *found.graph.output) if data_prop else ():
            dims = value.type.tensor_type.shape.dim
            longest = max(longest, dims[0].dim_value if len(dims) == 1 else 0)
        return found

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    model = parse("""
        (float[3000000] x, float[B,4] z) => (float y)
        <int64[1] flat = {-1}>
        { a = Add(x, x)  b = Mul(a, x)  s = Shape(z)  r = Reshape(z, flat)  t = Mul(s, s)  e = ConstantOfShape(t)
          y = Sum(b, r, e) }
    """)
    infer_shapes(model)
    shapes = {value.name: str(value.shape) for node in model.graph for value in node.outputs}
    assert (shapes["a"], shapes["b"], shapes["t"]) == ("[3000000]", "[3000000]", "[2]")
    assert shapes["e"].endswith(",16]")
    assert longest <= 1 << 16
