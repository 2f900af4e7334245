"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Aot, Here, write_mlp_onnx


@pytest.fixture
def aot(tmp_path: Path) -> Aot:
    """`aot` in an empty folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Aot(folder, tmp_path / "store")


@pytest.fixture
def here(aot: Aot) -> Here:
    """The same in this process."""
    return Here(aot.folder, aot.store)


@pytest.fixture(scope="session")
def mlp_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer MLP as an ONNX file."""
    return write_mlp_onnx(tmp_path_factory.mktemp("onnx") / "mlp.onnx")
