"""Which options of an engine a backend has is data; what it lacks is refused with the reason, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aot.config import EngineOptions, Request
from aot.errors import TargetError, UsageError
from aot.offers import OFFERS, asked, check, engine_options
from aot.plan import choose
from aot.report.command import command_of
from aot.toolchain import release
from tests.backends import fake_tensorrt
from tests.e2e.harness import Here

EVERY: list[dict[str, Any]] = [
    {"strip": True},
    {"version_compatible": True},
    {"hardware_compatible": "ampere_plus"},
    {"hardware_compatible": "same_compute_capability"},
]


def test_every_backend_has_an_answer_to_every_option() -> None:
    names = {name for options in EVERY for name in asked(EngineOptions(**options))}
    assert {backend: set(offers) for backend, offers in OFFERS.items()} == {
        backend: names for backend in ("tensorrt", "tensorrt_rtx", "onnxruntime")
    }


@pytest.mark.parametrize("options", EVERY)
@pytest.mark.parametrize("backend", ["tensorrt_rtx", "onnxruntime"])
def test_what_a_backend_lacks_is_refused_with_the_reason(backend: str, options: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match="does not build with") as caught:
        check(EngineOptions(**options), "fp16", backend, "onnx")
    assert OFFERS[backend][next(asked(EngineOptions(**options)))].why in caught.value.what


@pytest.mark.parametrize(("version", "has"), [("10.6.0", False), ("10.9.0", True), ("11.4.0.106", True)])
def test_an_option_comes_with_a_release(monkeypatch: pytest.MonkeyPatch, version: str, has: bool) -> None:
    fake_tensorrt.install(monkeypatch, version)
    for options in EVERY[:3]:
        check(EngineOptions(**options), "fp16", "tensorrt", "onnx")
    if has:
        check(EngineOptions(**EVERY[3]), "fp16", "tensorrt", "onnx")
        return
    with pytest.raises(TargetError, match=r"TensorRT 10.6.0 lacks .*, which came with 10.9"):
        check(EngineOptions(**EVERY[3]), "fp16", "tensorrt", "onnx")


def test_fp8_is_not_for_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch)
    check(EngineOptions(hardware_compatible="ampere_plus"), "int8", "tensorrt", "onnx")
    with pytest.raises(TargetError, match="FP8 and ampere_plus exclude each other"):
        check(EngineOptions(hardware_compatible="ampere_plus"), "fp8", "tensorrt", "onnx")


def test_the_other_route_has_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch)
    with pytest.raises(TargetError, match="the route torch-tensorrt does not build with strip"):
        check(EngineOptions(strip=True), "fp16", "tensorrt", "torch-tensorrt")


def test_the_command_line_goes_before_the_profile_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch)
    (tmp_path / "p.yaml").write_text("engine: {version_compatible: true, optimization_level: 1}\n")
    request = Request(model="m.py", profile=str(tmp_path / "p.yaml"), engine={"strip": True})
    engine = choose(request, tmp_path).file.engine
    assert (engine.version_compatible, engine.optimization_level, engine.strip) == (True, 1, True)
    with pytest.raises(UsageError, match="hardware_compatible"):
        engine_options(EngineOptions(), Request(model="m.py", engine={"hardware_compatible": "volta"}))


def test_a_prepared_artifact_may_ask_for_what_only_another_machine_has() -> None:
    check(EngineOptions(strip=True), "fp16", None, "onnx")


def test_the_command_that_is_kept_names_them() -> None:
    engine = {"strip": True, "version_compatible": True, "lean_runtime": False, "hardware_compatible": "ampere_plus"}
    assert command_of(Request(model="m.py", engine=engine, lock=Path("m.lock"), locked=True)) == (
        "aot build m.py --strip --version-compatible --no-lean-runtime --hardware-compatible ampere_plus "
        "--lock m.lock --locked"
    )


@pytest.mark.parametrize(("version", "found"), [("10.6.0", (10, 6)), ("11.4.0.106", (11, 4)), ("10", (10, 0))])
def test_a_release_is_two_numbers(version: str, found: tuple[int, int]) -> None:
    assert release(version) == found


def test_the_command_line_says_what_is_wrong(tmp_path: Path) -> None:
    aot = Here(tmp_path, tmp_path / "store")
    done = aot("build", "m.py", "--no-lean-runtime")
    assert (done.code, "add --version-compatible" in done.err) == (2, True)
    done = aot("build", "m.py", "--hardware-compatible", "ampere")
    assert (done.code, "did you mean 'ampere_plus'?" in done.err) == (2, True)
    done = aot("build", "m.py", "--strip", "--backend", "tensorrt_rtx", "--target", "sm89")
    assert (done.code, "only where a GPU is" in done.err) == (2, True)
