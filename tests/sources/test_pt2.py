"""A saved `torch.export` program as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from aot.errors import ExportError, UsageError
from tests.sources.projects import Bench


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, rest: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"y": self.line(x) + rest[0], "double": rest[1] * 2}


def save(path: Path, high: int | None) -> Path:
    batch = torch.export.Dim("batch", min=1, max=high) if high else torch.export.Dim("batch")
    example = (torch.randn(5, 3), [torch.randn(5, 2), torch.randn(2)])
    program = torch.export.export(Net(), example, dynamic_shapes=({0: batch}, [{0: batch}, None]))
    torch.export.save(program, path)
    return path


def test_bounds_and_optimum_come_from_the_program(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(save(tmp_path / "net.pt2", 8))
    assert list(source.spec.inputs) == ["x", "rest_0", "rest_1"]
    (dim,) = source.spec.dims.values()
    assert dim.bounds == (1, 5, 8)
    assert source.spec.inputs["rest_1"].shape == (2,)
    assert source.batches() is None


def test_open_bounds_are_asked_for_with_the_option(bench: Bench, tmp_path: Path) -> None:
    path = save(tmp_path / "net.pt2", None)
    with pytest.raises(UsageError) as caught:
        bench.open(path)
    said = str(caught.value)
    assert "input 'x', axis 0" in said
    name = said.split("add --dim ")[1].split("=")[0]
    source = bench.open(path, dims={name: (2, 4, 16)})
    assert source.spec.dims[name].bounds == (2, 4, 16)


def test_it_exports_and_matches_itself(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(save(tmp_path / "net.pt2", 8))
    facts = source.write_onnx(tmp_path)
    assert facts["outputs"] == ["y", "double"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    case: dict[str, np.ndarray[Any, Any]] = {
        "x": np.ones((7, 3), np.float32),
        "rest_0": np.ones((7, 2), np.float32),
        "rest_1": np.ones(2, np.float32),
    }
    want = source.eager()(case)
    for name, got in zip(facts["outputs"], session.run(None, case), strict=True):
        np.testing.assert_allclose(got, want[name], rtol=1e-5)


class Mixed(nn.Module):
    """Constants among the inputs, and inputs by keyword."""

    def forward(
        self, x: torch.Tensor, cond: dict[str, Any], mask: None = None, n: int = 2, *, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x * n + cond["gain"] + bias, x


def test_constants_and_keywords_among_the_inputs(bench: Bench, tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=8)
    cond = {"gain": torch.rand(3), "more": None}
    program = torch.export.export(
        Mixed(),
        (torch.randn(2, 3), cond, None, 3),
        {"bias": torch.ones(3)},
        dynamic_shapes={
            "x": {0: batch}, "cond": {"gain": None, "more": None}, "mask": None, "n": None, "bias": None,
        },
    )  # fmt: skip
    torch.export.save(program, tmp_path / "mixed.pt2")
    source = bench.open(tmp_path / "mixed.pt2")
    assert list(source.spec.inputs) == ["x", "cond_gain", "bias"]
    facts = source.write_onnx(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    case = {"x": np.ones((5, 3), np.float32), "cond_gain": np.full(3, 2, np.float32), "bias": np.ones(3, np.float32)}
    want = source.eager()(case)
    np.testing.assert_array_equal(want[facts["outputs"][0]], np.full((5, 3), 6))
    for name, got in zip(facts["outputs"], session.run(None, case), strict=True):
        np.testing.assert_allclose(got, want[name], rtol=1e-6)


def test_an_unchanged_file_is_not_loaded(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "net.pt2", 8)
    key = bench.open(path).key
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "load", lambda _: pytest.fail("loaded"))
        assert bench.open(path).key == key
    assert not bench.loaded


def test_another_content_is_another_key(bench: Bench, tmp_path: Path) -> None:
    key = bench.open(save(tmp_path / "net.pt2", 8)).key
    assert bench.open(save(tmp_path / "net.pt2", 9)).key != key


def test_a_damaged_file(bench: Bench, tmp_path: Path) -> None:
    path = save(tmp_path / "net.pt2", 8)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ExportError, match="not a program that torch can load"):
        bench.open(path)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_file_that_is_cut_off_is_one_message_and_nothing_else(
    bench: Bench, tmp_path: Path, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "net.pt2", 8)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    capfd.readouterr()
    with pytest.raises(ExportError, match="not a program that torch can load"):
        bench.open(path)
    assert capfd.readouterr() == ("", "")
