"""Attention as kernels inside engines, on this GPU, beside the same model with its attention decomposed.

Where the machine that runs this has no torch.export of the model, `AOT_PREPARED` takes its place: a folder that holds
attention-fp16.aot, prepared from MODEL with `--until graph --target` and this GPU and `--plugin attention`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import backend
from tests.e2e.harness import Aot

MODEL = """
import aot, torch
from torch.nn.functional import scaled_dot_product_attention

batch = aot.Dim("batch", min=1, opt=4, max=8)
seq = aot.Dim("seq", min=1, opt=64, max=200)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(128, 128) for _ in range(4))
        self.norm = torch.nn.LayerNorm(128)

    def forward(self, x, mask, causal):
        q, k, v = (one(x).unflatten(-1, (2, 64)).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = {"is_causal": True} if causal else {"attn_mask": mask[:, None, None, :]}
        y = scaled_dot_product_attention(q, k, v, **seen)
        return self.norm(x + self.out(y.transpose(1, 2).flatten(2)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.three = Layer(), Layer(), Layer()

    def forward(self, x, mask):
        x = self.two(self.one(x, mask, False), mask, False)
        return x, self.three(x, mask, True)


@aot.model(
    inputs={"x": aot.Input([batch, seq, 128]), "mask": aot.Input([batch, seq], "bool")},
    outputs=["y", "z"],
    padding="mask",
)
def attention():
    return Net().eval()
"""
SIZES = ((1, 1), (4, 64), (8, 199))
CLOSE = 1e-2
"""Of an output's largest magnitude: roundings to FP16 in another order."""


@pytest.fixture(scope="module")
def built(aot: Aot) -> tuple[Aot, dict[str, Path]]:
    """(how to run aot, artifacts with an engine for this GPU: with kernels, and without)."""
    if backend.get("tensorrt").launches(backend.get("tensorrt").version()) == "python":
        pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings, which launches kernels, is not installed")
    found = Path(os.environ.get("AOT_PREPARED") or "nowhere") / "attention-fp16.aot"
    made = {}
    for name, how in (("kernels", ("--plugin", "attention")), ("decomposed", ("--no-plugins",))):
        made[name] = aot.folder / f"attention-{name}.aot"
        if found.is_dir():
            if not (aot.folder / found.name).exists():
                shutil.copytree(found, aot.folder / found.name)
            outcome = aot("build", found.name, *how, "-o", made[name].name, "--json")
        else:
            pytest.importorskip("triton", reason="triton, which compiles kernels, is not installed")
            (aot.folder / "model.py").write_text(MODEL)
            asked = ("--precision", "fp16", "--backend", "tensorrt", *how, "-o", made[name].name, "--json")
            outcome = aot("build", "model.py", *asked)
        assert outcome.code == 0, outcome.err
        assert outcome.json["verification"]["engine"]["ran"] is True
    return aot, made


def facts(artifact: Path) -> dict[str, Any]:
    return dict(json.loads((artifact / "manifest.json").read_text())["engines"][0]["engine"]["facts"])


def test_every_attention_is_a_kernel_where_it_is_asked_for(built: tuple[Aot, dict[str, Path]]) -> None:
    _, artifacts = built
    found = facts(artifacts["kernels"])
    assert found["attention_kernels"] == 3
    assert {one["plugin"] for one in found["kernels"]} == {"aot::attention"}
    assert "kernels" not in facts(artifacts["decomposed"]) or facts(artifacts["decomposed"])["kernels"] == []


@pytest.mark.parametrize("size", SIZES)
def test_both_engines_compute_the_same(built: tuple[Aot, dict[str, Path]], size: tuple[int, int]) -> None:
    """Sequences of several lengths, of one key at the least."""
    aot, artifacts = built
    batch, seq = size
    x = np.random.default_rng(batch + seq).standard_normal((*size, 128)).astype(np.float32)
    mask = np.arange(seq) < np.linspace(seq, 1, batch).round()[:, None]
    np.savez(aot.folder / "x.npz", x=x, mask=mask)
    got = {}
    for name, artifact in artifacts.items():
        done = aot("run", artifact.name, "--inputs", "x.npz", "-o", f"{name}.npz")
        assert done.code == 0, done.err
        got[name] = np.load(aot.folder / f"{name}.npz")
    for name in ("y", "z"):
        expected = got["decomposed"][name]
        assert np.abs(expected).max() > 0.1
        atol = CLOSE * float(np.abs(expected).max())
        np.testing.assert_allclose(got["kernels"][name], expected, rtol=0, atol=atol)
