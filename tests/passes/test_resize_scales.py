"""Sizes computed from sizes: the same numbers from scales, by onnxruntime, and where they stay."""

from __future__ import annotations

import numpy as np
import pytest

from aot.passes.resize_scales import resize_scales
from tests.passes.test_limits import ops, parse, refused, run_by_onnxruntime

MODES = [
    'mode = "linear", coordinate_transformation_mode = "half_pixel"',
    'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
    'mode = "linear", coordinate_transformation_mode = "align_corners"',
    'mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel"',
]


@pytest.mark.parametrize("mode", MODES)
def test_a_dynamic_image_is_doubled_by_scales(mode: str) -> None:
    model = parse(f"""(float[B,2,H,W] x) => (float[B,2,P,Q] y) <int64 two = {{2}}>
    {{ c = Shape<start = 0, end = 2>(x)  s = Shape<start = 2, end = 4>(x)  d = Mul(s, two)  t = Concat<axis = 0>(c, d)
      z = Resize<{mode}>(x, , , t)  y = Relu(z) }}""")
    x = np.random.default_rng(0).normal(size=(2, 2, 5, 7)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert resize_scales(model) == 1
    assert ops(model) == {"Resize": 1, "Relu": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("was", "now"), [(16, 32), (7, 17), (9, 3), (13, 29)])
def test_a_dynamic_batch_of_images_of_a_known_size(was: int, now: int) -> None:
    model = parse(f"""(float[B,2,{was},{was}] x) => (float[B,2,{now},{now}] y) <int64[2] d = {{{now}, {now}}}>
    {{ c = Shape<start = 0, end = 2>(x)  t = Concat<axis = 0>(c, d)  y = Resize<{MODES[0]}>(x, , , t) }}""")
    x = np.random.default_rng(0).normal(size=(2, 2, was, was)).astype(np.float32)
    expected = run_by_onnxruntime(model, x=x)
    assert resize_scales(model) == 1
    assert ops(model) == {"Resize": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), expected, rtol=1e-5, atol=1e-5)


def test_sizes_of_another_tensor_stay() -> None:
    text = """(float[B,2,H,W] x, float[B,2,P,Q] like) => (float[B,2,P,Q] y)
    { t = Shape(like)  y = Resize<mode = "linear">(x, , , t) }"""
    assert any("times constants" in reason for reason in refused(resize_scales, text))
