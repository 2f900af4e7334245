"""Scales and stored weights, against the arithmetic written out."""

from __future__ import annotations

import numpy as np
import pytest

from aot.precision.formats import FLOATS, FP8, INT8, Float, Quantized
from aot.precision.scales import activation_scale, stored, weight_scales

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
        np.testing.assert_allclose(weight_scales(weight, axis, INT8, FP16), expected, rtol=1e-3)
    assert weight_scales(weight, None, INT8, FP16).shape == ()


@FORMS
def test_a_tiny_channel_gets_a_scale_that_is_not_zero(form: Quantized) -> None:
    weight = np.array([[1.0, -2.0], [1e-9, 5e-10], [0.0, 0.0]], np.float32)
    scales = weight_scales(weight, 0, form, FP16)
    assert (scales.astype(np.float16) > 0).all()
    restored = stored(weight, scales, 0, form).astype(np.float32) * scales[:, None]
    assert np.isfinite(restored).all()
    np.testing.assert_allclose(restored[1:], weight[1:], atol=FP16.step)


def test_int8_values_are_rounded_and_symmetric() -> None:
    weight = np.array([[-1.0, 1.0, 0.5, 0.0]], np.float32)
    values = stored(weight, np.array(1 / 127, np.float32), None, INT8)
    np.testing.assert_array_equal(values, [[-127, 127, 64, 0]])
    assert values.dtype == np.int8
    assert stored(np.float32([-9.0]), np.float32(0.01), None, INT8) == -127  # -128 has no counterpart


def test_fp8_values_hold_no_nan_byte_whatever_the_scale() -> None:
    """A cast of 465 or more to E4M3FN gives NaN in ml_dtypes; TensorRT saturates at 448."""
    weight = (1e4 * rng.standard_normal((64, 64))).astype(np.float32)
    for scale in (1.0, 1e-3, float(weight_scales(weight, None, FP8, FP16))):
        found = stored(weight, np.float32(scale), None, FP8).view(np.uint8)
        assert not np.isin(found, [0x7F, 0xFF]).any()


@FORMS
@COMPUTES
def test_rounding_error_is_bounded_by_the_format(form: Quantized, compute: Float) -> None:
    weight = rng.standard_normal((16, 40)).astype(np.float32)
    scales = weight_scales(weight, 0, form, compute)[:, None]
    error = np.abs(stored(weight, scales[:, 0], 0, form).astype(np.float32) * scales - weight)
    if form is INT8:
        assert (error <= 0.5001 * scales).all()
    else:  # three bits of mantissa, and steps of 2^-9 below the smallest normal value
        assert (error <= np.maximum(np.abs(weight) / 16, 2.0**-10 * scales) * 1.0001).all()
