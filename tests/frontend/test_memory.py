"""Weights are never held twice: the export of a model takes hardly more memory than its weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import resource, sys, tempfile
from pathlib import Path
import torch
from torch import nn
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module

class Net(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.embed = nn.Embedding(rows, 64, _weight=torch.zeros(rows, 64))
        self.line = nn.Linear(64, 4)

    def forward(self, ids):
        return self.line(self.embed(ids).mean(1))

SPEC = ModelSpec("model", {"ids": Input([Dim("batch", min=1, max=8), 5], "int64", low=0, high=10)})
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
folder = Path(sys.argv[2])
write_module(Net(10), SPEC, folder)
before = peak()
net = Net(int(sys.argv[1]))
net.embed.weight.data[:10].normal_()
write_module(net, SPEC, folder)
print((peak() - before) / net.embed.weight.nbytes, (folder / "model.onnx.data").stat().st_size)
"""


@pytest.mark.parametrize("rows", [1_200_000, pytest.param(9_000_000, marks=pytest.mark.slow)])
def test_the_peak_is_below_1_3_times_the_weights(rows: int, tmp_path: Path) -> None:
    """Embeddings of 0.3 and 2.3 GB, in a process of its own, over what an export of a small one takes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(rows), str(tmp_path)], capture_output=True, text=True, check=True
    )
    ratio, size = done.stdout.split()[-2:]
    assert float(ratio) < 1.3
    assert int(size) >= rows * 64 * 4
