"""Attention of a decoder as kernels in an engine, on this GPU: heads of keys and values for groups of queries, rotary
embedding before the scores, causal.

As in test_plugins.py, `AOT_PREPARED` may be a folder with what was prepared elsewhere: grouped-fp16.aot, from MODEL
with `--precision fp16 --until graph --plugin attention --target` and this GPU.
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

batch = aot.Dim("batch", min=1, opt=2, max=4)
seq = aot.Dim("seq", min=1, opt=64, max=200)


def turned(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Grouped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.out = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
        self.k, self.v = torch.nn.Linear(256, 128), torch.nn.Linear(256, 128)
        angle = (torch.arange(200.0)[:, None] / 10000 ** (torch.arange(32) / 32)[None]).repeat(1, 2)
        self.register_buffer("cos", torch.cos(angle))
        self.register_buffer("sin", torch.sin(angle))

    def forward(self, x):
        length = x.shape[1]
        q, k, v = (one(x).unflatten(-1, (-1, 64)).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = (turned(one, self.cos[:length], self.sin[:length]) for one in (q, k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


@aot.model(inputs={"x": aot.Input([batch, seq, 256])}, outputs=["y"])
def grouped():
    return Grouped().eval()
"""
SIZES = ((1, 1), (2, 64), (4, 199))


@pytest.fixture(scope="module")
def built(aot: Aot) -> tuple[Aot, Path]:
    """(how to run aot, an artifact with an engine for this GPU)."""
    if backend.get("tensorrt").launches(backend.get("tensorrt").version()) == "python":
        pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings, which launches kernels, is not installed")
    output = aot.folder / "grouped-engine.aot"
    found = Path(os.environ.get("AOT_PREPARED") or "nowhere") / "grouped-fp16.aot"
    if found.is_dir():
        shutil.copytree(found, aot.folder / found.name)
        outcome = aot("build", found.name, "-o", output.name, "--json")
    else:
        pytest.importorskip("triton", reason="triton, which compiles kernels, is not installed")
        (aot.folder / "model.py").write_text(MODEL)
        asked = ("--precision", "fp16", "--backend", "tensorrt", "--plugin", "attention", "-o", output.name, "--json")
        outcome = aot("build", "model.py", *asked)
    assert outcome.code == 0, outcome.err
    assert outcome.json["verification"]["engine"]["ran"] is True
    return aot, output


def test_the_kernel_takes_the_fewer_heads(built: tuple[Aot, Path]) -> None:
    _, artifact = built
    facts: dict[str, Any] = json.loads((artifact / "manifest.json").read_text())["engines"][0]["engine"]["facts"]
    assert facts["attention_kernels"] == 1
    (kernel,) = facts["kernels"]
    assert (kernel["plugin"], len(kernel["nodes"])) == ("aot::attention", 1)


@pytest.mark.parametrize("size", SIZES)
def test_values_are_those_of_the_graph(built: tuple[Aot, Path], size: tuple[int, int]) -> None:
    aot, artifact = built
    np.savez(aot.folder / "x.npz", x=np.random.default_rng(sum(size)).standard_normal((*size, 256)).astype(np.float32))
    for chosen, out in (((), "engine.npz"), (("--engine", "cpu"), "graph.npz")):
        done = aot("run", artifact.name, "--inputs", "x.npz", "-o", out, *chosen)
        assert done.code == 0, done.err
    got, expected = np.load(aot.folder / "engine.npz")["y"], np.load(aot.folder / "graph.npz")["y"]
    np.testing.assert_allclose(got, expected, rtol=0, atol=4e-3 * float(np.abs(expected).max()))
