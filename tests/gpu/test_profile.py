"""`aot profile` of engines that TensorRT runs on this GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness import DIM, Aot


def profiled(aot: Aot, artifact: str, *options: str) -> dict[str, Any]:
    done = aot("profile", artifact, *options, "--json")
    assert done.code == 0, done.err
    return done.json


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_time_of_an_engine_is_put_down_to_nodes_of_the_graph(aot: Aot, precision: str) -> None:
    options = ("--backend", "tensorrt", "--precision", precision, "-o", f"timed-{precision}.aot")
    built = aot("build", "mlp.onnx", *DIM, *options, "--json")
    assert built.code == 0, built.err
    found = profiled(aot, f"timed-{precision}.aot", "--size", "batch=8")
    assert found["ran"].startswith("engine sm")
    assert found["sizes"] == {"batch": 8}
    graph = json.loads((aot.folder / f"timed-{precision}.aot/report.json").read_text())
    decided = {one["node"] for one in graph["decisions"]}
    made = {node["node"] for layer in found["layers"] for node in layer["nodes"]}
    # The products are somewhere, and most of the time is known to be of some node.
    assert {"first", "second"} <= decided & made
    known = sum(layer["ms"] for layer in found["layers"] if layer["nodes"])
    assert known > 0.5 * found["layers_ms"] > 0
    assert found["ms"] > 0
    assert sum(one["share"] for one in found["precisions"]) == pytest.approx(1)


def test_a_layer_is_timed_at_the_size_that_was_asked_for_in_each_profile(aot: Aot) -> None:
    (aot.folder / "each.yaml").write_text("profiles:\n  - {batch: [1, 1, 4]}\n  - {batch: [4, 16, 4096]}\n")
    options = ("--dim", "batch=1:16:4096", "--precision", "fp32", "--profile", "each.yaml", "-o", "each.aot")
    built = aot("build", "mlp.onnx", *options, "--backend", "tensorrt", "--json")
    assert built.code == 0, built.err
    for batch in (1, 4096):
        found = profiled(aot, "each.aot", "--size", f"batch={batch}")
        assert found["sizes"] == {"batch": batch}
        assert any(layer["nodes"] for layer in found["layers"])


def test_the_table_fits_a_terminal(aot: Aot) -> None:
    built = aot("build", "mlp.onnx", *DIM, "--backend", "tensorrt", "--precision", "fp16", "-o", "shown.aot")
    assert built.code == 0, built.err
    done = aot("profile", "shown.aot", "--top", "3")
    assert done.code == 0, done.err
    assert "without the profiler" in done.out
    assert max(map(len, done.out.splitlines())) <= 100
