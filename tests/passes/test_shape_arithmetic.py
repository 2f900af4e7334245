"""Arithmetic on sizes is followed exactly, and what follows from it holds at every size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aot import passes
from aot.passes._symbols import Polynomial, at_least, atom, divide, opaque, quotient
from tests.passes.test_chains import check, ops, parse, run


def value(number: int | Polynomial, sizes: dict[str, int]) -> int:
    if isinstance(number, int):
        return number
    return sum(factor * int(np.prod([sizes[one] for one in atoms])) for atoms, factor in number.terms.items())


def test_polynomials_compute_as_their_numbers_do() -> None:
    b, s = atom("B"), atom("S")
    numbers: list[int | Polynomial] = [0, 1, -2, 6, b, s, b * s, 3 * b + 1, b * s * 2 - s, (b + 1) * (s - 2), b - b]
    for one, other in itertools.product(numbers, numbers):
        for sizes in ({"B": 2, "S": 3}, {"B": 5, "S": 1}, {"B": 7, "S": 4}):
            x, y = value(one, sizes), value(other, sizes)
            assert value(one + other, sizes) == x + y
            assert value(one - other, sizes) == x - y
            assert value(one * other, sizes) == x * y
            exact = quotient(one, other) if other != 0 else None
            if exact is not None:
                assert value(exact, sizes) * y == x
            low = at_least(one)
            assert low is None or low <= x


def test_equal_numbers_are_equal_however_they_were_computed() -> None:
    b, s = atom("B"), atom("S")
    assert (b + s) * 2 == 2 * s + b + b
    assert divide(b * s * 6, s * 2) == 3 * b
    assert b - b == 0
    assert divide(b + 1, 2) == opaque("/", 1 + b, 2)
    assert divide(-7, 2) == -3
    assert divide(b, 2) != divide(b, 3)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        # A static dim of a shape that is not static.
        ("(float[B,6] x) => (int64 y) <int64 one = {1}> { s = Shape(x)  d = Gather(s, one)  y = Neg(d) }", ["Neg"]),
        # The same number on two ways.
        (
            """(float[B,6] x, float[B,3] z) => (int64[1] y) <int64[1] zero = {0}, int64[1] one = {1}>
            { s = Shape(x)  a = Slice(s, zero, one)  b = Shape<start = 0, end = 1>(z)  y = Sub(a, b) }""",
            ["Shape", "Sub"],
        ),
        # torch's expand: -1 stands for what is there.
        (
            """(float[B,1,4] x, float[B,S,4] z) => (float[B,S,4] y) <int64[3] minus = {-1, -1, -1},
            int64[3] ones = {1, 1, 1}>
            { t = Shape(z)  e = Equal(t, minus)  w = Where(e, ones, t)  y = Expand(x, w) }""",
            ["Expand", "Shape"],
        ),
        # Heads are split off and joined.
        (
            """(float[B,S,8] x) => (float[B,S,2,4] y) <int64 two = {2}, int64 last = {-1}, int64[1] zero = {0}>
            { s = Shape(x)  i = Gather(s, last)  d = Div(i, two)  h = Unsqueeze(two, zero)  w = Unsqueeze(d, zero)
              f = Shape<start = 0, end = 2>(x)  t = Concat<axis = 0>(f, h, w)  y = Reshape(x, t) }""",
            ["Reshape"],
        ),
        # Through a product that is undone.
        (
            """(float[B,S,8] x) => (float[B,S,8] y) <int64[2] flat = {-1, 8}>
            { r = Reshape(x, flat)  a = Relu(r)  s = Shape(x)  y = Reshape(a, s) }""",
            ["Relu", "Reshape", "Reshape", "Shape"],
        ),
        # A slice up to the size itself.
        (
            """(float[B,S] x) => (float[B,S] y) <int64[1] zero = {0}, int64[1] one = {1}>
            { e = Shape<start = 1, end = 2>(x)  t = Slice(x, zero, e, one)  y = Neg(t) }""",
            ["Neg"],
        ),
        # Sizes through floating point, where it is exact.
        (
            """(float[B,6] x) => (int64[1] y) <float[1] two = {2}> { s = Shape<start = 1>(x)  f = Cast<to = 1>(s)
            m = Mul(f, two)  c = Floor(m)  i = Cast<to = 7>(c)  y = Neg(i) }""",
            ["Neg"],
        ),
    ],
    ids=["static dim", "twice", "expand", "heads", "flattened", "slice", "floats"],
)
def test_what_names_of_dims_say_is_not_computed(text: str, left: list[str]) -> None:
    model = check(passes.shape_arithmetic, text, left, sizes=(1, 2, 5))
    again = ops(model)
    assert passes.shape_arithmetic(model) == 0
    assert ops(model) == again


@pytest.mark.parametrize(
    "text",
    [
        "(float[B,4] x) => (bool y) <int64 one = {1}> { s = Shape<end = 1>(x)  r = Squeeze(s)  y = Equal(r, one) }",
        "(float[B,4] x) => (int64[1] y) <int64[1] two = {2}> { s = Shape<end = 1>(x)  y = Div(s, two) }",
        "(float[B,4] x) => (float[C,4] y) <int64[2] t = {2, 4}> { y = Expand(x, t) }",
        "(int64[2] t, float[4] x) => (float[A,B] y) { y = Reshape(x, t) }",
        """(float[B,S] x) => (float[B,T] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>
        { e = Shape<start = 1>(x)  m = Sub(e, two)  y = Slice(x, zero, m, one) }""",
    ],
    ids=["dim of 1", "half", "expansion", "fed", "shorter"],
)
def test_what_depends_on_sizes_or_data_stays(text: str) -> None:
    assert passes.shape_arithmetic(parse(text)) == 0


def test_a_zero_in_a_target_means_what_it_did() -> None:
    """With allowzero a 0 is a size; the constant target may say so of no other dim."""
    text = """(float[0,S] x, float[B] z) => (float[B,0] y) <int64[1] none = {0}>
    { b = Shape(z)  t = Concat<axis = 0>(b, none)  y = Reshape<allowzero = 1>(x, t) }"""
    model = parse(text)
    assert passes.shape_arithmetic(model) == 0
    assert run(model, x=np.zeros((0, 3), np.float32), z=np.zeros(5, np.float32))[0].shape == (5, 0)


def test_a_branch_learns_from_the_shapes_around_it() -> None:
    text = """(float[B,4] x, bool c) => (int64 y) <int64 one = {1}> {
      y = If (c) <then_branch = t () => (int64 p) { s = Shape(x)  d = Gather(s, one)  p = Neg(d) },
                  else_branch = e () => (int64 q) { q = Identity(one) }> }"""
    model = parse(text)
    assert passes.shape_arithmetic(model) > 0
    assert ops(model) == ["Identity", "If", "Neg"]
    assert run(model, x=np.zeros((2, 4), np.float32), c=np.array(True))[0] == -4
