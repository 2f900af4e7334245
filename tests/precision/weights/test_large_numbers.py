"""Values near the end of FP32, whose squares no FP32 holds: no warning, and numbers that are right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from aot.channels import Channels
from aot.config import Recipe
from aot.precision import apply
from aot.precision.weights.moments import mean_squares
from tests.precision.graphs import Array, graph
from tests.precision.weights.observing import statistics

rng = np.random.default_rng(8)


def large(*shape: int) -> Array:
    return (1e38 * np.clip(rng.standard_normal(shape), -3.4, 3.4)).astype(np.float32)


def test_the_mean_square_of_every_channel() -> None:
    x = large(4096, 3)
    channels = Channels.of(x, -1)
    channels.add(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mean_squares(channels)
    np.testing.assert_allclose(found, np.square(x.astype(np.float64)).mean(axis=0), rtol=0.05)


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_all_that_is_done_to_weights_works_on_them(precision: str) -> None:
    made = graph(
        "g (float[b, 64] x) => (float[b, 32] y) { y = MatMul(x, w) }",
        21,
        w=(1e-3 * rng.standard_normal((64, 32))).astype(np.float32),
    )
    weights: dict[str, Any] = {"rounding": "adaptive", "bias_correction": True, "equalize": True}
    weights |= {"block": 64} if precision == "int4" else {"smooth": "auto"}
    settings = {"precision": precision, "compute": "fp32", "weights": weights, "activations": precision != "int4"}
    seen = statistics(made, [{"x": large(256, 64)}])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        outcome = apply(made, Recipe.model_validate(settings), seen.amax(), seen)
    assert outcome.ops == {"MatMul": 1}
