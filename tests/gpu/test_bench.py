"""`aot bench` on a GPU: an engine beside eager and torch.compile, and what a GPU's meters say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import Aot

MODEL = """
import aot, torch
batch = aot.Dim("batch", min=1, opt=8, max=64)

@aot.model(inputs={"input": aot.Input([batch, 256])}, outputs=["y"])
def model():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval()
"""
TORCH = ("eager", "compile-default", "compile-reduce-overhead")


@pytest.mark.timeout(900)
def test_an_engine_beside_torch_with_launches_memory_energy_and_accuracy(aot: Aot) -> None:
    pytest.importorskip("torch")
    (aot.folder / "deep.py").write_text(MODEL)
    assert aot("build", "deep.py", "--precision", "fp16", "-o", "deep.aot").code == 0
    outcome = aot("bench", "deep.aot", "--model", "deep.py", "--against", ",".join(TORCH), "--runs", "300", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    rows = {row["tool"]: row for row in found["rows"]}
    assert set(rows) == {"aot", *TORCH}
    for row in rows.values():
        assert row["reason"] is None, row["reason"]
        assert row["precision"] == "fp16"
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["cosine"] > 0.9999
        assert row["gpu_bytes"] > 1 << 20
        assert row["energy_mj"] > 0
    assert rows["aot"]["label"].startswith("engine sm")
    assert rows["eager"]["launches"] >= 16  # eight products and eight activations
    assert rows["compile-reduce-overhead"]["launches"] == 1  # a graph
    assert rows["aot"]["launches"] < rows["eager"]["launches"]
    assert found["clocks"]["gpu"]["highest_sm_mhz"] > 0
    assert Path(aot.folder / "deep.aot").exists()
