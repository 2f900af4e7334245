"""Q/DQ beside values that are already called what they would be."""

from __future__ import annotations

import numpy as np

from aot.precision import apply
from tests.precision.graphs import Feeds, graph, observe, recipe, run


def test_a_model_may_call_its_own_constants_like_scales_and_its_values_like_quantized_ones() -> None:
    random = np.random.default_rng(0)
    weights: Feeds = {
        "w": random.normal(size=(32, 32)).astype(np.float32) / 6,
        "x_scale": np.array(0.5, np.float32),
        "w_scale_axis1": np.array(2.0, np.float32),
    }
    body = """main (float[4, 32] x) => (float[4, 32] y) {
        x_quantized = Mul(x, x_scale)
        product = MatMul(x, w)
        raised = Mul(product, w_scale_axis1)
        y = Add(raised, x_quantized)
    }"""
    model = graph(body, 20, **weights)
    feeds: Feeds = {"x": random.normal(size=(4, 32)).astype(np.float32)}
    amax = observe(model, feeds)
    apply(model, recipe("int8"), amax)
    got = run(model, feeds)["y"]
    wanted = feeds["x"] @ weights["w"] * 2 + feeds["x"] / 2
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.02
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(names) == len(set(names))
