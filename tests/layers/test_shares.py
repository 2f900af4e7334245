"""Whose fault the outputs' error is: graphs small enough to do by hand."""

from __future__ import annotations

import math

import pytest

from aot.layers.shares import Source, shares


def layer(value: str, *reads: str, error: float, added: float, square: float = 1.0, op: str = "MatMul") -> Source:
    return Source(value, op, reads, square, error, added)


def test_what_is_not_added_at_a_layer_came_in() -> None:
    chain = [
        layer("a", "x", error=3.0, added=3.0),
        layer("b", "a", error=4.0, added=1.0),
        layer("c", "b", error=8.0, added=4.0),
    ]
    # Half of c's enters there; of the other half a quarter at b.
    assert shares(chain, ["c"]) == pytest.approx({"c": 0.5, "b": 0.125, "a": 0.375})


def test_a_sum_divides_by_squared_errors_and_a_product_by_relative_ones() -> None:
    def both(op: str) -> dict[str, float]:
        terms = [layer("a", error=1.0, added=1.0, square=1.0), layer("b", error=3.0, added=3.0, square=9.0)]
        return shares([*terms, layer("y", "a", "b", error=4.0, added=0.0, op=op)], ["y"])

    assert both("Add") == pytest.approx({"y": 0.0, "a": 1 / 4, "b": 3 / 4})
    assert both("Mul") == pytest.approx({"y": 0.0, "a": 3 / 4, "b": 1 / 4})


def test_what_is_read_in_two_places_is_blamed_for_both() -> None:
    found = shares(
        [
            layer("a", error=1.0, added=1.0),
            layer("b", "a", error=2.0, added=1.0),
            layer("y", "a", "b", error=3.0, added=0.0, op="Add"),
        ],
        ["y"],
    )
    assert found == pytest.approx({"y": 0.0, "b": 2 / 3 * 1 / 2, "a": 1 / 3 + 2 / 3 * 1 / 2})
    assert sum(found.values()) == pytest.approx(1)


def test_outputs_weigh_by_their_relative_errors() -> None:
    found = shares(
        [layer("a", error=1.0, added=1.0, square=100.0), layer("b", error=1.0, added=1.0, square=300.0)], ["a", "b"]
    )
    assert found == pytest.approx({"a": 0.75, "b": 0.25})


def test_without_error_nobody_is_blamed() -> None:
    assert shares([layer("a", error=0.0, added=0.0)], ["a"]) == {"a": 0.0}
    assert shares([layer("a", error=1.0, added=1.0)], ["gone"]) == {"a": 0.0}


def test_what_is_not_finite_takes_the_blame_from_what_is() -> None:
    lost = math.inf
    found = shares(
        [
            layer("a", "x", error=1.0, added=1.0),
            layer("b", "a", error=lost, added=lost),
            layer("y", "a", "b", error=lost, added=0.1, op="Add"),
        ],
        ["y"],
    )
    assert found["b"] == pytest.approx(1.0)
    assert all(math.isfinite(share) for share in found.values())


def test_a_layer_whose_own_error_is_larger_than_what_came_of_all_takes_no_more_than_all() -> None:
    found = shares([layer("a", error=1.0, added=1.0), layer("y", "a", error=2.0, added=5.0)], ["y"])
    assert found == pytest.approx({"y": 1.0, "a": 0.0})
