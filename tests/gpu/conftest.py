"""Skips these tests, with the reason, where there is no GPU or no TensorRT."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import backend, toolchain
from tests.e2e.harness import Aot, write_mlp_onnx


def missing() -> str | None:
    """What these tests need and this machine lacks; None where nothing is."""
    if toolchain.machine().gpu is None:
        return "no NVIDIA GPU"
    if backend.get("tensorrt").version() is None:
        return "TensorRT is not installed"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip them all where something is missing."""
    reason = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def aot(tmp_path_factory: pytest.TempPathFactory) -> Aot:
    """`aot` in one folder for the module, so that its tests share a store and a timing cache."""
    base = tmp_path_factory.mktemp("gpu")
    folder = base / "project"
    folder.mkdir()
    write_mlp_onnx(folder / "mlp.onnx")
    return Aot(folder, base / "store")
