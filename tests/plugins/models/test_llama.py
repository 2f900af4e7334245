"""A whole block of a decoder made of plugins' ops, exported, against the same in plain torch and FP64."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import onnxruntime
import torch

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from tests.plugins.models.llama import HEAD, HIDDEN, Block, angles


def test_a_decoder_block_is_what_plain_torch_computes_at_any_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch, length = Dim("batch", min=1, opt=2, max=4), Dim("length", min=1, opt=8, max=64)
    hidden = Input([batch, length, HIDDEN])
    inputs = {"hidden": hidden, "residual": hidden, "mask": Input([batch, length])}
    inputs |= {"cos": Input([length, HEAD]), "sin": Input([length, HEAD])}
    block = Block().eval()
    write_module(block, ModelSpec("block", inputs), tmp_path)
    used = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node if node.domain == "aot"]
    assert sorted(used) == ["add_rms_norm", "add_rms_norm", "attention", "rotary", "rotary", "swiglu"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    exact = copy.deepcopy(block).double()
    for sizes in ((1, 1), (2, 7), (3, 33)):
        given = [torch.randn(*sizes, HIDDEN), torch.randn(*sizes, HIDDEN), torch.zeros(sizes), *angles(sizes[1])]
        given[2][:, 1:3] = -10000.0  # what lies behind the first position is padding
        with torch.no_grad():
            right = exact.plain(*(one.double() for one in given))
            eager = block(*given)
        got = session.run(None, {name: one.numpy() for name, one in zip(inputs, given, strict=True)})
        for made in (eager, map(torch.from_numpy, got)):
            for one, other in zip(made, right, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
