"""Scales and stored weights, against the arithmetic written out."""

from __future__ import annotations

import numpy as np
import pytest

from aot.precision.formats import FLOATS, FP8, INT4, INT8, Float, Quantized
from aot.precision.scales import Grain, activation_scale, stored, weight_scales

rng = np.random.default_rng(2)
FP16 = FLOATS["fp16"]
FORMS = pytest.mark.parametrize("form", [INT8, FP8], ids=lambda f: f.name)
COMPUTES = pytest.mark.parametrize("compute", list(FLOATS.values()), ids=lambda c: c.name)


@FORMS
@COMPUTES
@pytest.mark.parametrize("amax", [6.0, 0.37, 1000.0])
def test_a_scale_is_amax_over_the_largest_stored_value_and_exact_in_the_compute_dtype(
    form: Quantized, compute: Float, amax: float
) -> None:
    scale = activation_scale(amax, form, compute)
    assert scale >= np.float32(amax / form.top)
    assert scale == pytest.approx(amax / form.top, rel=2 / compute.exact)
    assert float(np.asarray(scale, compute.numpy)) == scale


@FORMS
def test_the_smallest_activation_scale_has_a_reciprocal_in_fp16(form: Quantized) -> None:
    for amax in (0.0, 1e-9, 1e-4):
        assert np.isfinite(np.float16(1) / np.float16(activation_scale(amax, form, FP16)))


def test_weight_scales_are_one_a_channel_of_the_axis() -> None:
    weight = rng.standard_normal((3, 5, 2, 2)).astype(np.float32)
    for axis in (0, 1):
        expected = np.abs(np.moveaxis(weight, axis, 0)).reshape(weight.shape[axis], -1).max(1) / 127
        np.testing.assert_allclose(weight_scales(weight, Grain(axis), INT8, FP16), expected, rtol=1e-3)
    assert weight_scales(weight, Grain(), INT8, FP16).shape == ()


@FORMS
def test_a_tiny_channel_gets_a_scale_that_is_not_zero(form: Quantized) -> None:
    weight = np.array([[1.0, -2.0], [1e-9, 5e-10], [0.0, 0.0]], np.float32)
    scales = weight_scales(weight, Grain(0), form, FP16)
    assert (scales.astype(np.float16) > 0).all()
    restored = stored(weight, scales, Grain(0), form).astype(np.float32) * scales[:, None]
    assert np.isfinite(restored).all()
    np.testing.assert_allclose(restored[1:], weight[1:], atol=FP16.step)


def test_int8_values_are_rounded_and_symmetric() -> None:
    weight = np.array([[-1.0, 1.0, 0.5, 0.0]], np.float32)
    values = stored(weight, np.array(1 / 127, np.float32), Grain(), INT8)
    np.testing.assert_array_equal(values, [[-127, 127, 64, 0]])
    assert values.dtype == np.int8
    assert (
        stored(np.array([-9.0], np.float32), np.array(0.01, np.float32), Grain(), INT8) == -127
    )  # -128 has no counterpart


def test_fp8_values_hold_no_nan_byte_whatever_the_scale() -> None:
    """A cast of 465 or more to E4M3FN gives NaN in ml_dtypes; TensorRT saturates at 448."""
    weight = (1e4 * rng.standard_normal((64, 64))).astype(np.float32)
    for scale in (1.0, 1e-3, float(weight_scales(weight, Grain(), FP8, FP16))):
        found = stored(weight, np.array(scale, np.float32), Grain(), FP8).view(np.uint8)
        assert not np.isin(found, [0x7F, 0xFF]).any()


@FORMS
@COMPUTES
def test_rounding_error_is_bounded_by_the_format(form: Quantized, compute: Float) -> None:
    weight = rng.standard_normal((16, 40)).astype(np.float32)
    scales = weight_scales(weight, Grain(0), form, compute)[:, None]
    error = np.abs(stored(weight, scales[:, 0], Grain(0), form).astype(np.float32) * scales - weight)
    if form is INT8:
        assert (error <= 0.5001 * scales).all()
    else:  # three bits of mantissa, and steps of 2^-9 below the smallest normal value
        assert (error <= np.maximum(np.abs(weight) / 16, 2.0**-10 * scales) * 1.0001).all()


