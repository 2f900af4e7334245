"""A pass that changes what a graph computes is found, wherever it does it; one that does not is never accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from aot.errors import GraphError
from aot.graph import Pass, run_passes
from aot.graph.check import SITES, Check
from aot.passes._edit import bypass, constant, nodes, replace
from tests.passes.test_limits import HEAD

WHOLE = pytest.mark.parametrize("whole", [False, True], ids=["sites", "graph"])


def parse(text: str) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(HEAD + text))
    for index, node in enumerate(model.graph.all_nodes()):
        node.name = f"{node.op_type}{index}"
    return model


def watched(text: str, rewrite: Callable[[ir.Model], Any], whole: bool = False) -> Check:
    """Run `rewrite`, once, as pass `tried` over the model of `text`."""
    done = []

    def once(model: ir.Model, skip: Any) -> int:
        if not done:
            rewrite(model)
            done.append(True)
            return 1
        return 0

    check = Check(whole=whole)
    run_passes([Pass("tried", once, "")], parse(text), check)
    return check


def swap(op: str, to: str, **attributes: Any) -> Callable[[ir.Model], None]:
    """Put op `to`, of the same inputs, in the place of every `op`."""

    def rewrite(model: ir.Model) -> None:
        for node in nodes(model, op):
            replace(node, to, node.inputs, {**{a.name: a.value for a in node.attributes.values()}, **attributes})

    return rewrite


def drop(op: str) -> Callable[[ir.Model], None]:
    """Let whoever reads the result of `op` read its first input."""

    def rewrite(model: ir.Model) -> None:
        for node in nodes(model, op):
            assert node.inputs[0] is not None
            bypass(node, node.inputs[0])

    return rewrite


def refill(name: str, data: Any) -> Callable[[ir.Model], None]:
    """Put other contents into an initializer."""

    def rewrite(model: ir.Model) -> None:
        model.graph.initializers[name].const_value = ir.tensor(np.array(data), name=name)

    return rewrite


def turn_around(model: ir.Model) -> None:
    """Let every Concat join its inputs the other way round."""
    for node in nodes(model, "Concat"):
        replace(node, "Concat", list(node.inputs)[::-1], {"axis": 0})


def associate(model: ir.Model) -> None:
    """(x s) k = x (s k)."""
    first, last = nodes(model, "Mul")
    (x, s), k = first.inputs, last.inputs[1]
    inner = ir.node("Mul", [s, k], name="inner")
    model.graph.insert_before(last, inner)
    replace(last, "Mul", [x, inner.outputs[0]])


def scale_afterwards(model: ir.Model) -> None:
    """(k x) w = k (x w)."""
    (product,) = nodes(model, "MatMul")
    (scaled,) = nodes(model, "Mul")
    x, k = scaled.inputs
    inner = ir.node("MatMul", [x, product.inputs[1]], name="inner")
    model.graph.insert_before(product, inner)
    replace(product, "Mul", [inner.outputs[0], k])


AMPLIFIED = """<float t = {0.7}, float s = {0.3}, float k = {100001}>
{ f = Cast<to = 1>(x)  c = Add(f, t)  a = Mul(c, s)  b = Mul(a, k)  y = Sin(b) }"""
"""Of an integer x, which has no last digit to move; the rounding of b moves y by 1e-3 and more."""

WRONG = {
    "op": ("(float[B,4] x) => (float[B,4] y) { a = Exp(x)  y = Neg(a) }", swap("Exp", "Abs")),
    "attribute": (
        "(float[B,4] x) => (float[B,4] y) { a = Softmax(x)  y = Neg(a) }",
        swap("Softmax", "Softmax", axis=0),
    ),
    "constant": (
        "(float[B,2] x) => (float[B,2] y) <float[2] w = {1, 2}> { a = Mul(x, w)  y = Neg(a) }",
        refill("w", np.float32([1, 3])),
    ),
    "dropped": ("(float[B,4] x) => (float[B,4] y) { a = Exp(x)  b = Abs(a)  c = Neg(b)  y = Exp(c) }", drop("Neg")),
    "integers": ("(int64[B,4] x) => (int64[B,4] y) { a = Add(x, x)  y = Mul(a, x) }", swap("Add", "Mul")),
    "integers, equal for 0 and 1": (
        "(int64[B,4] x) => (int64[B,4] y) { a = Mul(x, x)  y = Add(a, x) }",
        swap("Mul", "Max"),
    ),
    "rows of a table that has two": (
        """(int64[B,4] x) => (float[B,4] y) <float[2] table = {1.5, 2.5}> { a = Gather(table, x)  y = Neg(a) }""",
        refill("table", np.array([1.5, 2], np.float32)),
    ),
    "what integers are scaled by, before a step that amplifies rounding": (
        f"(int64[B,8] x) => (float[B,8] y) {AMPLIFIED}",
        refill("k", np.float32(100021)),
    ),
    "bools": ("(bool[B,4] x, bool[B,4] z) => (bool[B,4] y) { a = And(x, z)  y = Not(a) }", swap("And", "Or")),
    "one size of two": (
        "(float[B,S] x) => (float[N] y) <int64[1] n = {-1}> { a = Transpose<perm = [1, 0]>(x)  y = Reshape(a, n) }",
        drop("Transpose"),
    ),
    "second output": (
        """(float[B,4] x) => (float[B,2] y, float[B,2] z) <int64[2] n = {2, 2}>
        { y, a = Split<axis = 1>(x, n)  z = Neg(a) }""",
        drop("Neg"),
    ),
    "shapes": (
        """(float[B,S] x) => (float[S,B] y) <int64[1] one = {1}, int64[1] nought = {0}>
        { s = Shape(x)  b = Gather(s, nought)  l = Gather(s, one)  t = Concat<axis = 0>(l, b)  y = Reshape(x, t) }""",
        turn_around,
    ),
    "body": (
        """(float[B,4] x, bool c) => (float[B,4] y)
        { y = If (c) <then_branch = t () => (float[B,4] a) { e = Exp(x)  a = Neg(e) },
                      else_branch = f () => (float[B,4] b) { b = Abs(x) }> }""",
        swap("Exp", "Sin"),
    ),
    "half": ("(float16[B,4] x) => (float16[B,4] y) { a = Exp(x)  y = Neg(a) }", swap("Exp", "Abs")),
    "brain": ("(bfloat16[B,4] x) => (bfloat16[B,4] y) { a = Abs(x)  y = Neg(a) }", drop("Abs")),
    "double": ("(double[B,4] x) => (double[B,4] y) { a = Sin(x)  y = Neg(a) }", swap("Sin", "Cos")),
    "epsilon": (
        """(float[B,8] x) => (float[B,8] y) <float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}>
        { y = LayerNormalization<epsilon = 0.001>(x, w) }""",
        swap("LayerNormalization", "LayerNormalization", epsilon=0.0),
    ),
}


@WHOLE
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rewrite_is_an_error_that_names_pass_and_node(name: str, whole: bool) -> None:
    text, rewrite = WRONG[name]
    with pytest.raises(GraphError, match="pass 'tried' changes what the graph computes") as caught:
        watched(text, rewrite, whole)
    assert caught.value.where is not None
    assert "node '" in caught.value.where
    assert "--without-pass tried" in (caught.value.fix or "")


RIGHT = {
    "equal for positive numbers, which only the op before shows": (
        "(float[B,4] x) => (float[B,4] y) { a = Exp(x)  b = Abs(a)  y = Neg(b) }",
        drop("Abs"),
    ),
    "equal sizes, which only the whole graph shows": (
        """(float[B,S] x) => (float[N] y) <int64[1] n = {-1}>
        { a = Relu(x)  s = Shape(a)  e = Expand(a, s)  y = Reshape(e, n) }""",
        drop("Expand"),
    ),
    "a difference that the op behind makes vanish": (
        """(float[B,4] q, bool[B,4] keep) => (float[B,4] y) <float zero = {0}, float low = {-100000}>
        { m = Where(keep, zero, low)  a = Add(q, m)  y = Softmax(a) }""",
        refill("low", np.float32(-30000)),
    ),
    "the rounding of a sum in another order": (
        """(float[B,64] x, float[64,8] w) => (float[B,8] y) <float k = {0.3}>
        { a = Mul(x, k)  y = MatMul(a, w) }""",
        scale_afterwards,
    ),
    "no more than the last digit of the inputs, one without dims among them, is worth": (
        "(float[B,4] x, float s) => (float[B,4] y) <float k = {1000}> { a = Mul(x, s)  b = Mul(a, k)  y = Sin(b) }",
        associate,
    ),
    "no more than the last digit of what is computed from integers is worth": (
        f"(int64[B,8] x) => (float[B,8] y) {AMPLIFIED}",
        associate,
    ),
    "of a mask of 0 and 1, which large integers would make infinite": (
        """(float[B,4] q, int64[B,4] keep) => (float[B,4] y) <float one = {1}, float low = {-3e38}>
        { k = Cast<to = 1>(keep)  d = Sub(one, k)  m = Mul(d, low)  a = Add(q, m)  y = Softmax(a) }""",
        refill("low", np.float32(-30000)),
    ),
}


@WHOLE
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rewrite_is_not_accused(name: str, whole: bool) -> None:
    text, rewrite = RIGHT[name]
    found = watched(text, rewrite, whole)
    assert found.largest().within


def test_what_is_noise_is_told_apart_from_the_largest_difference() -> None:
    found = watched(f"(int64[B,8] x) => (float[B,8] y, float[B,8] z) {AMPLIFIED[:-1]} z = Neg(f) }}", associate, True)
    assert found.largest().relative == 0
    assert 1e-3 < found.noise().relative < 1
    facts = found.passes["tried"].to_json()
    assert (facts["relative"], facts["noise"]) == (found.noise().relative, True)


def test_what_is_read_twice_may_become_one() -> None:
    def share(model: ir.Model) -> None:
        first, second = nodes(model, "Exp")
        bypass(second, first.outputs[0])

    check = watched("(float[B,4] x) => (float[B,4] y) { a = Exp(x)  b = Exp(x)  y = Mul(a, b) }", share)
    assert (check.passes["tried"].sites, check.passes["tried"].largest.absolute) == (1, 0)


def test_a_folded_constant_is_compared_with_what_it_was_computed_from() -> None:
    text = "(float[B,2] x) => (float[B,2] y) <float[2] k = {3, 4}> { c = Neg(k)  y = Mul(x, c) }"

    def fold(data: list[float]) -> Callable[[ir.Model], None]:
        def rewrite(model: ir.Model) -> None:
            (neg,) = nodes(model, "Neg")
            value = constant(model, "folded", np.array(data, np.float32))
            ir.convenience.replace_all_uses_with(neg.outputs[0], value)

        return rewrite

    assert watched(text, fold([-3, -4])).passes["tried"].sites == 1
    with pytest.raises(GraphError, match="tried"):
        watched(text, fold([-3, 4]))


def test_a_sample_is_taken_of_many_sites_one_of_each_kind_first() -> None:
    waves = "  ".join(f"a{i + 1} = Sin(a{i})" for i in range(20))
    text = f"(float[B,4] x) => (float[B,4] y) {{ a0 = Relu(x)  {waves}  b = Sub(a20, x)  y = Neg(b) }}"

    def rewrite(model: ir.Model) -> None:
        for node in nodes(model, "Sin", "Sub"):
            replace(node, node.op_type, node.inputs)

    assert watched(text, rewrite).passes["tried"].sites == SITES

    def wrong_at_one(model: ir.Model) -> None:
        swap("Sub", "Add")(model)
        rewrite(model)

    with pytest.raises(GraphError, match="tried"):
        watched(text, wrong_at_one)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[] x) => (float[] y) { a = Exp(x)  y = Neg(a) }", "dtype or shape of what it reads is not known"),
        ("(float[B,4] x) => (float[B,4] y) { a = RandomNormalLike(x)  y = Neg(a) }", "it draws random numbers"),
        ("(float[4000,4000,4000] x) => (float[4000,4000,4000] y) { a = Exp(x)  y = Neg(a) }", "too large"),
    ],
)
def test_what_cannot_be_run_is_said_to_be_not_checked(text: str, reason: str) -> None:
    def rewrite(model: ir.Model) -> None:
        for node in nodes(model, "Exp", "RandomNormalLike"):
            replace(node, node.op_type, node.inputs)

    checked = watched(text, rewrite).passes["tried"]
    assert checked.sites == 0
    assert any(reason in said for said in checked.unchecked)


def test_no_more_is_checked_once_the_seconds_are_spent() -> None:
    check = Check(budget=0.0)
    model = parse("(float[B,4] x) => (float[B,4] y) <float one = {1}> { a = Mul(x, one)  y = Neg(a) }")
    from aot.passes import PASSES

    run_passes(PASSES, model, check)
    assert all(checked.sites == 0 for checked in check.passes.values())
    assert any("0 s for checks were spent" in said for checked in check.passes.values() for said in checked.unchecked)
