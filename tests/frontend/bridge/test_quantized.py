"""Casts to and from INT8 and FP8, as a model writes them, are QuantizeLinear and DequantizeLinear in the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module

T = torch.Tensor


def int8(x: T) -> T:
    return torch.round(x / 0.05).clamp(-128, 127).to(torch.int8).to(torch.float32) * 0.05


def fp8(x: T) -> T:
    return 0.05 * (x / 0.05).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32)


def alone(x: T) -> T:
    return x.to(torch.float8_e4m3fn).to(torch.float32) + 1


def used_twice(x: T) -> T:
    divided = x / 0.05
    wide = divided.clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32)
    return wide * 0.05 + wide + divided


def whole_numbers(x: T) -> T:
    return x.clamp(-128, 127).to(torch.int8).to(torch.float32) + 1


@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (int8, ["QuantizeLinear", "DequantizeLinear"]),
        (fp8, ["QuantizeLinear", "DequantizeLinear"]),
        (alone, ["QuantizeLinear", "DequantizeLinear", "Add"]),
        (used_twice, ["Div", "QuantizeLinear", "DequantizeLinear", "Mul", "Add", "Add"]),
        (whole_numbers, ["Clip", "Cast", "Cast", "Add"]),  # cut off, not rounded
    ],
)
def test_a_cast_with_its_scale_is_one_node_and_gives_the_same(
    function: Callable[[T], T], ops: list[str], tmp_path: Path
) -> None:
    class Model(nn.Module):
        def forward(self, x: T) -> T:
            return function(x)

    write_module(Model(), ModelSpec("m", {"x": Input([Dim("batch", min=1, opt=3, max=9), 64])}), tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ops
    x = 8 * np.random.default_rng(0).standard_normal((5, 64), np.float32)
    x[0, :3] = [1e4, -1e4, 0.125]
    if function is alone:
        x = x.clip(-400, 400)  # beyond, torch gives NaN, and ONNX the limit
    (got,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(got, function(torch.from_numpy(x)), rtol=1e-6, atol=1e-6)
