"""Outputs that are nothing but rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from aot.noise import noisy

if TYPE_CHECKING:
    from aot.arrays import Arrays

RNG = np.random.default_rng(0)


def centred(inputs: Arrays) -> Arrays:
    """A row that has been centred sums to rounding; its values do not."""
    x = inputs["x"] - inputs["x"].mean(-1, keepdims=True)
    return {"values": x, "sums": x.sum(-1), "signs": x > 0}


def test_the_sum_of_what_was_centred_is_noise_and_the_rest_is_not() -> None:
    inputs = {"x": RNG.normal(size=(8, 256)).astype(np.float32)}
    found = noisy(centred, inputs, centred(inputs))
    assert set(found) == {"sums"}
    assert found["sums"] > 0.5


def test_a_small_output_is_not_noise() -> None:
    inputs = {"x": RNG.normal(size=(8, 256)).astype(np.float32)}
    assert (
        noisy(lambda given: {"y": given["x"] * np.float32(1e-9)}, inputs, {"y": inputs["x"] * np.float32(1e-9)}) == {}
    )


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_nothing_is_left_out_where_nothing_would_be_left(dtype: str) -> None:
    def sums(given: Arrays) -> Arrays:
        return {"sums": centred({"x": given["x"].astype(np.float32)})["sums"]}

    inputs = {"x": RNG.normal(size=(8, 256)).astype(dtype)}
    assert noisy(sums, inputs, sums(inputs)) == {}
