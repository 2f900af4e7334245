"""Which engine of an artifact is loaded, what is held against what before that, and what runs instead."""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot import toolchain
from aot.declaration import Dim, Input, ModelSpec, State
from aot.errors import AotError, ArtifactError, EngineError, TargetError, UsageError
from aot.plugins.compiling import Compiled
from aot.runtime import manifest, plugin_v3
from aot.stages.package import package
from aot.stages.verify import verify_engine
from tests.backends.test_plugin_v3 import kernel
from tests.runtime import artifacts, fake_cuda
from tests.runtime.artifacts import ENGINE, WEIGHT
from tests.runtime.conftest import plan_of
from tests.runtime.fake_cuda import Cuda
from tests.tiny import PLAN, Workshop

X = np.ones((2, 3), np.float32)
GRAPH = "final graph, fp32 (onnxruntime 1.32.0, cpu)"


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = toolchain.version
    monkeypatch.setattr(toolchain, "version", lambda name: "1.32.0" if name == "onnxruntime" else known(name))


def with_engine(folder: Path, **facts: Any) -> Path:
    return artifacts.linear(folder, engines=[{**ENGINE, **facts}], plan=plan_of("linear"))


class TestWhatRuns:
    def test_an_engine_for_this_gpu_and_tensorrt(self, cuda: Cuda, tmp_path: Path) -> None:
        engines = [{**ENGINE, "target": "sm89"}, ENGINE]
        folder = artifacts.linear(tmp_path / "two.aot", engines=engines, plan=plan_of("linear"))
        with aot.load(folder) as session:
            assert session.label == "engine sm90 (tensorrt 10.6.0)"
        with aot.load(folder, engine="cpu") as session:
            assert session.label == GRAPH
            np.testing.assert_allclose(session(x=X)["y"], X @ WEIGHT)

    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"target": "sm89"}, "it is for sm89, and GPU 0 is a NVIDIA H200 (sm90)"),
            ({"version": "11.4.0"}, "it was built by TensorRT 11.4.0, and 10.6.0 is installed"),
            ({"backend": "tensorrt_rtx"}, "it was built by TensorRT-RTX 10.6.0, and 1.7.1 is installed"),
            ({"backend": "another"}, "it is an engine of another, which this aot does not know"),
        ],
    )
    def test_one_that_does_not_fit_is_refused_before_it_is_loaded(
        self, cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], why: str
    ) -> None:
        known = toolchain.version
        monkeypatch.setattr(toolchain, "version", lambda name: "1.7.1" if "rtx" in name else known(name))
        folder = with_engine(tmp_path / "other.aot", **facts)
        with aot.load(folder) as session:  # the graph, and the label says so
            assert session.label == GRAPH
        target = facts.get("target", "sm90")
        with pytest.raises(TargetError) as raised:
            aot.load(folder, engine=target)
        assert raised.value.what == f"the engine for {target} does not run here: {why}"
        assert raised.value.fix == f"the artifact holds {target}; engine='cpu' runs its final graph on onnxruntime"
        assert cuda.retained == 0

    def test_without_a_gpu_the_graph(self, tmp_path: Path) -> None:
        folder = with_engine(tmp_path / "here.aot")
        assert aot.load(folder).label == GRAPH
        with pytest.raises(TargetError, match="does not run here: the CUDA driver does not load"):
            aot.load(folder, engine="sm90")

    def test_a_gpu_of_another_number(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake_cuda.install(monkeypatch, gpus=1)
        with pytest.raises(TargetError, match="there is no GPU 3: CUDA sees 1"):
            aot.load(with_engine(tmp_path / "here.aot"), engine="sm90", device=3)

    def test_an_engine_that_the_artifact_does_not_hold(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="unknown engine 'sm80'") as raised:
            aot.load(with_engine(tmp_path / "here.aot"), engine="sm80")
        assert "there are: cpu, sm90" in str(raised.value.fix)

    def test_where_nothing_runs_every_reason_is_given(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        folder = artifacts.write(
            tmp_path / "program.aot",
            None,
            inputs={"x": ("float32", ["batch", 3])},
            outputs={"y": ("float32", ["batch", 2])},
            profiles=[artifacts.DIMS],
            engines=[{**ENGINE, "target": "sm89"}],
        )
        fake_cuda.install(monkeypatch)
        with pytest.raises(TargetError, match="nothing in the artifact runs here") as raised:
            aot.load(folder)
        assert "sm89: it is for sm89, and GPU 0 is a NVIDIA H200 (sm90); cpu: it holds no ONNX graph" in str(
            raised.value.where
        )
        monkeypatch.setattr(toolchain, "version", lambda name: None)
        with pytest.raises(TargetError) as raised:
            aot.load(artifacts.linear(tmp_path / "graph.aot"))
        assert raised.value.fix == "pip install onnxruntime"


class TestFiles:
    def damaged(self, folder: Path) -> Path:
        path = folder / "engines/sm90.plan"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        return folder

    def test_a_damaged_engine_is_named_and_not_loaded(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = self.damaged(with_engine(tmp_path / "a.aot"))
        with pytest.raises(ArtifactError, match="damaged: its SHA-256 differs") as raised:
            aot.load(folder)
        assert raised.value.where == f"{folder}/engines/sm90.plan"
        with pytest.raises(EngineError, match="cannot load the engine"):  # TensorRT's own word, unasked before
            aot.load(folder, verify=False)

    def test_only_what_is_loaded_is_read(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = self.damaged(with_engine(tmp_path / "a.aot"))
        assert aot.load(folder, engine="cpu").label == GRAPH

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda path: path.unlink(), "cannot be read: No such file"),
            (lambda path: path.write_bytes(b"short"), "has 5 bytes instead of"),
            (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "a link that leaves it"),
        ],
    )
    def test_a_graph_that_is_not_the_one_that_was_packed(
        self, tmp_path: Path, change: Callable[[Path], Any], says: str
    ) -> None:
        folder = artifacts.linear(tmp_path / "a.aot")
        change(folder / "graph/model.onnx")
        with pytest.raises(ArtifactError, match=says) as raised:
            aot.load(folder)
        assert raised.value.where == f"{folder}/graph/model.onnx"

    def test_a_tar_is_unpacked_once(self, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "a.aot")
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(folder, arcname=".")
        for _ in range(2):
            with aot.load(tmp_path / "a.tar") as session:
                np.testing.assert_allclose(session(x=X)["y"], X @ WEIGHT)

    def test_kernels_that_python_launches_are_learnt_first(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = with_engine(tmp_path / "a.aot")
        made: Compiled = kernel()
        (folder / "engines/sm90.kernels").write_text(json.dumps([{"nodes": ["n"], "kernels": [made.to_json()]}]))
        found = json.loads((folder / "manifest.json").read_text())
        found["files"] = artifacts.listed(folder)
        (folder / "manifest.json").write_text(json.dumps(found))
        with aot.load(folder) as session:
            assert session.label.startswith("engine")
        assert plugin_v3.Launcher("n", [made]).key in plugin_v3._known
        (folder / "engines/sm90.kernels").write_text("[]")
        with pytest.raises(ArtifactError, match="instead of"):
            aot.load(folder)

    def test_options_that_cannot_be(self, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "a.aot")
        for contexts in (0, -1, "2"):
            with pytest.raises(UsageError, match="no call could run"):
                aot.load(folder, contexts=contexts)  # type: ignore[arg-type]
        for engine in (90, ["cpu"]):
            with pytest.raises(UsageError, match="unknown engine"):
                aot.load(folder, engine=engine)  # type: ignore[arg-type]


class TestManifest:
    def edited(self, folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
        artifacts.linear(folder)
        found = json.loads((folder / "manifest.json").read_text())
        edit(found)
        (folder / "manifest.json").write_text(json.dumps(found))
        return folder

    @pytest.mark.parametrize(
        ("edit", "says"),
        [
            (lambda m: m.pop("schema_version"), "not one of aot's"),
            (lambda m: m.update(schema_version=99), "schema version 99, and this aot reads up to 2"),
            (lambda m: m.pop("plan"), "the manifest is damaged: it lacks 'plan'"),
            (lambda m: m["spec"]["dims"].update(batch=[1, 2]), "the manifest is damaged: not enough values"),
            (lambda m: m.update(files=3), "the manifest is damaged"),
            (lambda m: m["spec"]["dims"].update(batch=[1, 2, float("inf")]), "the manifest is damaged: cannot convert"),
            (lambda m: m["spec"]["inputs"]["x"].update(shape=[-1, 3]), "the manifest is damaged: a shape holds -1"),
            (lambda m: m["spec"]["inputs"]["x"].update(shape=[[], 3]), r"damaged: a shape holds \[\]"),
            (lambda m: m["spec"]["inputs"]["x"].update(shape=["b", 3]), "damaged: no Dim is called 'b'"),
            (lambda m: m["spec"]["inputs"]["x"].update(dtype="real"), "damaged: data type 'real' not understood"),
            (lambda m: m["plan"].update(profiles=[{}]), "the manifest is damaged: it lacks 'batch'"),
            (lambda m: m["spec"].update(inputs={}), "the graph and the manifest differ on 'x'"),
            (lambda m: m["io"].update(outputs=[]), "the graph and the manifest differ on 'y'"),
            (
                lambda m: m.update(engines=[{"engine": {"facts": {**ENGINE, "file": "../../etc/passwd"}}}]),
                "an engine's file is called",
            ),
            (lambda m: m["files"].update({"graph/../../x": {"bytes": 1, "sha256": ""}}), "cannot be read|leaves it"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(
        self, tmp_path: Path, edit: Callable[[dict[str, Any]], Any], says: str
    ) -> None:
        with pytest.raises(ArtifactError, match=says):
            aot.load(self.edited(tmp_path / "a.aot", edit))

    def test_what_is_no_artifact(self, tmp_path: Path) -> None:
        for name, says in (("nowhere.aot", "no such artifact"), (".", "it has no manifest.json")):
            with pytest.raises(AotError, match=says):
                aot.load(tmp_path / name)
        for text in ("{", "[" * 100_000):
            (tmp_path / "manifest.json").write_text(text)
            with pytest.raises(ArtifactError, match="not JSON"):
                aot.load(tmp_path)
        with pytest.raises(UsageError, match="cannot be read: File name too long"):
            aot.load("x" * 5000)

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "a.aot")
        (folder / "graph/model.onnx").unlink()
        (folder / "graph/model.onnx").symlink_to("model.onnx")
        with pytest.raises(ArtifactError, match="a file of the artifact cannot be read: Too many levels"):
            aot.load(folder)

    @pytest.mark.parametrize(
        ("name", "link"),
        [("graph", None), ("graph/model.onnx/x", None), ("x" * 300, None), ("x", "gone"), ("../x", None)],
    )
    def test_a_tar_whose_members_cannot_be(self, tmp_path: Path, name: str, link: str | None) -> None:
        odd = tarfile.TarInfo(name)
        if link is not None:
            odd.type, odd.linkname = tarfile.LNKTYPE, link
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(artifacts.linear(tmp_path / "a.aot"), ".")
            tar.addfile(odd)
        with pytest.raises(ArtifactError, match="not a readable tar") as raised:
            aot.load(tmp_path / "a.tar")
        assert str(raised.value.where).startswith(str(tmp_path / "a.tar"))

    def test_a_declaration_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        side, total = Dim("side", min=32, opt=64, max=96, multiple_of=32), np.float32(1.5)
        spec = ModelSpec(
            "m",
            {"ids": Input([side], "int64", low=3, high=9), "state_total": Input([1, side])},
            kept={"state_total": State("total", "state_total_out", base64.b64encode(total.tobytes()).decode())},
        )
        plan = {"precision": "fp32", "profiles": [{"side": [32, 64, 96]}]}
        folder = self.edited(tmp_path / "a.aot", lambda m: m.update(spec=spec.to_json(), plan=plan))
        found = manifest.read(str(folder))
        assert [str(tensor) for tensor in found.inputs.values()] == ["int64 [side]", "float32 [1, side]"]
        assert (found.dims, found.multiples, found.lows) == ({"side": (32, 64, 96)}, {"side": 32}, {"ids": 3})
        assert found.states == {"state_total": manifest.State("state_total_out", total.tobytes())}

    def test_what_a_build_writes_is_what_is_read(self, tmp_path: Path) -> None:
        """Of an artifact that `aot build` would write, with an engine for the CPU."""
        shop = Workshop(tmp_path / "store")
        prepared, engine = shop.prepared(), shop.cpu_engine()
        plan = replace(PLAN, backend="onnxruntime", targets=("cpu",))
        report = verify_engine(shop.run, engine, prepared, plan)
        package(shop.run, prepared, plan, [engine], [report], tmp_path / "tiny.aot")
        found = manifest.read(str(tmp_path / "tiny.aot"))
        assert {name: str(tensor) for name, tensor in found.inputs.items()} == {"x": "float32 [batch, 3]"}
        assert {name: str(tensor) for name, tensor in found.outputs.items()} == {"y": "float32 [batch, 2]"}
        assert (found.dims, found.profiles) == ({"batch": (1, 2, 4)}, ({"batch": (1, 2, 4)},))
        with aot.load(tmp_path / "tiny.aot") as session:
            assert session.label == "engine cpu (onnxruntime 1)"
            np.testing.assert_allclose(session(x=X)["y"], X @ WEIGHT)
