"""Skips these tests, with the reason, where there is no GPU or no TensorRT; where they ran, keeps what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


ROWS: list[dict[str, Any]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One row a test of this folder: its outcome, and the seconds of its body."""
    if report.nodeid.startswith("tests/gpu/") and (report.when == "call" or report.outcome != "passed"):
        ROWS.append({"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)})


def pytest_sessionfinish() -> None:
    """Write `benchmarks/results/gpu-tests.json`, unless nothing could run here."""
    if ROWS and missing() is None:
        from benchmarks._result import write

        write("gpu-tests", ROWS, "make gpu-test")


@pytest.fixture(scope="module")
def aot(tmp_path_factory: pytest.TempPathFactory) -> Aot:
    """`aot` in one folder for the module, so that its tests share a store and a timing cache."""
    base = tmp_path_factory.mktemp("gpu")
    folder = base / "project"
    folder.mkdir()
    write_mlp_onnx(folder / "mlp.onnx")
    return Aot(folder, base / "store")
