"""Norms and SwiGLU that give INT8 or FP8: what QuantizeLinear gives of the exact result, on onnxruntime too."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module

WIDTH = 16
SCALE = 0.02
"""Small enough that the largest values saturate in INT8."""
FORMATS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight


def layer(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def swiglu(x: np.ndarray) -> np.ndarray:
    gate, up = np.split(x, 2, -1)
    return gate / (1 + np.exp(-gate)) * up


def rounded(x: np.ndarray, format: str) -> np.ndarray:
    """What QuantizeLinear and DequantizeLinear leave of x."""
    if format == "int8":
        return np.clip(np.rint(x / SCALE), -128, 127) * SCALE
    return np.clip(x / SCALE, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * SCALE


class Quantized(nn.Module):
    """Each op, followed by the dequantization that a model writes."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.ops = [getattr(aot.ops, f"{name}_{format}") for name in ("add_rms_norm", "add_layer_norm", "swiglu")]
        self.dtype = FORMATS[format]
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, WIDTH))
        self.bias = nn.Parameter(torch.linspace(-1.0, 1.0, WIDTH))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rms_norm, layer_norm, gated = self.ops
        y, total = rms_norm(x, r, self.weight, SCALE)
        z, _ = layer_norm(x, r, self.weight, self.bias, SCALE)
        made = (y, z, gated(torch.cat((x, r), -1), SCALE))
        assert {one.dtype for one in made} == {self.dtype}
        return (*(one.to(torch.float32) * SCALE for one in made), total)


@pytest.mark.parametrize("format", FORMATS)
def test_they_give_what_quantize_linear_gives(format: str, tmp_path: Path) -> None:
    batch, length = Dim("batch", min=1, opt=2, max=8), Dim("length", min=1, opt=3, max=8)
    module = Quantized(format)
    write_module(
        module, ModelSpec("q", {"x": Input([batch, length, WIDTH]), "r": Input([batch, length, WIDTH])}), tmp_path
    )
    model = onnx.load(tmp_path / "model.onnx")
    assert {node.op_type for node in model.graph.node if node.domain == "aot"} == {
        f"add_rms_norm_{format}",
        f"add_layer_norm_{format}",
        f"swiglu_{format}",
    }
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    weight, bias = np.linspace(0.5, 2.0, WIDTH), np.linspace(-1.0, 1.0, WIDTH)
    for lead in ((1, 1), (3, 5)):
        random = np.random.default_rng(lead[0])
        x, r = (2 * random.standard_normal((*lead, WIDTH), np.float32) for _ in range(2))
        with torch.no_grad():
            eager = module(torch.from_numpy(x), torch.from_numpy(r))
        total = x.astype(np.float64) + r
        gated = swiglu(np.concatenate((x, r), -1).astype(np.float64))
        exact = (rms(total, weight), layer(total, weight, bias), gated)
        for got in (eager, session.run(None, {"x": x, "r": r})):
            np.testing.assert_allclose(got[3], total, rtol=1e-6, atol=1e-6)
            for one, right in zip(got, exact, strict=False):
                off = np.abs(np.asarray(one, np.float64) - rounded(right, format))
                # What lies in the middle of two steps may fall to either side.
                assert (off > 1e-5).mean() < 0.02
                assert (off <= np.maximum(np.abs(right) / 8, SCALE) * 1.01).all()
