"""What each way to an engine takes, what it needs, and when the second would help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot import artifact, backend, routes, toolchain
from aot.breaks import Break
from aot.config import Request
from aot.errors import TargetError, UsageError
from aot.pipeline import build
from aot.plan import choose, decide_finish
from aot.progress import Silent
from aot.records import Program
from aot.store import Store
from tests.backends.fake_tensorrt import H200

MODEL = """
import aot, torch
batch = aot.Dim("batch", min=1, opt=2, max=4)
@aot.model(inputs={"x": aot.Input([batch, 3])}, outputs=["y"])
def bessel():
    class Bessel(torch.nn.Module):
        def forward(self, x):
            return torch.special.modified_bessel_i0(x)  # ONNX has no such op
    return Bessel()
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what is installed, on a machine with a GPU."""

    def of(gpu: Any = H200, **versions: str | None) -> None:
        found = {"torch": "2.14.1", "torch-tensorrt": "2.14.0", "tensorrt": "11.1.0"}
        found |= {name.replace("_", "-"): version for name, version in versions.items()}
        known = toolchain.version
        monkeypatch.setattr(toolchain, "version", lambda name: found[name] if name in found else known(name))
        monkeypatch.setattr(toolchain, "machine", lambda: gpu)
        monkeypatch.setattr(type(backend.get("tensorrt")), "version", lambda self: found["tensorrt"])

    return of


def chosen(model: str = "m.py", precision: Any = "fp16", **more: Any) -> Any:
    return choose(Request(model=model, precision=precision, route=routes.TORCH_TENSORRT, **more), Path.cwd())


def test_it_builds_with_tensorrt_for_this_gpu(machine: Any) -> None:
    machine()
    for asked in ({}, {"backend": "tensorrt"}, {"targets": ("sm90",)}, {"targets": ("auto",)}):
        found = chosen(**asked)
        assert (found.backend, found.targets) == ("tensorrt", ("sm90",))


@pytest.mark.parametrize(
    ("asked", "says", "advises"),
    [
        ({"precision": "int8"}, "neither calibrates nor quantizes", "fp16 or bf16"),
        ({"precision": "fp8", "until": "graph"}, "neither calibrates nor quantizes", "leave --route away"),
        ({"model": "m.onnx"}, "an ONNX file is none", "exported from"),
        ({"model": "m.pt2"}, "has its dtypes already", "--precision fp32"),
        ({"backend": "tensorrt_rtx"}, "not those of tensorrt_rtx", "leave --backend away"),
        ({"targets": ("sm89",)}, "this is NVIDIA H200", "--until graph"),
    ],
)
def test_what_it_does_not_take_is_refused_before_any_work(
    machine: Any, asked: dict[str, Any], says: str, advises: str
) -> None:
    machine()
    with pytest.raises(TargetError, match=says) as caught:
        chosen(**asked)
    assert advises in str(caught.value.fix)


@pytest.mark.parametrize(
    ("versions", "says", "advises"),
    [
        ({"gpu": replace(H200, gpu=None)}, "here is none", "--until graph"),
        ({"torch_tensorrt": None}, "needs torch-tensorrt", "aot-engine[torch-tensorrt]"),
        ({"torch_tensorrt": None, "torch": None}, "needs torch and torch-tensorrt", "aot-engine[torch-tensorrt]"),
        ({"torch_tensorrt": "2.13.0", "torch": "2.13.0"}, "2.13.0 cannot name", "pip install -U"),
        ({"torch_tensorrt": "2.14.0", "torch": "2.15.0+cu130"}, "does not go with torch 2.15", "brings the torch"),
    ],
)
def test_what_is_missing_here_is_said_with_what_to_install(
    machine: Any, versions: dict[str, Any], says: str, advises: str
) -> None:
    machine(**versions)
    with pytest.raises(TargetError, match=says) as caught:
        chosen()
    assert advises in str(caught.value.fix)


def test_it_helps_where_only_the_translation_failed(machine: Any) -> None:
    machine()
    untranslated = Break("op without translation", "there is no ONNX translation of aten.frobnicate")
    branch = Break("branch on values", "a branch depends on values")
    assert "without ONNX" in str(routes.helps([untranslated], "fp16"))
    assert routes.helps([], "fp16") is None
    assert routes.helps([untranslated, branch], "fp16") is None
    assert routes.helps([untranslated], "int8") is None
    machine(torch_tensorrt=None)
    assert "pip install" in str(routes.helps([untranslated], "fp32"))


def test_a_model_without_a_translation_is_prepared_here_and_built_there(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    store = Store(tmp_path / "store")
    request = Request(model="model.py", precision="fp32", route=routes.TORCH_TENSORRT, until="graph")
    result = build(request, store, Silent())
    assert result.accepted
    assert result.summary["verification"]["graph"]["cosine"] == pytest.approx(1)
    loaded = artifact.load("bessel.aot")
    assert isinstance(loaded.final, Program)
    manifest = json.loads((tmp_path / "bessel.aot" / "manifest.json").read_text())
    assert manifest["plan"]["route"] == routes.TORCH_TENSORRT
    assert manifest["io"]["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 3]}]
    with pytest.raises(UsageError, match="prepared for the route torch-tensorrt"):
        decide_finish(Request(model="bessel.aot", route="onnx"), loaded)
    with pytest.raises(UsageError, match="loading one may run code") as untrusted:
        decide_finish(Request(model="bessel.aot"), loaded)
    assert "aot build bessel.aot --route torch-tensorrt" in str(untrusted.value.fix)

    machine()
    jobs: list[Any] = []

    def convert(job: Any, file: Path) -> dict[str, Any]:
        jobs.append(job)
        file.write_bytes(b"engine")
        return {"origin": None, "builder_seconds": 0.0, "timing_cache": "does not apply"}

    monkeypatch.setattr("aot.stages.build.convert", convert)
    monkeypatch.setattr(type(backend.get("tensorrt")), "can_run", lambda *_: "not in this test")
    finished = build(Request(model="bessel.aot", route=routes.TORCH_TENSORRT), store, Silent())
    [engine] = finished.summary["engines"]
    assert (engine["target"], engine["backend"], finished.summary["route"]) == ("sm90", "tensorrt", "torch-tensorrt")
    assert jobs[0].graph.name == "program.pt2"
    assert (tmp_path / "bessel.aot" / "engines" / "sm90.plan").read_bytes() == b"engine"
