"""Which convolutions and sizes are quantized by which recipe, and what is said of those that stay wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.config import Recipe
from aot.precision import Outcome
from tests.precision.graphs import Array, converted, graph, observe, precisions, reasons, recipe

rng = np.random.default_rng(3)


def normal(*shape: int, scale: float = 0.2) -> Array:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def conv(weight: Array, attributes: str = "", form: str = "int8", **placement: Any) -> tuple[str, str]:
    """The precision of one convolution, and why."""
    channels = weight.shape[1] * (int(attributes.split("=")[1].rstrip("> ")) if attributes else 1)
    feeds = {"x": normal(1, channels, 8, 8, scale=1.0)}
    made = graph(
        f"g (float[B, {channels}, 8, 8] x) => (float[B, {weight.shape[0]}, P, Q] y) {{ y = Conv {attributes} (x, w) }}",
        w=weight,
    )
    _, outcome = converted(made, recipe(form, **placement), observe(made, feeds))
    return precisions(outcome)["y"], reasons(outcome)["y"]


def test_few_channels_stay_wide() -> None:
    assert conv(normal(32, 3, 3, 3), min_channels=16) == ("fp16", "3 input channels, fewer than 16")
    assert conv(normal(8, 32, 1, 1), min_channels=16) == ("fp16", "8 output channels, fewer than 16")
    assert conv(normal(32, 3, 3, 3), min_channels=3)[0] == "int8"


def test_depthwise_convolutions_stay_wide_unless_the_recipe_takes_them() -> None:
    """Where it does, test_float_outputs.py says what becomes of them."""
    precision, reason = conv(normal(32, 1, 3, 3), "<group = 32>", depthwise=False)
    assert precision == "fp16"
    assert "depthwise (32 channels" in reason


def test_fp8_convolutions_take_no_groups_and_sixteen_channels() -> None:
    asked = {"form": "fp8", "slow": True}
    assert conv(normal(32, 16, 1, 1), **asked)[0] == "fp8"
    assert conv(normal(32, 16, 1, 1), "<group = 2>", **asked) == (
        "fp16",
        "FP8 convolution kernels take no groups (2 here); TensorRT 10.6 and later",
    )
    assert conv(normal(32, 24, 1, 1), **asked)[0] == "fp8"
    assert "8 to 32 here" in conv(normal(32, 8, 1, 1), **asked, min_channels=0)[1]
    assert conv(normal(32, 8, 1, 1), form="int8", min_channels=0)[0] == "int8"


CONVOLUTIONS = "g (float[B, 32, 8, 8] x) => (float[B, 32, 8, 8] y) { c = Conv (x, w) y = Conv (c, v) }"
CLASSIFIER = """g (float[B, 32, 1, 1] x) => (float[B, 16] y)
{ c = Conv (x, w) d = Conv (c, v) f = Flatten (d) y = Gemm (f, u) }"""
FILTERS = {"w": normal(32, 32, 1, 1), "v": normal(32, 32, 1, 1)}
PLANE = {"x": normal(1, 32, 8, 8, scale=1.0)}


def convolved(wanted: str | Recipe) -> Outcome:
    made = graph(CONVOLUTIONS, **FILTERS)
    return converted(made, wanted, observe(made, PLANE))[1]


def test_fp8_leaves_convolutions_in_fp16_since_they_are_slower() -> None:
    outcome = convolved("fp8")
    assert precisions(outcome) == {"c": "fp16", "y": "fp16"}
    why = (
        "FP8 convolutions take longer than FP16 ones; TensorRT 10.6 and later; placement.slow quantizes it all the same"
    )
    assert reasons(outcome) == {"c": why, "y": why}
    [warning] = outcome.warnings
    assert warning.startswith(
        "nothing is quantized to fp8: all 2 Conv stay in fp16: FP8 convolutions took 7 to 19 times"
    )
    assert "--precision int8 is the faster choice" in warning
    assert warning.endswith("--calibration fp8-convolutions quantizes them all the same")


def test_one_warning_counts_them_where_other_layers_are_quantized() -> None:
    made = graph(CLASSIFIER, **FILTERS, u=normal(32, 16))
    _, outcome = converted(made, "fp8", observe(made, {"x": normal(2, 32, 1, 1, scale=1.0)}))
    assert outcome.ops == {"Gemm": 1}
    [warning] = outcome.warnings
    assert warning.startswith("all 2 Conv stay in fp16: FP8 convolutions took")


@pytest.mark.parametrize("slow", [False, True])
def test_int8_convolutions_are_not_known_to_be_slow(slow: bool) -> None:
    outcome = convolved(recipe("int8", slow=slow))
    assert precisions(outcome) == {"c": "int8", "y": "int8"}
    assert outcome.warnings == ()


def test_a_recipe_that_asks_for_slow_layers_gets_them_and_is_told() -> None:
    outcome = convolved(recipe("fp8", slow=True))
    assert precisions(outcome) == {"c": "fp8", "y": "fp8"}
    [warning] = outcome.warnings
    assert warning.startswith("2 Conv in fp8: FP8 convolutions took 7 to 19 times")


def test_weights_alone_are_stored_in_fp8_whatever_their_layer() -> None:
    outcome = convolved(recipe("fp8").model_copy(update={"activations": False}))
    assert precisions(outcome) == {"c": "fp8", "y": "fp8"}


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 32), (32, 40), (17, 33)])
def test_sizes_that_sixteen_does_not_divide_are_quantized_where_the_recipe_asks(inputs: int, outputs: int) -> None:
    made = graph(
        f"g (float[B, {inputs}] x) => (float[B, {outputs}] y) {{ y = MatMul(x, w) }}", w=normal(inputs, outputs)
    )
    amax = {"x": 3.0, "y": 3.0}
    _, outcome = converted(made, "fp8", amax)
    assert f"for sizes in multiples of 16 ({inputs} to {outputs} here)" in reasons(outcome)["y"]
    _, outcome = converted(made, recipe("fp8", slow=True), amax)
    assert (precisions(outcome), outcome.warnings) == ({"y": "fp8"}, ())
