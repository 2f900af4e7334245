"""GELU takes its tanh form where its result is quantized next, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aot.config import Placement, Recipe, load
from aot.content import names
from aot.precision import apply
from aot.precision.gelu import DIFFERENCE
from tests.precision.graphs import Array, Feeds, graph, node, observe, run

BODY = """g (float[B, 32] x) => (float[B, 16] y) {
    h = MatMul(x, w)  r = Add(h, b)  a = Gelu(r)  y = MatMul(a, v)
}"""
WIDE = "g (float[B, 32] x) => (float[B, 48] a) { h = MatMul(x, w)  r = Add(h, b)  a = Gelu(r) }"
BOTH = """g (float[B, 32] x) => (float[B, 16] y, float[B, 48] z) {
    h = MatMul(x, w)  r = Add(h, b)  a = Gelu(r)  y = MatMul(a, v)  z = Neg(a)
}"""


def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    made = {"w": random.normal(size=(32, 48)), "b": random.normal(size=48), "v": random.normal(size=(48, 16)) / 7}
    return {name: array.astype(np.float32) for name, array in made.items()}


def recipe(precision: str, gelu: str) -> Recipe:
    settings = {"precision": precision, "gelu": gelu, "placement": Placement(min_channels=1)}
    return Recipe.model_validate(settings)


def form(body: str, gelu: str, precision: str = "fp8") -> str:
    """The attribute `approximate` of the GELU after the recipe."""
    used = {name: array for name, array in weights().items() if f" {name})" in body}
    model = graph(body, 20, **used)
    feeds: Feeds = {"x": np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)}
    apply(model, recipe(precision, gelu), observe(model, feeds))
    found = node(model, "a").attributes.get("approximate")
    return "none" if found is None else found.as_string()


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_gelu_in_front_of_a_quantized_layer_takes_the_tanh_form(precision: str) -> None:
    assert form(BODY, "tanh", precision) == "tanh"


def test_without_the_key_it_stays_exact() -> None:
    assert form(BODY, "exact") == "none"


def test_a_gelu_whose_result_leaves_the_graph_or_is_read_wide_stays_exact() -> None:
    assert form(WIDE, "tanh") == "none"
    assert form(BOTH, "tanh") == "none"


def test_the_two_forms_are_as_close_as_is_said() -> None:
    x = np.linspace(-8, 8, 200_001)
    erf = np.array([math.erf(value / math.sqrt(2)) for value in x])
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    assert 4.7e-4 < float(np.abs(x * (erf - tanh) / 2).max()) < DIFFERENCE


def test_the_result_is_no_further_from_the_original_than_with_the_exact_form() -> None:
    model = graph(BODY, 20, **weights())
    feeds: Feeds = {"x": np.random.default_rng(1).normal(size=(256, 32)).astype(np.float32)}
    amax, wanted = observe(model, feeds), run(model, feeds)["y"]
    errors = {}
    for gelu in ("exact", "tanh"):
        copy = model.clone()
        apply(copy, recipe("fp8", gelu), amax)
        errors[gelu] = float(np.linalg.norm(run(copy, feeds)["y"] - wanted) / np.linalg.norm(wanted))
    assert errors["tanh"] == pytest.approx(errors["exact"], rel=0.02)


def test_the_built_in_recipes_of_int8_and_fp8_ask_for_it() -> None:
    recipes = names("calib")
    assert [load(Recipe, recipes[name]).gelu for name in ("int8", "fp8", "fp16")] == ["tanh", "tanh", "exact"]
