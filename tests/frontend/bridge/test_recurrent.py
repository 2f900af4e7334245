"""Recurrent layers: any length, any batch, every form of them, as eager gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module

BATCH, TIME = Dim("batch", min=1, opt=3, max=8), Dim("time", min=1, opt=7, max=64)
FORMS: list[tuple[str, dict[str, Any], bool]] = [
    ("LSTM", {"batch_first": True, "bidirectional": True, "num_layers": 2}, False),
    ("LSTM", {"bias": False, "num_layers": 2}, True),
    ("LSTM", {"proj_size": 3, "bidirectional": True}, True),
    ("GRU", {"bidirectional": True, "num_layers": 2}, True),
    ("GRU", {"bias": False, "batch_first": True}, False),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}, True),
    ("RNN", {}, False),
]


class Net(nn.Module):
    def __init__(self, kind: str, form: dict[str, Any]) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(6, 5, **form)

    def forward(self, x: torch.Tensor, h: torch.Tensor | None = None, c: torch.Tensor | None = None) -> Any:
        return self.layer(x, h if c is None else (h, c))


@pytest.mark.parametrize(("kind", "form", "given"), FORMS)
def test_any_length_and_batch(kind: str, form: dict[str, Any], given: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Net(kind, form).eval()
    deep = (2 if form.get("bidirectional") else 1) * form.get("num_layers", 1)
    first = form.get("batch_first", False)
    inputs = {"x": Input([BATCH, TIME, 6] if first else [TIME, BATCH, 6])}
    if given:
        inputs["h"] = Input([deep, BATCH, form.get("proj_size", 5)])
        if kind == "LSTM":
            inputs["c"] = Input([deep, BATCH, 5])
    write_module(module, ModelSpec("model", inputs), tmp_path)
    graph = onnx.load(tmp_path / "model.onnx").graph
    layers = [node for node in graph.node if node.op_type == kind]
    weights = {value.name for value in graph.initializer}
    assert len(layers) == form.get("num_layers", 1)
    assert all(name in weights for node in layers for name in node.input[1:4] if name)

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for sizes in ({"batch": 1, "time": 1}, {"batch": 5, "time": 20}):
        case = {
            name: torch.randn([sizes[d.name] if isinstance(d, Dim) else d for d in declared.shape])
            for name, declared in inputs.items()
        }
        with torch.no_grad():
            y, last = module(**case)
        want = [y, *(last if kind == "LSTM" else [last])]
        got = session.run(None, {name: value.numpy() for name, value in case.items()})
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other.numpy(), atol=1e-6)