def test_int4_values_use_all_sixteen_codes_two_to_a_byte() -> None:
    import onnx_ir as ir

    weight = np.array([[-8.0, 7.0, 0.4, -0.6]], np.float32)
    values = stored(weight, np.array(1.0, np.float32), Grain(), INT4)
    np.testing.assert_array_equal(values.astype(np.int8), [[-8, 7, 0, -1]])
    assert stored(np.array([-99.0], np.float32), np.array(1.0, np.float32), Grain(), INT4).astype(np.int8) == -8
    assert ir.tensor(values, dtype=INT4.onnx).nbytes == 2


def test_a_block_has_a_scale_for_each_output_channel_and_each_run_of_input_channels() -> None:
    weight = rng.standard_normal((8, 3)).astype(np.float32)
    weight[0:4, 1] *= 100
    grain = Grain(axis=0, block=4)
    scales = weight_scales(weight, grain, INT8, FP16)
    expected = np.abs(weight).reshape(2, 4, 3).max(axis=1) / 127
    np.testing.assert_allclose(scales, expected, rtol=1e-3)
    restored = stored(weight, scales, grain, INT8).astype(np.float32) * np.repeat(scales, 4, axis=0)
    np.testing.assert_allclose(restored, weight, atol=0.51 * scales.max())
    np.testing.assert_allclose(restored[:, [0, 2]], weight[:, [0, 2]], atol=0.51 * scales[:, [0, 2]].max())


def squared_error(weight: np.ndarray, scales: np.ndarray, grain: Grain, form: Quantized) -> np.ndarray:
    """Of every row, written out."""
    wide = scales.repeat(grain.block or 1, axis=1) if grain.block else scales[:, None]
    found: np.ndarray = np.square(np.clip(np.rint(weight / wide), form.low, form.top) * wide - weight).sum(axis=1)
    return found


@pytest.mark.parametrize("grain", [Grain(0), Grain(1, 16)], ids=["channel", "block"])
def test_an_int4_scale_has_less_error_than_that_of_the_largest_value(grain: Grain) -> None:
    weight = rng.standard_normal((64, 128)).astype(np.float32)
    full = grain.over(np.abs(weight), np.maximum).astype(np.float32) / 7
    found = weight_scales(weight, grain, INT4, FP16)
    before, after = (squared_error(weight, s, grain, INT4) for s in (full, found))
    assert (after <= before * 1.001).all()
    assert after.sum() < 0.8 * before.sum()


def test_int4_scales_mind_the_weights_that_matter() -> None:
    """One weight of 7 that is multiplied with nothing, and many of about 1."""
    weight = rng.uniform(-1, 1, (1, 64)).astype(np.float32)
    weight[0, 0] = 7.0
    importance = np.ones_like(weight)
    importance[0, 0] = 0.0
    plain = weight_scales(weight, Grain(0), INT4, FP16)
    minded = weight_scales(weight, Grain(0), INT4, FP16, importance)
    assert minded[0] < plain[0]


def test_int8_scales_clip_nothing() -> None:
    weight = rng.standard_normal((64, 128)).astype(np.float32)
    scales = weight_scales(weight, Grain(0), INT8, FP16)
    assert (np.abs(weight) <= scales[:, None] * 127).all()


def test_an_fp8_scale_of_few_values_has_less_error_and_clips_nothing() -> None:
    weight = rng.standard_normal((256, 24)).astype(np.float32)
    plain = np.abs(weight).max(axis=1) / 448
    scales = weight_scales(weight, Grain(0), FP8, FLOATS["fp32"])

    def error(scales: np.ndarray) -> float:
        wide = scales[:, None]
        return float(np.square(stored(weight, scales, Grain(0), FP8).astype(np.float32) * wide - weight).sum())

    assert ((plain <= scales * 1.0001) & (scales < 2 * plain)).all()
    assert error(scales) < 0.8 * error(plain.astype(np.float32))
    many = rng.standard_normal((4, 513)).astype(np.float32)
    np.testing.assert_allclose(weight_scales(many, Grain(0), FP8, FLOATS["fp32"]), np.abs(many).max(axis=1) / 448)
