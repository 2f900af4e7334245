"""Cross-layer equalization: balanced ranges, the same function, and less error in a badly scaled chain."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from aot.config import Recipe
from aot.precision import apply
from aot.precision.formats import FP8, INT8, Quantized
from aot.precision.reading import constant
from aot.precision.weights.equalize import equalize
from aot.precision.weights.seen import Seen
from tests.precision.graphs import Array, graph, node, ops
from tests.precision.weights.observing import outputs, relative, seen_by, statistics

rng = np.random.default_rng(12)


def normal(*shape: int) -> Array:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


X = [{"x": normal(2, 16, 9, 9)} for _ in range(2)]
SCALES = np.exp(rng.uniform(-4, 4, 16)).astype(np.float32)


def chain(between: str = "a = Relu(c)", attributes: str = "", second: tuple[int, ...] = (16, 16, 3, 3)) -> ir.Model:
    """Two convolutions, the channels between them scaled badly."""
    v = normal(*second)
    shape = [-1 if i == (0 if second[1] == 1 else 1) else 1 for i in range(4)]
    return graph(
        f"""g (float[b, 16, 9, 9] x) => (float[b, {second[0]}, h, k] y) {{
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b1)  {between}  y = Conv {attributes} (a, v, b2) }}""",
        20,
        w=normal(16, 16, 3, 3) * SCALES[:, None, None, None],
        b1=normal(16) * SCALES,
        v=v / SCALES.reshape(shape),
        b2=normal(second[0]),
        **({"low": np.array(0, np.float32)} if "low" in between else {}),
        **({"six": np.array(6, np.float32)} if "six" in between else {}),
    )


def ranges(model: ir.Model, name: str, axis: int) -> Array:
    array = constant(node(model, name).inputs[1])
    assert array is not None
    found: Array = np.abs(np.moveaxis(np.asarray(array), axis, 0)).reshape(array.shape[axis], -1).max(axis=1)
    return found


def same(model: ir.Model, before: list[list[Array]]) -> None:
    for x, reference in zip(X, before, strict=True):
        assert relative(reference[0], outputs(model, x)[0]) < 1e-5


def test_both_ranges_of_a_channel_become_the_geometric_mean() -> None:
    """s_i = sqrt(r1_i r2_i) / r2_i, up to one number for all channels."""
    model = chain()
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    r1, r2 = ranges(model, "c", 0), ranges(model, "y", 1)
    work = equalize(model.graph, False, seen)
    assert work.done == ["y"]
    mean = np.sqrt(r1 * r2)
    for name, axis in (("c", 0), ("y", 1)):
        ratio = ranges(model, name, axis) / mean
        np.testing.assert_allclose(ratio, ratio[0], rtol=0.02)
    same(model, before)
    assert ops(model) == ["Conv", "Relu", "Conv"]


@pytest.mark.parametrize("between", ["a = Identity(c)", "a = Relu(c)", "a = MaxPool <kernel_shape = [2, 2]> (c)"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_function_stays(between: str, per_channel: bool) -> None:
    model = chain(between)
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    old = ranges(model, "y", 1)
    assert equalize(model.graph, per_channel, seen).done == ["y"]
    assert not np.allclose(ranges(model, "y", 1), old)
    same(model, before)


@pytest.mark.parametrize(
    ("attributes", "second"),
    [("<group = 16>", (16, 1, 3, 3)), ("<group = 4>", (24, 4, 3, 3)), ("<strides = [2, 2]>", (8, 16, 1, 1))],
    ids=["depthwise", "grouped", "strided"],
)
def test_groups_read_their_own_channels(attributes: str, second: tuple[int, ...]) -> None:
    model = chain(attributes=attributes, second=second) if second[1] != 4 else _grouped()
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    assert equalize(model.graph, True, seen).done == ["y"]
    same(model, before)


def _grouped() -> ir.Model:
    return graph(
        """g (float[b, 16, 9, 9] x) => (float[b, 24, h, k] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b1)  a = Relu(c)  y = Conv <group = 4> (a, v) }""",
        w=normal(16, 16, 3, 3) * SCALES[:, None, None, None],
        b1=normal(16) * SCALES,
        v=normal(24, 4, 3, 3),
    )


def test_a_depthwise_convolution_reads_channels_of_one_range() -> None:
    model = chain(attributes="<group = 16>", second=(16, 1, 3, 3))
    equalize(model.graph, True, seen_by(model, X))
    channels = statistics(model, X)["a"].channels
    assert channels is not None
    np.testing.assert_allclose(channels.amax, channels.amax[0], rtol=1e-4)


def test_a_clip_to_six_ends_the_chain() -> None:
    """min(x, 6) / s is not min(x / s, 6)."""
    model = chain("a = Clip(c, low, six)")
    old = ranges(model, "y", 1)
    work = equalize(model.graph, True, seen_by(model, X))
    assert work.done == []
    assert "Clip" in work.left["y"]
    np.testing.assert_array_equal(ranges(model, "y", 1), old)


def test_a_clip_at_zero_alone_is_a_relu() -> None:
    model = chain("a = Clip(c, low)")
    before, seen = [outputs(model, x) for x in X], seen_by(model, X)
    assert equalize(model.graph, True, seen).done == ["y"]
    same(model, before)


def test_a_residual_add_ends_the_chain() -> None:
    model = chain("a = Add(c, x)")
    work = equalize(model.graph, True, seen_by(model, X))
    assert "sum of two computed tensors" in work.left["y"]


@pytest.mark.parametrize("per_channel", [True, False], ids=["a scale a channel", "one scale"])
def test_a_badly_scaled_chain_costs_int8_less(per_channel: bool) -> None:
    def error(equalizes: bool) -> float:
        model = chain()
        reference, seen = outputs(model, X[0])[0], statistics(model, X)
        settings = {
            "precision": "int8",
            "per_channel": per_channel,
            "placement": {"min_channels": 1},
            "weights": {"equalize": equalizes},
        }
        outcome = apply(model, Recipe.model_validate(settings), seen.amax(), seen)
        assert outcome.ops == {"Conv": 2}
        return relative(reference, outputs(model, X[0])[0])

    plain, better = error(False), error(True)
    assert plain > 0.05
    assert better < plain / 3


SWISH = "a = HardSwish(c)"


def divided(model: ir.Model, form: Quantized = INT8) -> list[str]:
    """The ops after equalization."""
    seen = seen_by(model, X)
    equalize(model.graph, True, Seen(seen.statistics, seen.amax, None, form))
    return ops(model)


@pytest.mark.parametrize(
    ("attributes", "second"), [("", (16, 16, 3, 3)), ("<group = 16>", (16, 1, 3, 3))], ids=["dense", "depthwise"]
)
def test_behind_an_activation_that_does_not_commute_a_mul_divides(attributes: str, second: tuple[int, ...]) -> None:
    model = chain(SWISH, attributes, second)
    before = [outputs(model, x) for x in X]
    assert divided(model) == ["Conv", "HardSwish", "Mul", "Conv"]
    same(model, before)
    array = constant(node(model, "a_smoothing").inputs[1])
    assert array is not None
    assert array.shape == (16, 1, 1)


def test_such_a_chain_costs_int8_less() -> None:
    error = {}
    for equal in (False, True):
        model = chain(SWISH)
        wanted, seen = outputs(model, X[0])[0], statistics(model, X)
        settings = {"precision": "int8", "compute": "fp32", "placement": {"min_channels": 1}}
        apply(model, Recipe.model_validate({**settings, "weights": {"equalize": equal}}), seen.amax(), seen)
        error[equal] = relative(wanted, outputs(model, X[0])[0])
    assert error[True] < 0.5 * error[False]


@pytest.mark.parametrize(
    ("between", "form"),
    [
        (SWISH, FP8),  # its steps follow the values
        ("a = Clip(c, low, six)", INT8),  # the convolution's kernel computes it
        ("h = HardSwish(c)  a = Add(h, c)", INT8),  # a skip connection
    ],
)
def test_no_mul_parts_what_kernels_join_nor_helps_fp8(between: str, form: Quantized) -> None:
    model = chain(between)
    before = ops(model)
    assert divided(model, form) == before


def test_no_mul_where_channels_are_alike() -> None:
    model = chain(SWISH)
    for name, axis in (("c", 0), ("y", 1)):
        weight = node(model, name).inputs[1]
        assert weight is not None
        size = np.abs(weight.const_value.numpy()).max(axis=tuple(i for i in range(4) if i != axis), keepdims=True)
        weight.const_value = ir.tensor(weight.const_value.numpy() / size)
    bias = node(model, "c").inputs[2]
    assert bias is not None
    bias.const_value = ir.tensor(np.zeros(16, np.float32))
    assert divided(model) == ["Conv", "HardSwish", "Conv"]
