"""A model as an exported program: by name in and out, in the declared dtypes, equal to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend import program
from aot.frontend.eager import Eager, EagerProgram

BATCH = Dim("batch", min=1, opt=4, max=8)
SPEC = ModelSpec("m", {"x": Input([BATCH, 8]), "ids": Input([BATCH, 3], dtype="int64", low=0, high=10)})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, Any]:
        found = self.table(ids).sum(1)
        return {"logits": self.layer(torch.relu(x + found)), "pairs": torch.cat([ids, ids])}


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def inputs(batch: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(batch)
    return {"x": rng.normal(size=(batch, 8)).astype(np.float32), "ids": rng.integers(0, 10, (batch, 3))}


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0, 0), ("fp16", 1e-6, 1e-2), ("bf16", 1e-4, 1e-1)])
def test_the_program_says_what_the_model_says_in_its_precision(
    net: nn.Module, tmp_path: Path, precision: Any, least: float, most: float
) -> None:
    facts = program.write_module(net, SPEC, tmp_path / "p.pt2", precision)
    assert facts["outputs"] == [
        {"name": "logits", "dtype": "float32", "shape": ["batch", 4]},
        {"name": "pairs", "dtype": "int64", "shape": ["2*batch", 3]},
    ]
    assert next(net.parameters()).dtype == torch.float32  # the model itself is left alone
    with program.Running(tmp_path / "p.pt2") as running:
        for batch in (1, 5, 8):
            got, want = running(inputs(batch)), Eager(net, SPEC)(inputs(batch))
            assert {name: array.dtype for name, array in got.items()} == {n: a.dtype for n, a in want.items()}
            assert least <= np.abs(got["logits"] - want["logits"]).max() <= most
            np.testing.assert_array_equal(got["pairs"], want["pairs"])


def test_a_saved_program_is_captured_again_by_name(net: nn.Module, tmp_path: Path) -> None:
    saved = torch.export.export(
        net, (torch.zeros(3, 8), torch.zeros(3, 3, dtype=torch.int64)), dynamic_shapes=({0: torch.export.Dim("n")},) * 2
    )
    program.write(EagerProgram(saved, SPEC), SPEC, tmp_path / "p.pt2", "fp32")
    got, want = program.Running(tmp_path / "p.pt2")(inputs(5)), Eager(net, SPEC)(inputs(5))
    np.testing.assert_array_equal(got["logits"], want["logits"])


def test_an_op_without_a_cpu_kernel_in_the_precision_is_named(tmp_path: Path) -> None:
    class Bessel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.modified_bessel_i0(x)

    spec = ModelSpec("m", {"x": Input([BATCH, 8])})
    program.write_module(Bessel(), spec, tmp_path / "p.pt2", "fp16")
    with pytest.raises(ExportError, match="modified_bessel_i0") as caught:
        program.Running(tmp_path / "p.pt2")({"x": inputs(2)["x"]})
    assert "--precision fp32" in str(caught.value.fix)
