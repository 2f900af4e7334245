"""Slices that take a tensor apart: against onnxruntime on the graph before, and where they stay."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.split_slices import split_slices
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime


def text(first: str, second: str, shape: str = "B,7") -> str:
    a, b, c, d = (*first.split(":"), *second.split(":"))
    return f"""(float[{shape}] x) => (float[N,M] y)
    <int64[1] a = {{{a}}}, int64[1] b = {{{b}}}, int64[1] c = {{{c}}}, int64[1] d = {{{d}}}, int64[1] axis = {{-1}}>
    {{ p = Slice(x, a, b, axis)  q = Slice(x, c, d, axis)  y = Concat<axis = 1>(p, q) }}"""


@pytest.mark.parametrize(("first", "second"), [("0:3", "3:7"), ("3:99", "0:3"), ("-3:7", "-9:-3")])
def test_two_halves_of_a_roll_are_one_split(first: str, second: str) -> None:
    model = parse(text(first, second))
    x = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert split_slices(model) == 1
    assert ops(model) == {"Split": 1, "Concat": 1}
    np.testing.assert_array_equal(run_by_onnxruntime(model, x=x), expected)


@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [("0:3", "4:7", "B,7"), ("0:4", "3:7", "B,7"), ("0:3", "3:6", "B,7"), ("0:3", "3:7", "7,B")],
    ids=["a gap", "an overlap", "a rest", "a dynamic size"],
)
def test_slices_that_do_not_take_it_apart_stay(first: str, second: str, shape: str) -> None:
    assert refused(split_slices, text(first, second, shape)) == []
