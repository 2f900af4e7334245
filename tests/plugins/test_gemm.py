"""Linear layers with what follows them in one kernel, against plain numpy in FP64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend.export import write_module

Array = np.ndarray
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


def given(*lead: int, depth: int = 6, width: int = 4) -> tuple[Array, Array, Array]:
    """x, weight and bias."""
    random = np.random.default_rng(len(lead))
    return tuple(random.standard_normal(shape, np.float32) for shape in ((*lead, depth), (width, depth), (width,)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_and_its_activation(activation: str) -> None:
    x, weight, bias = given(2, 3)
    got = aot.ops.gemm_epilogue(*map(torch.from_numpy, (x, weight, bias)), activation)
    right = ACTIVATIONS[activation](x.astype(np.float64) @ weight.T + bias)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


def test_an_activation_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(PluginError, match="unknown activation 'swish'") as caught:
        aot.ops.gemm_epilogue(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), "swish")
    assert caught.value.fix == "one of none, relu, silu, gelu, gelu_tanh"


def quantized(x: Array, scale: float, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.from_numpy(np.clip(np.rint(x / scale), -128, 127).astype(np.int8))
    return torch.from_numpy(x / scale).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantized_layer_is_the_layer_of_what_its_integers_stand_for(dtype: torch.dtype) -> None:
    x, weight, bias = given(5, depth=64)
    a, b = quantized(x, 0.02, dtype), quantized(weight, 0.03, dtype)
    right = ACTIVATIONS["gelu"](a.double().numpy() * 0.02 @ (b.double().numpy() * 0.03).T + bias)
    worth = torch.full((4,), 0.02 * 0.03)
    got = aot.ops.gemm_quant(a, b, worth, torch.from_numpy(bias))
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)
    again = aot.ops.gemm_requant(a, b, worth, torch.from_numpy(bias), 0.05)
    assert again.dtype == dtype
    exact = right / 0.05
    most, limit = (127, 0.5) if dtype == torch.int8 else (448, 2**-4 * np.abs(exact).max())  # E4M3: 3 bits follow the 1
    assert np.abs(again.double().numpy() - np.clip(exact, -most, most)).max() <= limit + 1e-4


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, weight, bias = (torch.from_numpy(one) for one in given(1))
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.register_buffer("steps", (weight * 30).round().to(torch.int8))
        self.register_buffer("worth", torch.full((4,), 0.05 / 30))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = aot.ops.gemm_epilogue(x, self.weight, self.bias)
        added = aot.ops.gemm_residual(x, self.weight, self.bias, y)
        q = torch.round(x / 0.05).clamp(-128, 127).to(torch.int8)
        e = (x / 0.05).to(torch.float8_e4m3fn)
        eighth = (self.weight * 30).to(torch.float8_e4m3fn)
        same = aot.ops.gemm_requant(e, eighth, self.worth, self.bias, 0.01, "none").to(torch.float32) * 0.01
        plain = aot.ops.gemm_quant(q, self.steps, self.worth, self.bias, "silu")
        again = aot.ops.gemm_requant(q, self.steps, self.worth, self.bias, 0.05, "relu")
        return y, added, plain, again.to(torch.float32) * 0.05, same


def test_as_functions_in_onnx_they_give_the_same_at_any_size(tmp_path: Path) -> None:
    batch, length = Dim("batch", min=1, opt=2, max=8), Dim("length", min=1, opt=3, max=8)
    module = Layers()
    write_module(module, ModelSpec("layers", {"x": Input([batch, length, 6])}), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    _, weight, bias = given(1)
    for lead in ((1, 1), (3, 5)):
        x, _, _ = given(*lead)
        y, added, plain, again, same = session.run(None, {"x": x})
        product = x.astype(np.float64) @ weight.T + bias
        np.testing.assert_allclose(y, ACTIVATIONS["gelu"](product), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(added, product + ACTIVATIONS["gelu"](product), rtol=1e-5, atol=1e-6)
        steps = np.clip(np.rint(x / np.float32(0.05)), -128, 127).astype(np.float64)
        product = steps @ np.rint(weight * 30).astype(np.float64).T * (0.05 / 30) + bias
        np.testing.assert_allclose(plain, ACTIVATIONS["silu"](product), rtol=1e-5, atol=1e-5)
        assert np.abs(again - np.clip(np.maximum(product, 0), 0, 127 * 0.05)).max() <= 0.0251
        e4m3 = ml_dtypes.float8_e4m3fn
        left, right = (one.astype(e4m3).astype(np.float64) for one in (x / np.float32(0.05), weight * np.float32(30)))
        product = (left @ right.T * (0.05 / 30) + bias) / 0.01
        np.testing.assert_allclose(same, product.clip(-448, 448).astype(e4m3).astype(np.float64) * 0.01, rtol=2**-3)
