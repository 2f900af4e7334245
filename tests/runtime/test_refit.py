"""Weights that lie beside a plan: read, checked against what the engine takes, and put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import aot
from aot.errors import ArtifactError, EngineError, TargetError
from aot.runtime import fits, refit, vendors
from tests.backends import fake_tensorrt
from tests.runtime import artifacts, fake_cuda, fake_engine
from tests.runtime.artifacts import ENGINE, WEIGHT, listed, rows
from tests.runtime.conftest import plan_of
from tests.runtime.fake_cuda import Cuda

TAKEN = {"w": ("FLOAT", 6)}
OTHER = WEIGHT * 3 - 1


def stripped(folder: Path, weights: dict[str, Any], taken: Any = None, **facts: Any) -> Path:
    """An artifact of y = x W whose plan was stripped of W; the format's own library writes the file of weights."""
    plan = plan_of("linear", taken=taken or TAKEN)
    where = artifacts.linear(folder, engines=[{**ENGINE, "stripped": {"weights": 1}, **facts}], plan=plan)
    save_file(weights, where / "engines" / refit.WEIGHTS)
    said = json.loads((where / "manifest.json").read_text())
    said["files"] = {name: one for name, one in listed(where).items() if name != "manifest.json"}
    (where / "manifest.json").write_text(json.dumps(said))
    return where


def test_an_engine_computes_with_the_weights_beside_it(cuda: Cuda, tmp_path: Path) -> None:
    for name, weight in (("a.aot", WEIGHT), ("b.aot", OTHER)):
        with aot.load(stripped(tmp_path / name, {"unread": np.ones(2, np.float32), "w": weight})) as session:
            assert session.label == "engine sm90 (tensorrt 10.6.0)"
            np.testing.assert_allclose(session(x=rows(3))["y"], rows(3) @ weight, rtol=1e-6)


def test_halves_come_as_halves(cuda: Cuda, tmp_path: Path) -> None:
    where = stripped(tmp_path / "a.aot", {"w": WEIGHT.astype(np.float16)}, {"w": ("HALF", 6)})
    with aot.load(where) as session:
        np.testing.assert_allclose(session(x=rows(3))["y"], rows(3) @ WEIGHT, rtol=1e-3)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"v": WEIGHT}, "the weights lack 1 that the engine takes: w"),
        ({"w": WEIGHT[:2]}, "weight 'w' has 4 elements of .*FLOAT.*, and the engine takes 6 of .*FLOAT"),
        ({"w": WEIGHT.astype(np.float16)}, "weight 'w' has 6 elements of .*HALF.*, and the engine takes 6 of .*FLOAT"),
    ],
)
def test_what_does_not_fit_is_named(cuda: Cuda, tmp_path: Path, weights: dict[str, Any], says: str) -> None:
    where = stripped(tmp_path / "a.aot", weights)
    with pytest.raises(ArtifactError, match=says) as caught:
        aot.load(where)
    assert str(caught.value.where).endswith("engines/weights.safetensors")


def test_many_that_are_missing_are_counted(cuda: Cuda, tmp_path: Path) -> None:
    where = stripped(tmp_path / "a.aot", {"w": WEIGHT}, {**TAKEN, **{f"b{n}": ("FLOAT", 2) for n in range(5)}})
    with pytest.raises(ArtifactError, match="the weights lack 5 that the engine takes: b0, b1, b2 and 2 more"):
        aot.load(where)


def test_weights_that_changed_are_not_loaded(cuda: Cuda, tmp_path: Path) -> None:
    where = stripped(tmp_path / "a.aot", {"w": WEIGHT})
    path = where / "engines" / refit.WEIGHTS
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        aot.load(where)


def test_what_tensorrt_says_is_passed_on(cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine.Engine, "broken", True)
    with pytest.raises(EngineError, match="TensorRT does not take the weights: weights of layer 3 are contradictory"):
        aot.load(stripped(tmp_path / "a.aot", {"w": WEIGHT}))


def _header(text: str, data: bytes = bytes(24), length: int | None = None) -> bytes:
    head = text.encode()
    return (len(head) if length is None else length).to_bytes(8, "little") + head + data


def _one(**changed: Any) -> str:
    return json.dumps({"w": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24], **changed}})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "does not fit"),
        (b"\xff" * 100, "does not fit"),
        (_header(_one(), length=1 << 40), "does not fit"),
        (_header("[1, 2]"), "not a file of weights"),
        (_header("{"), "not a file of weights"),
        (_header("[" * 5000), "not a file of weights"),
        (_header(_one(data_offsets=[0, 48])), "'w' does not lie where it says"),
        (_header(_one(data_offsets=[8, 32])), "'w' does not lie where it says"),
        (_header(_one(data_offsets=[-24, 0])), "'w' has a size that is no number"),
        (_header(_one(shape=[3, True])), "'w' has a size that is no number"),
        (_header(_one(shape=[1 << 40, 1 << 40])), "'w' does not lie where it says"),
        (_header(_one(dtype="I64")), "not a file of weights: 'I64'"),
        (_header('{"w": 3}'), "not a file of weights"),
    ],
)
def test_a_file_that_is_no_file_of_weights(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ArtifactError, match=says):
        refit.header(tmp_path / "w")


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    save_file({"w": WEIGHT, "h": np.ones(5, np.float16)}, tmp_path / "w", metadata={"format": "np"})
    found = refit.header(tmp_path / "w")
    assert {name: (one.dtype, one.count) for name, one in found.items()} == {"w": ("F32", 6), "h": ("F16", 5)}
    data = (tmp_path / "w").read_bytes()
    np.testing.assert_array_equal(np.frombuffer(data, np.float32, 6, found["w"].start), WEIGHT.ravel())


