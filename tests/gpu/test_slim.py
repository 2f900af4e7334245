"""Plans without weights, for later TensorRT and for other GPUs: that they are what they say, and compute the same."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot as package
from aot import backend
from aot.errors import ArtifactError
from aot.runtime.refit import WEIGHTS
from tests.e2e.harness import DIM, Aot, Here
from tests.gpu import models

# How far two engines of one model may differ, of the largest output: they need not have the same tactics.
TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3}


@pytest.fixture(scope="module")
def aot(aot: Aot) -> Here:
    """The same in this process, which loads TensorRT's builder once."""
    return Here(aot.folder, aot.store)


def build(aot: Aot, model: str, output: str, *options: str) -> dict[str, Any]:
    done = aot("build", model, *DIM, "--backend", "tensorrt", *options, "-o", output, "--json")
    assert done.code == 0, done.err
    return done.json


def manifest(aot: Aot, output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((aot.folder / output / "manifest.json").read_text())
    return found


def engine_of(aot: Aot, output: str) -> dict[str, Any]:
    return dict(manifest(aot, output)["engines"][0]["engine"]["facts"])


def outputs(
    aot: Aot, output: str, engine: str | None = None, shape: tuple[int, ...] = (models.WIDTH,)
) -> np.ndarray[Any, Any]:
    """What the artifact makes of five rows on the GPU; engine: `cpu` for its final graph on onnxruntime."""
    x = np.random.default_rng(5).standard_normal((5, *shape)).astype(np.float32)
    with package.load(aot.folder / output, engine=engine) as session:
        assert session.label.startswith("engine sm" if engine is None else "final graph")
        return np.array(session(x=x)["y"])


def close(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], precision: str = "fp16") -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[precision] * np.abs(expected).max())


@pytest.fixture(scope="module")
def wide(aot: Aot) -> Path:
    return models.wide(aot.folder / "wide.onnx")


@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_stripped_plan_with_its_weights_computes_what_the_whole_one_does(
    aot: Aot, wide: Path, precision: str
) -> None:
    whole = build(aot, wide.name, f"whole-{precision}.aot", "--precision", precision)
    slim = build(aot, wide.name, f"slim-{precision}.aot", "--precision", precision, "--strip")
    assert slim["verification"]["engine"]["ran"] is True  # against eager, with the weights put in
    assert engine_of(aot, f"slim-{precision}.aot")["stripped"] == {"weights": 4}
    size = 2 if precision == "fp32" else 1
    assert whole["engines"][0]["bytes"] > models.WEIGHTS * size
    assert slim["engines"][0]["bytes"] < models.WEIGHTS * size / 8
    assert (aot.folder / f"slim-{precision}.aot/engines" / WEIGHTS).stat().st_size > models.WEIGHTS * size
    close(outputs(aot, f"slim-{precision}.aot"), outputs(aot, f"whole-{precision}.aot"), precision)


def test_a_fine_tune_takes_the_plan_that_is_there_and_its_own_weights(aot: Aot, wide: Path) -> None:
    (aot.folder / "tuned").mkdir()
    models.wide(aot.folder / "tuned/wide.onnx", seed=1)
    first = build(aot, wide.name, "first.aot", "--precision", "fp16", "--strip")
    second = build(aot, "tuned/wide.onnx", "second.aot", "--precision", "fp16", "--strip")
    assert second["engines"][0]["cached"] is True
    assert second["engines"][0]["sha256"] == first["engines"][0]["sha256"]
    assert second["verification"]["engine"]["cosine"] > 0.999  # to its own model
    got = outputs(aot, "second.aot")
    close(got, outputs(aot, "second.aot", "cpu"))
    assert np.abs(got - outputs(aot, "first.aot")).max() > 0.1 * np.abs(got).max()


def test_convolutions_are_stripped_too(aot: Aot) -> None:
    models.convolutions(aot.folder / "conv.onnx")
    slim = build(aot, "conv.onnx", "conv-slim.aot", "--precision", "fp16", "--strip")
    assert slim["verification"]["engine"]["cosine"] > 0.999
    shape = (16, 16, 16)
    close(outputs(aot, "conv-slim.aot", None, shape), outputs(aot, "conv-slim.aot", "cpu", shape))


def test_a_weight_that_is_missing_is_named(aot: Aot, wide: Path) -> None:
    build(aot, wide.name, "slim-fp16.aot", "--precision", "fp16", "--strip")
    shutil.copytree(aot.folder / "slim-fp16.aot", aot.folder / "lacking.aot", dirs_exist_ok=True)
    path = aot.folder / "lacking.aot/engines" / WEIGHTS
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    path.write_bytes(data[:8] + data[8 : 8 + length].replace(b'"w2"', b'"w9"') + data[8 + length :])
    with pytest.raises(ArtifactError, match="the weights lack 1 that the engine takes: w2"):
        package.load(aot.folder / "lacking.aot", verify=False)
    with pytest.raises(ArtifactError, match="SHA-256"):
        package.load(aot.folder / "lacking.aot")


def has_lean_runtime() -> bool:
    try:
        ctypes.CDLL("libnvinfer_lean.so.10")
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "options",
    [
        ("--version-compatible", "--no-lean-runtime"),
        pytest.param(
            ("--version-compatible",),
            marks=pytest.mark.skipif(not has_lean_runtime(), reason="libnvinfer_lean is not installed"),
        ),
    ],
)
def test_a_version_compatible_plan_is_right(aot: Aot, wide: Path, options: tuple[str, ...]) -> None:
    name = f"compatible-{len(options)}.aot"
    built = build(aot, wide.name, name, "--precision", "fp16", *options)
    assert built["verification"]["engine"]["cosine"] > 0.999
    assert engine_of(aot, name)["version_compatible"] == ("without" if len(options) > 1 else "with")
    build(aot, wide.name, "whole-fp16.aot", "--precision", "fp16")
    close(outputs(aot, name), outputs(aot, "whole-fp16.aot"))


def test_a_hardware_compatible_plan_is_right_and_says_so(aot: Aot, wide: Path) -> None:
    import tensorrt as trt

    built = build(aot, wide.name, "ampere.aot", "--precision", "fp16", "--hardware-compatible", "ampere_plus")
    assert built["verification"]["engine"]["cosine"] > 0.999
    assert engine_of(aot, "ampere.aot")["hardware_compatible"] == "ampere_plus"
    plan = aot.folder / "ampere.aot" / built["engines"][0]["file"]
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan.read_bytes())
    assert engine.hardware_compatibility_level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    build(aot, wide.name, "whole-fp16.aot", "--precision", "fp16")
    close(outputs(aot, "ampere.aot"), outputs(aot, "whole-fp16.aot"))


def test_what_this_tensorrt_lacks_is_refused_before_any_work(aot: Aot, wide: Path) -> None:
    version = backend.get("tensorrt").version()
    assert version is not None
    if tuple(map(int, version.split(".")[:2])) >= (10, 9):
        pytest.skip("this TensorRT has the level")
    level = ("--hardware-compatible", "same_compute_capability")
    done = aot("build", wide.name, *DIM, "--backend", "tensorrt", *level)
    assert done.code == 2
    assert "came with 10.9" in done.err


def test_the_digest_of_the_weights_is_in_the_manifest(aot: Aot, wide: Path) -> None:
    build(aot, wide.name, "slim-fp16.aot", "--precision", "fp16", "--strip")
    held = manifest(aot, "slim-fp16.aot")["files"][f"engines/{WEIGHTS}"]
    data = (aot.folder / "slim-fp16.aot/engines" / WEIGHTS).read_bytes()
    assert held == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
