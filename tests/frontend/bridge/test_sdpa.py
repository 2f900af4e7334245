"""Attention as exported: the form that TensorRT fuses, the numbers of eager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.eager import Eager
from aot.frontend.export import write_module

BATCH = Dim("batch", min=1, opt=3, max=8)
SEQ = Dim("seq", min=2, opt=7, max=32)


class Attention(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.kind == "causal":
            return scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        if self.kind == "none":
            return scaled_dot_product_attention(q, k, v)
        if self.kind == "grouped":
            return scaled_dot_product_attention(
                q, k[:, :2], v[:, :2], attn_mask=mask[:, None, None, :], enable_gqa=True
            )
        wide = mask[:, None, None, :]
        if self.kind == "additive":
            wide = torch.where(wide, 0.0, -1e9)
        if self.kind == "left":
            length = q.shape[2]
            wide = wide & torch.ones(length, length, dtype=torch.bool).tril()
        return scaled_dot_product_attention(q, k, v, attn_mask=wide)


DECLARED = ModelSpec(
    "attention",
    {**{name: Input([BATCH, 4, SEQ, 8]) for name in "qkv"}, "mask": Input([BATCH, SEQ], "bool")},
    padding="mask",
)


def inputs(batch: int, seq: int, left: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(seq)
    made: dict[str, np.ndarray[Any, Any]] = {n: random.standard_normal((batch, 4, seq, 8), np.float32) for n in "qkv"}
    mask = np.arange(seq) < np.linspace(seq, 1, batch).round()[:, None]
    made["mask"] = mask[:, ::-1].copy() if left else mask
    return made


@pytest.mark.parametrize("kind", ["none", "padding", "additive", "causal", "grouped", "left"])
def test_attention_matches_eager_at_every_size(tmp_path: Path, kind: str) -> None:
    module = Attention(kind)
    write_module(module, DECLARED, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = {value.name for value in session.get_inputs()}
    for batch, seq in ((1, 2), (3, 7), (5, 31)):
        case = inputs(batch, seq, left=kind == "left")
        (got,) = session.run(None, {n: v for n, v in case.items() if n in names})
        want = Eager(module, DECLARED)(case)["output_0"]
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "extra"), [("none", {}), ("padding", {"Where": 1, "Add": 1, "Unsqueeze": 2})])
def test_the_form_is_the_one_that_is_fused(tmp_path: Path, kind: str, extra: dict[str, int]) -> None:
    write_module(Attention(kind), DECLARED, tmp_path)
    model = onnx.load(tmp_path / "model.onnx")
    found = Counter(node.op_type for node in model.graph.node)
    expected = {"Mul": 1, "Transpose": 1, "MatMul": 2, "Softmax": 1, **extra}
    assert {op: n for op, n in found.items() if op != "Unsqueeze"} == {
        op: n for op, n in expected.items() if op != "Unsqueeze"
    }
    assert found["Unsqueeze"] <= extra.get("Unsqueeze", 0)


def test_a_masked_score_vanishes_and_two_masks_stay_finite_in_every_dtype() -> None:
    from ml_dtypes import bfloat16

    from aot.frontend.bridge.sdpa import MASKED

    for dtype in (np.float16, bfloat16, np.float32):
        masked = np.asarray(MASKED, dtype)
        assert np.isfinite((masked + masked).astype(np.float32))
        assert np.exp(masked.astype(np.float32) + 1000.0) == 0
