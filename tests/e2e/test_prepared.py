"""A build cut in two: prepared on one machine, finished on another that has neither torch nor the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import DIM, Aot, write_mlp_onnx

NO_TORCH = "import sys; sys.modules['torch'] = None"


@pytest.mark.parametrize("form", ["aot", "tar"])
def test_the_second_half_needs_neither_torch_nor_the_model(tmp_path: Path, form: str) -> None:
    here, there = Aot(tmp_path / "here", tmp_path / "store"), Aot(tmp_path / "there", tmp_path / "other-store")
    here.folder.mkdir()
    there.folder.mkdir()
    write_mlp_onnx(here.folder / "mlp.onnx")
    first = here("build", "mlp.onnx", *DIM, "--precision", "fp8", "--until", "graph", "-o", f"mlp.{form}", "--json")
    assert first.code == 0, first.err
    assert first.json["engines"] == []
    (here.folder / f"mlp.{form}").rename(there.folder / f"mlp.{form}")

    built = there("build", f"mlp.{form}", "--target", "sm89", "-o", "rtx.aot", "--json", before=NO_TORCH)
    assert built.code == 0, built.err
    assert built.json["verification"]["engine"]["reason"].startswith("built, not run: ")
    assert {stage["name"] for stage in built.json["stages"]} == {"build sm89", "verify sm89", "package"}

    run = there("build", f"mlp.{form}", "--target", "cpu", "-o", "cpu.aot", "--json", before=NO_TORCH)
    assert run.json["verification"]["engine"]["ran"] is True
    assert run.json["verification"]["engine"]["cosine"] == pytest.approx(first.json["verification"]["graph"]["cosine"])

    other = there("build", f"mlp.{form}", "--precision", "int8", "--target", "cpu")
    assert other.code == 2
    assert "prepared in fp8, not int8" in other.err