@pytest.mark.parametrize(
    ("target", "here", "hardware", "runs"),
    [
        ("sm90", "sm90", None, True),
        ("sm90", "sm89", None, False),
        ("sm90", "sm80", "ampere_plus", True),
        ("sm80", "sm120", "ampere_plus", True),
        ("sm90", "sm75", "ampere_plus", False),
        ("sm90", "sm90", "same_compute_capability", True),
        ("sm90", "sm100", "same_compute_capability", False),
    ],
)
def test_which_gpus_an_engine_runs_on(target: str, here: str, hardware: str | None, runs: bool) -> None:
    assert fits.gpu_fits(target, here, hardware) is runs


@pytest.mark.parametrize(
    ("built", "installed", "compatible", "runs"),
    [
        ("10.6.0", "10.6.0", None, True),
        ("10.6.0", "10.7.0", None, False),
        ("10.6.0", "10.16.1", "with", True),
        ("10.6.0", "11.4.0.106", "with", True),
        ("10.6.0", "10.5.0", "with", False),
        ("10.6.0", "10.7.0", "without", False),
        ("10.6.0", "10.6.0", "without", True),
    ],
)
def test_which_tensorrt_runs_an_engine(built: str, installed: str, compatible: str | None, runs: bool) -> None:
    assert fits.version_fits(built, installed, compatible) is runs


def _loads(
    monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, capability: tuple[int, int], **facts: Any
) -> Any:
    cuda = fake_cuda.install(monkeypatch)
    monkeypatch.setattr(cuda, "capability", capability)
    fake_engine.install(monkeypatch, cuda, version)
    where = artifacts.linear(folder, engines=[{**ENGINE, **facts}], plan=plan_of("linear"))
    return aot.load(where, engine="sm90")


def test_a_version_compatible_engine_runs_on_later_tensorrt_whose_host_code_is_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _loads(monkeypatch, tmp_path / "a.aot", "10.9.0", (9, 0), version_compatible="with") as session:
        np.testing.assert_allclose(session(x=rows(2))["y"], rows(2) @ WEIGHT, rtol=1e-6)
    assert fake_tensorrt.MODULE.runtimes[-1].engine_host_code_allowed is True
    with pytest.raises(TargetError, match=r"built by TensorRT 10.6.0, and 10.5.0 is installed"):
        _loads(monkeypatch, tmp_path / "b.aot", "10.5.0", (9, 0), version_compatible="with")
    with pytest.raises(TargetError, match=r"built by TensorRT 10.6.0, and 10.9.0 is installed"):
        _loads(monkeypatch, tmp_path / "c.aot", "10.9.0", (9, 0))


def test_a_hardware_compatible_engine_runs_on_other_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with _loads(monkeypatch, tmp_path / "a.aot", "10.6.0", (8, 6), hardware_compatible="ampere_plus") as session:
        assert session.label == "engine sm90 (tensorrt 10.6.0)"
    with pytest.raises(TargetError, match="it is for sm80 and later, and GPU 0 is a "):
        _loads(monkeypatch, tmp_path / "b.aot", "10.6.0", (7, 5), hardware_compatible="ampere_plus")
    with pytest.raises(TargetError, match="it is for sm90, and GPU 0 is a "):
        _loads(monkeypatch, tmp_path / "c.aot", "10.6.0", (8, 6))


@pytest.mark.parametrize(
    ("installed", "lean", "found"),
    [
        ({"tensorrt": "10.6.0", "tensorrt_lean": "10.9.0"}, True, ("tensorrt", "10.6.0")),
        ({"tensorrt_lean": "10.9.0"}, True, ("tensorrt_lean", "10.9.0")),
        ({"tensorrt_lean": "10.9.0"}, False, ("tensorrt", None)),
        ({}, True, ("tensorrt", None)),
    ],
)
def test_the_lean_runtime_stands_in_for_the_whole_one_where_it_can(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], lean: bool, found: tuple[str, str | None]
) -> None:
    monkeypatch.setattr(vendors, "version", installed.get)
    assert vendors.runtime("tensorrt", lean=lean) == found


def test_weights_that_are_gone_are_named(cuda: Cuda, tmp_path: Path) -> None:
    where = stripped(tmp_path / "a.aot", {"w": WEIGHT})
    (where / "engines" / refit.WEIGHTS).unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        aot.load(where)
    said = json.loads((where / "manifest.json").read_text())
    del said["files"][f"engines/{refit.WEIGHTS}"]
    (where / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(ArtifactError, match="does not list engines/weights"):
        aot.load(where)
