"""SmoothQuant: the formula, where the factor goes, and what becomes of an outlier channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from aot.calibrator import Calibrator
from aot.config import Recipe
from aot.histogram import edges
from aot.precision import apply
from aot.precision.formats import INT8, Quantized
from aot.precision.reading import constant
from aot.precision.weights.seen import Seen
from aot.precision.weights.smooth import smooth, smoothing
from aot.statistics import Level, Tensor
from tests.precision.graphs import Array, graph, node, ops
from tests.precision.weights.observing import outputs, relative, seen_by, statistics

OPS = ("MatMul", "Gemm")
rng = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


X = [{"x": 4 * normal(2, 5, 32)} for _ in range(3)]
OUTLIER = np.ones(32, np.float32)
OUTLIER[7] = 60.0


def norm_and_two_readers() -> ir.Model:
    return graph(
        """g (float[b, 5, 32] x) => (float[b, 5, 16] y, float[b, 5, 24] z) {
            n = LayerNormalization (x, g, c)  y = MatMul(n, w)  z = MatMul(n, v) }""",
        g=OUTLIER,
        c=normal(32),
        w=normal(32, 16),
        v=normal(32, 24),
    )


def array_of(model: ir.Model, name: str, index: int) -> Array:
    found = constant(node(model, name).inputs[index])
    assert found is not None
    return np.asarray(found)


def test_the_factor_is_that_of_the_paper_up_to_one_number_that_keeps_the_largest_activation() -> None:
    x, w = rng.uniform(0.1, 9, 20), rng.uniform(0.1, 1, 20)
    for alpha in (0.0, 0.3, 0.5, 1.0):
        factor = smoothing(x, w, alpha)
        ratio = factor / (x**alpha / w ** (1 - alpha))
        np.testing.assert_allclose(ratio, ratio[0])
        assert (x / factor).max() == pytest.approx(x.max())
        assert (w * factor).max() <= w.max() * 1.0001


def test_channels_that_carry_nothing_stay_as_they_are() -> None:
    factor = smoothing(np.array([0.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0]), 0.5)
    assert factor[0] == 1.0
    assert factor[1] == 1.0
    np.testing.assert_array_equal(smoothing(np.zeros(3), np.ones(3), 0.5), np.ones(3))


def test_all_readers_share_the_factors_and_the_norm_takes_them_in() -> None:
    model = norm_and_two_readers()
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    amax = seen.statistics["n"].channels.amax  # type: ignore[union-attr]
    weights = [array_of(model, name, 1) for name in ("y", "z")]
    rows = np.maximum(*(np.abs(w).max(axis=1) for w in weights))
    factor = smoothing(amax, rows, 0.5)
    old = [array_of(model, "n", i) for i in (1, 2)]

    work = smooth(model.graph, OPS, 0.5, True, seen)

    assert (work.done, work.left) == (["y", "z"], {})
    assert ops(model) == ["LayerNormalization", "MatMul", "MatMul"]
    for i in (1, 2):
        np.testing.assert_allclose(array_of(model, "n", i), old[i - 1] / factor, rtol=1e-5)
    for name, weight in zip(("y", "z"), weights, strict=True):
        np.testing.assert_allclose(array_of(model, name, 1), weight * factor[:, None], rtol=1e-5)
    for x, reference in zip(X, before, strict=True):
        for a, b in zip(reference, outputs(model, x), strict=True):
            assert relative(a, b) < 1e-5


PRODUCERS: dict[str, tuple[str, dict[str, Any]]] = {
    "matmul and add": ("h = MatMul(x, u)  n = Add(h, c)", {"u": normal(32, 32), "c": normal(32)}),
    "scale": ("n = Mul(x, c)", {"c": normal(32)}),
    "rectifier": ("h = MatMul(x, u)  n = Relu(h)", {"u": normal(32, 32)}),
    "gate": (
        "h = MatMul(x, u)  k = MatMul(x, t)  s = Sigmoid(k)  m = Mul(k, s)  n = Mul(m, h)",
        {"u": normal(32, 32), "t": normal(32, 32)},
    ),
    "norm by hand": (
        "q = Mul(x, x)  r = ReduceMean(q, axes)  e = Sqrt(r)  d = Div(x, e)  n = Mul(c, d)",
        {"c": normal(32), "axes": np.array([-1])},
    ),
    "heads of attention": (
        """q = MatMul(x, t)  q1 = Reshape(q, split)  q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
           v = MatMul(x, u)  v1 = Add(v, c)  v2 = Reshape(v1, split)  v3 = Transpose <perm = [0, 2, 1, 3]> (v2)
           p = MatMul(q2, k)  s = Softmax(p)  o = MatMul(s, v3)
           o1 = Transpose <perm = [0, 2, 1, 3]> (o)  n = Reshape(o1, join)""",
        {
            "u": normal(32, 32),
            "t": normal(32, 32),
            "c": normal(32),
            "k": normal(4, 8, 5),
            "split": np.array([0, 5, 4, 8]),
            "join": np.array([0, 5, 32]),
        },
    ),
    "a part of a merged projection": (
        "h = MatMul(x, u)  m = Add(h, c)  a, n = Split <axis = -1> (m, sizes)  z2 = Exp(a)",
        {"u": normal(32, 48), "c": normal(48), "sizes": np.array([16, 32])},
    ),
}


def made_by(producer: str) -> ir.Model:
    body, weights = PRODUCERS[producer]
    extra = ", float[b, 5, 16] z2" if "z2" in body else ""
    return graph(
        f"g (float[b, 5, 32] x) => (float[b, 5, 16] y{extra}) {{ {body}  y = MatMul(n, w) }}",
        w=normal(32, 16),
        **weights,
    )


@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_function_stays_and_no_node_is_added(producer: str) -> None:
    model = made_by(producer)
    before, seen, count = [outputs(model, x) for x in X], seen_by(model, X), len(ops(model))
    weight = array_of(model, "y", 1)
    work = smooth(model.graph, ("MatMul",), 0.5, True, seen)
    assert "y" in work.done
    assert not np.allclose(array_of(model, "y", 1), weight)
    assert not [n for n in model.graph if "n_smoothing" in (n.name or "")], "the division of n is absorbed"
    assert len(ops(model)) <= count + 1  # x itself, an input of the graph
    for x, reference in zip(X, before, strict=True):
        for a, b in zip(reference, outputs(model, x), strict=True):
            assert relative(a, b) < 1e-5


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("n = Gelu(x)  y = MatMul(n, w)", "Gelu"),
        ("h = Relu(x)  n = LayerNormalization(h, c, c)  y = MatMul(n, w)  z = Add(n, x)", "also read by Add"),
        ("n = Clip(x, low, high)  y = MatMul(n, w)", "Clip"),
        ("h = Relu(x)  n = Add(h, x)  y = MatMul(n, w)", "sum of two"),
    ],
)
def test_what_nothing_absorbs_is_a_mul_in_front_of_the_layers(body: str, says: str) -> None:
    extra = ", float[b, 5, 32] z" if "z =" in body else ""
    weights = {"w": normal(32, 16), "c": normal(32), "low": np.float32(0), "high": np.float32(6)}
    used = {name: np.asarray(array) for name, array in weights.items() if f"{name})" in body or f"{name}," in body}
    model = graph(f"g (float[b, 5, 32] x) => (float[b, 5, 16] y{extra}) {{ {body} }}", opset=20, **used)
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    work = smooth(model.graph, OPS, 0.5, True, seen)
    assert work.done == ["y"]
    made = node(model, "y").inputs[0].producer()  # type: ignore[union-attr]
    assert made is not None
    assert (made.op_type, made.inputs[0].name) == ("Mul", "n")  # type: ignore[union-attr]
    for x, reference in zip(X, before, strict=True):
        for a, b in zip(reference, outputs(model, x), strict=True):
            assert relative(a, b) < 1e-5


def test_what_was_seen_is_what_would_be_seen_now() -> None:
    model = norm_and_two_readers()
    seen = seen_by(model, X)
    smooth(model.graph, OPS, 0.5, True, seen)
    fresh = statistics(model, X)
    for name in ("n", "y", "z"):
        assert seen.amax[name] == pytest.approx(fresh[name].amax, rel=1e-4)
    old, new = seen.statistics["n"].channels, fresh["n"].channels
    assert old is not None
    assert new is not None
    np.testing.assert_allclose(old.amax, new.amax, rtol=1e-5)
    np.testing.assert_allclose(old.mean, new.mean, rtol=1e-4, atol=1e-5 * new.amax.max())
    assert old.products is not None
    assert new.products is not None
    np.testing.assert_allclose(old.products, new.products, rtol=1e-2, atol=1e-3 * new.products.max())
    quantiles = [np.searchsorted(np.cumsum(h.counts), 0.99 * h.counts.sum()) for h in _histograms(seen, fresh)]
    assert abs(int(quantiles[0]) - int(quantiles[1])) <= 32  # a quarter of an octave


def _histograms(*found: Any) -> list[Any]:
    return [getattr(one, "statistics", one)["n"].histogram for one in found]


class Median(Calibrator):
    """The range that half of the values lie in."""

    name = "median"
    needs = Level.HISTOGRAM

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        assert tensor.histogram is not None
        below = np.cumsum(tensor.histogram.counts)
        return float(edges()[np.searchsorted(below, below[-1] / 2)])


def test_the_calibrator_chooses_anew_from_what_was_divided() -> None:
    model = norm_and_two_readers()
    found = statistics(model, X)
    seen = Seen(found, {**found.amax(), "n": Median("int8").amax(found["n"], INT8)}, Median("int8"), INT8)
    smooth(model.graph, OPS, 0.5, True, seen)
    fresh = statistics(model, X)
    assert seen.amax["n"] == pytest.approx(Median("int8").amax(fresh["n"], INT8), rel=0.1)
    assert seen.amax["y"] == found["y"].amax


def error(alpha: float | str | None, precision: str = "int8") -> float:
    model = norm_and_two_readers()
    feeds = {"x": 4 * normal(8, 5, 32)}
    (reference, _), seen = outputs(model, feeds), statistics(model, [*X, feeds])
    settings = {"precision": precision, "placement": {"min_channels": 1}, "weights": {"smooth": alpha}}
    apply(model, Recipe.model_validate(settings), seen.amax(), seen)
    return relative(reference, outputs(model, feeds)[0])


def test_an_outlier_channel_costs_int8_less() -> None:
    plain, smoothed, auto = error(None), error(0.5), error("auto")
    assert plain > 0.03
    assert smoothed < plain / 3
    assert auto < smoothed * 1.3


def test_auto_wants_to_have_seen_enough_to_know_the_largest_values() -> None:
    """What is scaled to its largest value is cut off where the next one is larger."""
    model = norm_and_two_readers()
    work = smooth(model.graph, OPS, "auto", True, seen_by(model, [{"x": 4 * normal(3, 5, 32)}]))
    assert work.done == []
    assert all(reason.startswith("calibration saw 15 values of each channel, too few") for reason in work.left.values())


def test_auto_leaves_alone_what_smoothing_would_not_help() -> None:
    model = graph(
        "g (float[b, 5, 32] x) => (float[b, 5, 16] y) { n = Tanh(x)  y = MatMul(n, w) }",
        w=np.sign(normal(32, 16)),
    )
    feeds = {"x": 9 * np.sign(normal(8, 5, 32))}
    work = smooth(model.graph, OPS, "auto", True, seen_by(model, [feeds]))
    assert work.done == []
    assert "expected error" in work.left["y"]
    assert ops(model) == ["Tanh", "MatMul"]


@pytest.mark.parametrize(("outlier", "products", "moved"), [(3.0, 1, False), (3.0, 0, True), (40.0, 1, True)])
def test_auto_parts_an_activation_from_its_product_for_much_only(outlier: float, products: int, moved: bool) -> None:
    """A Gelu behind a MatMul shares its kernel; what a threefold channel is worth without one is not worth a second."""
    scale = np.ones(32, np.float32)
    scale[7] = outlier
    first = "h = MatMul(x, u)" if products else "h = Neg(x)"
    weights = {"w": normal(32, 16)} | ({"u": np.diag(scale)} if products else {})
    text = f"g (float[b, 5, 32] x) => (float[b, 5, 16] y) {{ {first}  n = Gelu(h)  y = MatMul(n, w) }}"
    model = graph(text, 20, **weights)
    feeds = {"x": np.abs(4 * normal(8, 5, 32)) * (1 if products else -scale)}
    work = smooth(model.graph, ["MatMul"], "auto", True, seen_by(model, [feeds]))
    assert ("y" in work.done) is moved
    assert (node(model, "y").inputs[0].producer().op_type == "Mul") is moved  # type: ignore[union-attr]
    if not moved:
        assert "a Mul parts it from the product in front" in work.left["y"]
