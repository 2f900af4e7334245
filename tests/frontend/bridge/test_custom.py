"""Custom operators: a body of torch functions goes into the graph; any other is named, with its line."""

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
from aot.errors import ExportError
from aot.frontend.export import write_module

DECLARED = ModelSpec("custom", {"x": Input([Dim("batch", min=1, opt=3, max=8), 6])})


@torch.library.custom_op("bridge_test::gate", mutates_args=())
def gate(x: torch.Tensor, slope: float) -> torch.Tensor:
    return x * torch.sigmoid(slope * x)


@gate.register_fake
def _(x: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("bridge_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(gate(gate(x, 1.5), 0.5), 1.0)


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("bridge_test::foreign", mutates_args=())
def foreign(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sort(x.numpy()))


@foreign.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self, op: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(x) + 1


def test_an_op_made_of_torch_functions_is_expanded_and_those_within_it(tmp_path: Path) -> None:
    write_module(Net(twice), DECLARED, tmp_path)
    assert {node.domain for node in onnx.load(tmp_path / "model.onnx").graph.node} == {""}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 6), np.float32)
        (got,) = session.run(None, {"x": x})
        np.testing.assert_allclose(got, Net(twice)(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_an_op_that_cannot_be_traced_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        write_module(Net(foreign), DECLARED, tmp_path)
    said = str(caught.value)
    assert "no ONNX translation of bridge_test.foreign" in said
    assert f"{Path(__file__).name}:" in said
    assert "plugin" in said


def test_an_operator_on_functions_is_refused_by_name(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = x.reshape(-1, 1, 1, 6).expand(-1, 1, 16, 6)
            return flex_attention(heads, heads, heads)

    with pytest.raises(ExportError, match="no ONNX translation of flex_attention"):
        write_module(Flex(), DECLARED, tmp_path)
