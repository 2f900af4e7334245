"""Outputs that are nothing but rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aot.allowance import allowed
from aot.config import Budget
from aot.noise import moves, noisy

if TYPE_CHECKING:
    from aot.arrays import Arrays

RNG = np.random.default_rng(0)


def centred(inputs: Mapping[str, Any]) -> Arrays:
    """A row that has been centred sums to rounding; its values do not."""
    x = inputs["x"] - inputs["x"].mean(-1, keepdims=True)
    return {"values": x, "sums": x.sum(-1), "signs": x > 0}


def test_the_sum_of_what_was_centred_is_noise_and_the_rest_is_not() -> None:
    inputs = {"x": RNG.normal(size=(8, 256)).astype(np.float32)}
    found = noisy(moves(centred, inputs, centred(inputs)))
    assert set(found) == {"sums"}
    assert found["sums"] > 0.5


def test_a_small_output_is_not_noise() -> None:
    inputs = {"x": RNG.normal(size=(8, 256)).astype(np.float32)}
    small = {"y": inputs["x"] * np.float32(1e-9)}
    assert noisy(moves(lambda given: {"y": given["x"] * np.float32(1e-9)}, inputs, small)) == {}


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_nothing_is_left_out_where_nothing_would_be_left(dtype: str) -> None:
    def sums(given: Mapping[str, Any]) -> Arrays:
        return {"sums": centred({"x": given["x"].astype(np.float32)})["sums"]}

    inputs = {"x": RNG.normal(size=(8, 256)).astype(dtype)}
    assert noisy(moves(sums, inputs, sums(inputs))) == {}


def test_what_the_reference_cannot_hold_itself_is_not_asked_for() -> None:
    strict = Budget(cosine=0.9999, relative_l2=1e-3)
    assert allowed(strict, moved=1e-7, requantized=False) == strict
    shaky = allowed(strict, moved=0.02, requantized=False)
    assert shaky.relative_l2 == pytest.approx(0.08)
    assert shaky.cosine == pytest.approx(0.9968)
    rounded = allowed(strict, moved=0.0, requantized=True)
    assert (rounded.cosine, rounded.relative_l2) == (0.95, 0.35)
    assert allowed(Budget(max_abs=0.1), moved=0.02, requantized=True) == Budget(max_abs=0.1)
