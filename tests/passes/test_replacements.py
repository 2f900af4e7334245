"""Ops that TensorRT lacks, written with others: against torch and numpy, and what is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch

from aot import passes
from aot.graph import infer_shapes
from tests.passes.test_limits import HEAD, ops, parse, refused, run_by_onnxruntime


@pytest.mark.parametrize(
    ("image", "kernel", "stride", "padding", "dilation"),
    [((6, 8), (2, 2), (2, 2), (0, 0), (1, 1)), ((7, 7), (3, 3), (2, 2), (1, 1), (1, 1)), ((9, 8), (3, 2), 1, 0, 2)],
    ids=["apart", "overlapping", "dilated"],
)
def test_patches_fold_as_torch_folds_them(image: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
    options = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    unfolded = torch.nn.functional.unfold(torch.randn(2, 5, *image), **options)
    expected = torch.nn.functional.fold(unfolded, image, **options).numpy()
    steps, edges, gaps = (np.broadcast_to(value, 2).tolist() for value in (stride, padding, dilation))
    model = parse(
        f"""(float[B,{unfolded.shape[1]},{unfolded.shape[2]}] x) => (float[B,5,{image[0]},{image[1]}] y)
        <int64[2] image = {{{image[0]}, {image[1]}}}, int64[2] block = {{{kernel[0]}, {kernel[1]}}}>
        {{ y = Col2Im<strides = {steps}, pads = {edges + edges}, dilations = {gaps}>(x, image, block) }}"""
    )
    assert passes.col2im_transposed(model) == 1
    np.testing.assert_allclose(run_by_onnxruntime(model, x=unfolded.numpy()), expected, rtol=1e-5, atol=1e-6)


def test_an_image_of_computed_size_is_not_folded() -> None:
    text = """(float[B,4,S] x, int64[2] image) => (float[B,1,H,W] y) <int64[2] block = {2, 2}>
    { y = Col2Im(x, image, block) }"""
    assert refused(passes.col2im_transposed, text) == ["the sizes of the image and of its patches are not fixed"]


@pytest.mark.parametrize("length", ["S", "7"])
def test_a_transform_there_and_back_agrees_with_numpy(length: str) -> None:
    there = parse(
        f"(float[B,{length},3,2] x) => (float[B,{length},3,2] y) <int64 axis = {{1}}> {{ y = DFT(x, , axis) }}"
    )
    back = parse(
        f"""(float[B,{length},3,2] x) => (float[B,{length},3,2] y) <int64 axis = {{1}}>
        {{ y = DFT<inverse = 1>(x, , axis) }}"""
    )
    assert passes.dft_products(there) == passes.dft_products(back) == 1
    assert ops(there)["DFT"] == ops(back)["DFT"] == 0
    x = np.random.default_rng(0).normal(size=(2, 7, 3, 2)).astype(np.float32)
    expected = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    y = run_by_onnxruntime(there, x=x)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run_by_onnxruntime(back, x=y), x, rtol=1e-4, atol=1e-5)


def test_a_transform_that_pads_its_input_stays() -> None:
    text = """(float[B,6,1] x) => (float[B,8,2] y) <int64 longer = {8}, int64 axis = {1}>
    { y = DFT(x, longer, axis) }"""
    assert len(refused(passes.dft_products, text)) == 1


def test_a_window_that_does_not_hold_everything_stays_a_pool() -> None:
    text = "(float[B,3,8,8] x) => (float[B,3,1,1] y) { y = AveragePool<kernel_shape = [8, 7], strides = [8, 7]>(x) }"
    assert len(refused(passes.pool_everything, text)) == 1


def test_a_window_beyond_the_input_is_the_mean_of_what_there_is() -> None:
    model = parse(
        """(float[B,3,2,3] x) => (float[B,3,1,1] y)
        { y = AveragePool<kernel_shape = [320, 320], strides = [320, 320], ceil_mode = 1>(x) }"""
    )
    assert passes.pool_everything(model) == 1
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 3)).astype(np.float32)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x), x.mean((2, 3), keepdims=True), rtol=1e-5)


def test_letters_of_an_equation_without_output_keep_their_order() -> None:
    """Without an arrow the output's axes are in alphabetical order, capitals first: b, then J, would be J, b."""
    proto = onnx.parser.parse_model(
        HEAD + '(float[2,3] x, float[3,4] y) => (float[4,2] z) { z = Einsum<equation = "bi,iJ">(x, y) }'
    )
    model = ir.from_proto(proto)
    infer_shapes(model)
    assert passes.einsum_letters(model) == 1
    x, y = np.random.default_rng(0).normal(size=(2, 3)), np.random.default_rng(1).normal(size=(3, 4))
    x, y = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=x, y=y), (x @ y).T, rtol=1e-5)
