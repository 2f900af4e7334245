"""Sizes that vary: what a plugin computes with them is what it computes with numbers."""

from __future__ import annotations

import math

import pytest

from aot.errors import PluginError
from aot.plugin import at_most, ceil_div, fixed, power_of_two
from aot.plugins.sizes import describe, evaluate, tree_of, varying


@pytest.mark.parametrize("sizes", [(1, 1), (5, 3), (0, 7), (129, 64)])
def test_an_expression_is_worth_what_the_numbers_are(sizes: tuple[int, int]) -> None:
    def computed(a: object, b: object) -> object:
        rounded = [ceil_div(a, 16) * b, 7 - ceil_div(b, 4), ceil_div(100, b + 1)]  # type: ignore[operator]
        return [math.prod((a, b, 2)), (a + 3) // 2 - 1, at_most(a, 4) * b, *rounded]  # type: ignore[operator]

    a, b = varying("x", 0), varying("x", 1)
    found = [evaluate(tree_of(size), {"x": sizes}) for size in computed(a, b)]  # type: ignore[attr-defined]
    assert found == computed(*sizes)


def test_an_expression_is_plain_data_and_reads_as_a_formula() -> None:
    size = ceil_div(varying("x", 0) * 4, 16) + 1
    assert tree_of(size) == ["+", ["ceil", ["*", ["size", "x", 0], 4], 16], 1]
    assert describe(tree_of(size)) == "(ceil((x[0] * 4), 16) + 1)"


@pytest.mark.parametrize(
    "use",
    [
        lambda size: size == 4,
        lambda size: 1 if size else 2,
        lambda size: size > 3,
        lambda size: size % 2,
        lambda size: range(size),
        lambda size: int(size),
    ],
    ids=["equality", "truth", "order", "remainder", "range", "int"],
)
def test_nothing_is_decided_by_a_size_that_varies(use: object) -> None:
    with pytest.raises(PluginError, match=r"x\[0\] varies"):
        use(varying("x", 0))  # type: ignore[operator]


def test_a_constant_of_a_kernel_is_a_fixed_size() -> None:
    assert (fixed(7), power_of_two(7), power_of_two(8), power_of_two(1), power_of_two(0)) == (7, 8, 8, 1, 1)
    with pytest.raises(PluginError, match=r"the width must be fixed, and x\[1\] varies"):
        power_of_two(varying("x", 1), "the width")
