"""`aot quantize` answers no where the result misses its recipe's budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot.cli import _main as cli
from tests.cli.test_quantize import given, npz, refused


def recipe(path: Path, budget: str) -> Path:
    path.write_text(f"extends: int8\nplacement: {{min_channels: 1}}\nbudget: {budget}\n")
    return path


@pytest.mark.parametrize(("limit", "code"), [(0.5, 0), (0.9999999, 1)])
def test_a_missed_budget_is_exit_code_1_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: float, code: int
) -> None:
    source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    chosen = recipe(tmp_path / "r.yaml", f"{{cosine: {limit}}}")
    arguments = ["quantize", source, target, "--data", npz(tmp_path / "d.npz"), "--calibration", chosen, "--json"]
    assert cli.call([str(one) for one in arguments]) == code
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["cosine"] < limit) == (not found["accepted"]) == bool(code)
    assert ("the recipe's budget is missed: cosine" in said.err) == bool(code)
    assert target.is_file()


def test_a_budget_on_a_metric_needs_a_model_that_has_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = recipe(tmp_path / "r.yaml", "{metric: 0.1}")
    error = refused(
        capsys, given(tmp_path / "in.onnx"), tmp_path / "out.onnx", "--data", npz(tmp_path / "d.npz"),
        "--calibration", chosen,
    )  # fmt: skip
    assert "a file has none" in error["what"]
    assert not (tmp_path / "out.onnx").exists()
