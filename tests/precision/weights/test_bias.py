"""Bias correction: the mean error of a layer's output is gone, and the whole error smaller where inputs have a mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot.config import Recipe
from aot.precision import Outcome, apply
from tests.precision.graphs import Array, graph, ops
from tests.precision.weights.observing import outputs, relative, statistics

rng = np.random.default_rng(13)


def normal(*shape: int) -> Array:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


ROWS = {"x": (3 + normal(64, 32)) * rng.uniform(-1, 1, 32).astype(np.float32)}
PICTURES = {"x": (3 + normal(4, 16, 8, 8)) * rng.uniform(-1, 1, (1, 16, 1, 1)).astype(np.float32)}

LAYERS: dict[str, tuple[str, dict[str, Array], dict[str, Array]]] = {
    "gemm": (
        "(float[b, 32] x) => (float[b, 24] y) { y = Gemm(x, w, c) }",
        {"w": normal(32, 24), "c": normal(24)},
        ROWS,
    ),
    "gemm transposed and scaled": (
        "(float[b, 32] x) => (float[b, 24] y) { y = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, c) }",
        {"w": normal(24, 32), "c": normal(24)},
        ROWS,
    ),
    "gemm without bias": ("(float[b, 32] x) => (float[b, 24] y) { y = Gemm(x, w) }", {"w": normal(32, 24)}, ROWS),
    "matmul and add": (
        "(float[b, 32] x) => (float[b, 24] y) { h = MatMul(x, w)  y = Add(c, h) }",
        {"w": normal(32, 24), "c": normal(24)},
        ROWS,
    ),
    "convolution": (
        "(float[b, 16, 8, 8] x) => (float[b, 24, 6, 6] y) { y = Conv(x, w, c) }",
        {"w": normal(24, 16, 3, 3), "c": normal(24)},
        PICTURES,
    ),
    "grouped convolution without bias": (
        "(float[b, 16, 8, 8] x) => (float[b, 24, 6, 6] y) { y = Conv <group = 4> (x, w) }",
        {"w": normal(24, 4, 3, 3)},
        PICTURES,
    ),
}


def quantized(layer: str, **weights: Any) -> tuple[ir.Model, Outcome, Array, dict[str, Array]]:
    """Weights alone in INT8 with one scale, so that the error of the output is that of the weights, and not small."""
    body, constants, feeds = LAYERS[layer]
    model = graph(f"g {body}", 20, **constants)
    reference, seen = outputs(model, feeds)[0], statistics(model, [feeds])
    settings = {
        "precision": "int8",
        "compute": "fp32",
        "activations": False,
        "per_channel": False,
        "placement": {"min_channels": 1},
        "weights": weights,
    }
    return model, apply(model, Recipe.model_validate(settings), seen.amax(), seen), reference, feeds


def channel_means(array: Array) -> Array:
    found: Array = np.moveaxis(array.astype(np.float64), 1, 0).reshape(array.shape[1], -1).mean(axis=1)
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_the_mean_error_of_every_output_channel_is_gone(layer: str) -> None:
    plain, _, reference, feeds = quantized(layer)
    corrected, outcome, _, _ = quantized(layer, bias_correction=True)
    off = np.abs(channel_means(outputs(plain, feeds)[0] - reference))
    left = np.abs(channel_means(outputs(corrected, feeds)[0] - reference))
    # A convolution's border sees other values than the mean over the whole picture.
    assert left.max() < (0.1 if "convolution" in layer else 0.01) * off.max()
    assert relative(reference, outputs(corrected, feeds)[0]) < 0.5 * relative(reference, outputs(plain, feeds)[0])
    assert ops(corrected) == ops(plain)
    assert [(w.step, len(w.done), w.left) for w in outcome.weights] == [("bias correction", 1, {})]


def test_a_product_without_bias_gets_none() -> None:
    model = graph("g (float[b, 32] x) => (float[b, 24] y) { y = MatMul(x, w) }", w=normal(32, 24))
    seen = statistics(model, [ROWS])
    settings = {"precision": "int8", "placement": {"min_channels": 1}, "weights": {"bias_correction": True}}
    outcome = apply(model, Recipe.model_validate(settings), seen.amax(), seen)
    assert outcome.weights[0].left == {"y": "no bias is added behind it"}
    assert "Add" not in ops(model)


def test_a_shared_bias_is_corrected_for_one_reader() -> None:
    """Two layers that the exporter gave one zero bias."""
    body = "(float[b, 32] x) => (float[b, 24] y, float[b, 24] z) { y = Gemm(x, w, c)  z = Gemm(x, v, c) }"
    constants = {"w": normal(32, 24), "v": normal(32, 24), "c": np.zeros(24, np.float32)}
    model = graph(f"g {body}", 20, **constants)
    reference, seen = outputs(model, ROWS), statistics(model, [ROWS])
    settings = {
        "precision": "int8",
        "compute": "fp32",
        "activations": False,
        "placement": {"min_channels": 1},
        "weights": {"bias_correction": True},
    }
    apply(model, Recipe.model_validate(settings), seen.amax(), seen)
    for a, b in zip(reference, outputs(model, ROWS), strict=True):
        assert np.abs(channel_means(b - a)).max() < 1e-4
