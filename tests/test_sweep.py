"""The lists behind `make sweep`: enough families, each with a declaration that says what its data says."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot import Dim, Input

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
AT_LEAST = {"torchvision": 36, "detectors": 7, "timm": 60, "transformers": 40, "modules": 6}


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", AT_LEAST)
def test_every_member_of_a_library_has_a_name_and_a_declaration_of_its_own(name: str) -> None:
    library = importlib.import_module(f"sweep.{name}").LIBRARY
    names = [member.name for member in library.members]
    assert library.name == name
    assert len(set(names)) == len(names) >= AT_LEAST[name]
    for member in library.members:
        ast.parse(member.declaration())
        assert "batch" in member.dims or len(member.inputs) == 1  # a detector takes one image


def test_the_written_declaration_declares_what_the_data_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweep.member import Member

    batch, width = Dim("batch", min=1, opt=2, max=5), Dim("width", min=3, opt=4, max=9)
    inputs = {"x": Input([batch, 3, width]), "ids": Input([batch], "int64", low=0, high=7)}
    member = Member("tiny-net", "tiny", "torch.nn.Identity()", inputs, settle=False)
    written: dict[str, Any] = {}
    exec(compile(member.declaration(), "model.py", "exec"), written)
    spec = written["tiny_net"].spec()
    assert spec.inputs == inputs
    assert spec.dims == {"batch": batch, "width": width}


def test_settled_weights_leave_no_part_idle_and_keep_signals_alive() -> None:
    torch = pytest.importorskip("torch")
    from sweep.settle import settled

    torch.manual_seed(0)
    deep = torch.nn.Sequential(
        *(layer for _ in range(12) for layer in (torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))), torch.nn.ReLU()
    )
    settled(deep, {"input": Input([Dim("batch", min=1, opt=4, max=8), 8])})
    norm = deep[1]
    assert not deep.training
    assert float(norm.weight.std()) > 0.01
    assert float(norm.bias.std()) > 0.001
    assert float(norm.running_var.std()) > 0
    with torch.no_grad():
        assert 0.1 < float(deep(torch.randn(64, 8)).std()) < 10


def test_a_model_that_answers_nothing_is_not_compared() -> None:
    torch = pytest.importorskip("torch")
    from sweep.settle import settled

    class Silent(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0

    with pytest.raises(ValueError, match="nothing to compare"):
        settled(Silent(), {"x": Input([2, 3])})
