"""Operators of torchvision: what ONNX has is exported and equal, anything else is refused at its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend.export import write_module

ops = pytest.importorskip("torchvision.ops")
BOXES = Dim("boxes", min=2, opt=5, max=20)
SPEC = ModelSpec("model", {"x": Input([2, 8, 24, 32]), "corners": Input([BOXES, 2, 2], low=0.0, high=31.0)})


class Applied(nn.Module):
    """A function of features [2, 8, 24, 32] and boxes [n, 4] with their images' places, [n, 1]."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, corners: torch.Tensor) -> torch.Tensor:
        boxes = torch.cat([corners.amin(1), corners.amax(1) + 1], 1)
        of = (torch.arange(boxes.shape[0]) % 2).to(boxes.dtype)[:, None]
        y: torch.Tensor = self.function(x, boxes, of)
        return y


def align(sampling: int, aligned: bool) -> Callable[..., Any]:
    return lambda x, boxes, of: ops.roi_align(x, torch.cat([of, boxes], 1), (3, 5), 0.5, sampling, aligned)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        pytest.param(align(2, True), "RoiAlign", id="roi_align"),
        pytest.param(align(3, False), "RoiAlign", id="roi_align, not aligned"),
        pytest.param(align(-1, True), "RoiAlign", id="roi_align, as many samples as fit"),
        pytest.param(
            lambda x, boxes, of: boxes[ops.nms(boxes, boxes[:, 0], 0.3)], "NonMaxSuppression", id="nms of scores"
        ),
        pytest.param(
            lambda x, boxes, of: ops.deform_conv2d(x, x[:, :2].repeat(1, 9, 1, 1), x[:1, :, :3, :3], padding=1),
            "DeformConv",
            id="deform_conv2d",
        ),
    ],
)
def test_what_onnx_has_gives_what_torchvision_gives(function: Callable[..., Any], op: str, tmp_path: Path) -> None:
    module = Applied(function).eval()
    write_module(module, SPEC, tmp_path)
    assert op in {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    random = np.random.default_rng(0)
    for count in (2, 13):
        case = {
            "x": random.standard_normal((2, 8, 24, 32), np.float32),
            "corners": random.uniform(0, 31, (count, 2, 2)).astype(np.float32),
        }
        with torch.no_grad():
            want = module(**{name: torch.from_numpy(values) for name, values in case.items()})
        wanted = {value.name for value in session.get_inputs()}
        (got,) = session.run(None, {name: values for name, values in case.items() if name in wanted})
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["roi_pool", "ps_roi_align"])
def test_what_it_lacks_is_refused_with_the_line_and_a_way_out(name: str, tmp_path: Path) -> None:
    pool = Applied(lambda x, boxes, of: getattr(ops, name)(x, torch.cat([of, boxes], 1), (2, 2), 0.5)).eval()
    with pytest.raises(ExportError, match=rf"no (ONNX )?translation of torchvision\.{name}") as caught:
        write_module(pool, SPEC, tmp_path)
    assert __file__ in str(caught.value.where)
    assert "write that step with other torch functions" in str(caught.value.fix)
