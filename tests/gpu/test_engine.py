"""Engines that TensorRT builds, loads and runs on this GPU, from a two-layer MLP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import toolchain
from tests.e2e.harness import DIM, Aot

# The least cosine of the engine to the FP32 reference, over all compared sizes.
FLOORS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "int8": 0.98, "fp8": 0.98}
NO_FP8 = "FP8 needs compute capability 8.9"


def build(aot: Aot, *options: str) -> dict[str, Any]:
    outcome = aot("build", "mlp.onnx", *DIM, "--backend", "tensorrt", *options, "--json")
    assert outcome.code == 0, outcome.err
    return outcome.json


def facts(aot: Aot, summary: dict[str, Any]) -> dict[str, Any]:
    manifest = json.loads((aot.folder / summary["artifact"] / "manifest.json").read_text())
    return dict(manifest["engines"][0]["engine"]["facts"])


@pytest.mark.parametrize("precision", FLOORS)
def test_an_engine_agrees_with_the_reference(aot: Aot, precision: str) -> None:
    gpu = toolchain.machine().gpu
    assert gpu is not None
    if precision == "fp8" and int(gpu.target[2:]) < 89:
        pytest.skip(NO_FP8)
    summary = build(aot, "--precision", precision, "-o", f"{precision}.aot")
    engine = summary["verification"]["engine"]
    assert engine["ran"] is True
    assert engine["cosine"] >= FLOORS[precision]
    assert (summary["quantized"]["ops"] == 2) == (precision in ("int8", "fp8"))


def test_the_plan_is_what_the_vendors_runtime_takes(aot: Aot) -> None:
    """Metadata lies beside the plan, never inside."""
    import tensorrt as trt

    summary = build(aot, "--precision", "fp16", "-o", "plain.aot")
    plan = aot.folder / "plain.aot" / summary["engines"][0]["file"]
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan.read_bytes())
    assert engine is not None
    assert {engine.get_tensor_name(i) for i in range(engine.num_io_tensors)} == {"x", "y"}
    assert engine.get_tensor_dtype("x") == trt.float32


def test_two_profiles_in_one_engine(aot: Aot) -> None:
    import tensorrt as trt

    (aot.folder / "two.yaml").write_text("profiles:\n  - {batch: [1, 1, 4]}\n  - {batch: [4, 16, 32]}\n")
    summary = build(aot, "--dim", "batch=1:16:32", "--precision", "fp32", "--profile", "two.yaml", "-o", "two.aot")
    plan = aot.folder / "two.aot" / summary["engines"][0]["file"]
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan.read_bytes())
    shapes = [engine.get_tensor_profile_shape("x", i) for i in range(engine.num_optimization_profiles)]
    assert [[shape[0] for shape in triple] for triple in shapes] == [[1, 1, 4], [4, 16, 32]]
    for size in (1, 3, 32):
        x = np.random.default_rng(size).standard_normal((size, 32)).astype(np.float32)
        np.savez(aot.folder / "x.npz", x=x)
        for engine_name, out in (("", "engine.npz"), ("cpu", "graph.npz")):
            chosen = ("--engine", engine_name) if engine_name else ()
            done = aot("run", "two.aot", "--inputs", "x.npz", "-o", out, *chosen)
            assert done.code == 0, done.err
        got, expected = (np.load(aot.folder / name)["y"] for name in ("engine.npz", "graph.npz"))
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-3 * np.abs(expected).max())


def test_the_second_build_takes_up_the_timing_cache(aot: Aot) -> None:
    build(aot, "--precision", "fp16", "-o", "cold.aot", "--fresh")
    again = build(aot, "--precision", "fp16", "-o", "warm.aot", "--fresh")
    assert facts(aot, again)["timing_cache"]["used"] is True


def test_a_damaged_timing_cache_is_set_aside_with_a_warning(aot: Aot) -> None:
    build(aot, "--precision", "fp16", "-o", "cold.aot", "--fresh")
    (cache,) = (aot.store / "aot/timing-cache").glob("*.cache")
    cache.write_bytes(cache.read_bytes()[:-100])
    again = build(aot, "--precision", "fp16", "-o", "warm.aot", "--fresh")
    assert any("timing cache" in warning for warning in again["warnings"])
    assert facts(aot, again)["timing_cache"]["used"] is False


def test_an_engine_for_another_gpu_is_refused(aot: Aot, tmp_path: Path) -> None:
    here = toolchain.machine().gpu
    assert here is not None
    other = next(target for target in ("sm89", "sm90", "sm120") if target != here.target)
    refused = aot("build", "mlp.onnx", *DIM, "--precision", "fp16", "--backend", "tensorrt", "--target", other)
    assert refused.code == 2
    assert here.target in refused.err
