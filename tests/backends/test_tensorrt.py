"""The tensorrt backend up to the vendor's call, against a stand-in for the module that records what is asked.

Whether the real builder takes it is seen on a GPU only (tests/gpu).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.backend import Job, get
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError, GraphError, ProfileError, TargetError
from aot.progress import Silent
from aot.store import Store
from aot.timing_cache import TimingCaches
from aot.toolchain import Gpu, Machine
from tests.backends import fake_tensorrt
from tests.backends.fake_tensorrt import H200, Severity
from tests.backends.graphs import write

batch = Dim("batch", min=1, opt=4, max=8)
SPEC = ModelSpec("m", {"x": Input([batch, 4])})
PROFILES = ({"batch": (1, 1, 2)}, {"batch": (2, 4, 8)})
CPU_ONLY = Machine(None, None, "a CPU")


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> Any:
    return fake_tensorrt.install(monkeypatch)


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx", "g (float[b, 4] x) => (float[b, 4] y) { y = Relu(x) }")


def job(graph: Path, spec: ModelSpec = SPEC, **options: Any) -> Job:
    return Job(graph, spec, "fp16", PROFILES, "sm90", EngineOptions(**options))


def test_several_profiles_and_the_options_reach_the_builder(trt: Any, relu: Path, tmp_path: Path) -> None:
    facts = get("tensorrt").build(
        job(relu, optimization_level=1, workspace_mib=64), tmp_path / "e.plan", None, Silent()
    )
    assert (tmp_path / "e.plan").read_bytes() == b"plan"
    config = trt.builders[-1].config
    assert [p.shapes["x"] for p in config.profiles] == [((1, 4), (1, 4), (2, 4)), ((2, 4), (4, 4), (8, 4))]
    assert config.builder_optimization_level == 1
    assert config.limits == {"workspace": 64 << 20}
    assert facts["origin"] == {"gpu": "NVIDIA H200", "driver": "580.65.06"}


@pytest.mark.parametrize(("tf32", "flags"), [(False, set()), (True, {"tf32"})])
def test_fp32_is_fp32_unless_tf32_is_asked_for(
    trt: Any, relu: Path, tmp_path: Path, tf32: bool, flags: set[str]
) -> None:
    get("tensorrt").build(job(relu, tf32=tf32), tmp_path / "e.plan", None, Silent())
    assert trt.builders[-1].config.flags == flags


@pytest.mark.parametrize(("version", "flags"), [("10.6.0", 1 << 1), ("11.4.0.106", 0)])
def test_the_network_is_strongly_typed_in_10_and_in_11(
    monkeypatch: pytest.MonkeyPatch, relu: Path, tmp_path: Path, version: str, flags: int
) -> None:
    trt = fake_tensorrt.install(monkeypatch, version)
    get("tensorrt").build(job(relu), tmp_path / "e.plan", None, Silent())
    assert trt.builders[-1].network.flags == flags


def test_values_of_a_shape_input_are_profiled(trt: Any, tmp_path: Path) -> None:
    """Case C35."""
    graph = write(tmp_path / "m.onnx", "g (int64[2] hw) => (float[h, w] y) { y = ConstantOfShape(hw) }")
    spec = ModelSpec("m", {"hw": Input([2], "int64", low=2, high=65)})
    made = Job(graph, spec, "fp16", ({},), "sm90", EngineOptions())
    facts = get("tensorrt").build(made, tmp_path / "e.plan", None, Silent())
    assert trt.builders[-1].config.profiles[0].values == {"hw": ((2, 2), (33, 33), (64, 64))}
    assert facts["shape_inputs"] == ["hw"]

    unbounded = Job(graph, ModelSpec("m", {"hw": Input([2], "int64")}), "fp16", ({},), "sm90", EngineOptions())
    with pytest.raises(ProfileError, match="'hw'"):
        get("tensorrt").build(unbounded, tmp_path / "e.plan", None, Silent())


def test_a_refused_node_is_named(trt: Any, tmp_path: Path) -> None:
    graph = write(tmp_path / "m.onnx", "g (float[b, 4, 4] x) => (float[b] y) { r = Relu(x)  y = Det(r) }")
    with pytest.raises(GraphError, match=r"TensorRT 10.6.0 does not take Det") as caught:
        get("tensorrt").check_graph(graph)
    assert caught.value.what == "TensorRT 10.6.0 does not take Det: it is none of its ops"
    assert caught.value.where == "node 'n1' (Det)"


def test_a_refused_build_gives_the_last_errors_and_the_node(trt: Any, relu: Path, tmp_path: Path) -> None:
    trt.says = [
        (Severity.WARNING, "x.cpp:1: Make sure input x has Int64 binding."),
        (Severity.ERROR, "IBuilder: Error Code 10: Could not find any implementation for node n0."),
    ]
    with pytest.raises(EngineError, match="Could not find any implementation for node n0") as caught:
        get("tensorrt").build(job(relu), tmp_path / "e.plan", None, Silent())
    assert caught.value.where == "node 'n0' (Relu)"
    assert "placement.keep" in str(caught.value.fix)
    assert not (tmp_path / "e.plan").exists()


def test_warnings_are_shown_once_and_without_noise(trt: Any, relu: Path, tmp_path: Path) -> None:
    trt.says = [
        (Severity.WARNING, "ModelImporter.cpp:1071: Make sure input x has Int64 binding."),
        (Severity.WARNING, "a.cpp:3: weights of layer 3 lose 7 values"),
        (Severity.WARNING, "a.cpp:3: weights of layer 4 lose 9 values"),
    ]
    progress = Silent()
    get("tensorrt").build(job(relu), tmp_path / "e.plan", None, progress)
    assert progress.warnings == ["TensorRT: weights of layer 3 lose 7 values"]


def test_ctrl_c_ends_the_build_at_the_builders_next_step(
    trt: Any, relu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builder works for as long as its monitor lets it; the interrupt arrives while progress is drawn."""

    def endless(self: Any, network: Any, config: Any) -> None:
        config.progress_monitor.phase_start("Building", None, 1000)
        for step in range(1000):
            if not config.progress_monitor.step_complete("Building", step):
                ended.set()
                return
            ended.wait(0.05)

    class Interrupted(Silent):
        def step(self, done: int, total: int, what: str = "") -> None:
            raise KeyboardInterrupt

    ended = threading.Event()
    monkeypatch.setattr(trt.Builder, "build_serialized_network", endless)
    with pytest.raises(KeyboardInterrupt):
        get("tensorrt").build(job(relu), tmp_path / "e.plan", None, Interrupted())
    assert ended.is_set()
    assert not (tmp_path / "e.plan").exists()


def test_the_timing_cache_is_kept_between_builds(trt: Any, relu: Path, tmp_path: Path) -> None:
    caches = TimingCaches(Store(tmp_path / "store"))
    first = get("tensorrt").build(job(relu), tmp_path / "e.plan", caches, Silent())
    second = get("tensorrt").build(job(relu), tmp_path / "e.plan", caches, Silent())
    assert first["timing_cache"] == {"used": False, "saved": True}
    assert second["timing_cache"] == {"used": True, "saved": True}
    kept = caches.path("tensorrt 10.6.0 NVIDIA H200 580.65.06")
    assert kept.name == "tensorrt-10.6.0-NVIDIA-H200-580.65.06.cache"
    assert kept.read_bytes().endswith(b"\nkernel of n0")
    assert (tmp_path / "e.timing").read_bytes() == b"kernel of n0"  # the vendor's bytes, for the artifact


@pytest.mark.parametrize(
    ("version", "machine", "precision", "target", "says"),
    [
        ("10.6.0", CPU_ONLY, "fp16", "sm90", "builds on the GPU it builds for, and here is none"),
        ("10.6.0", H200, "fp16", "sm89", r"this is NVIDIA H200 \(sm90\)"),
        ("10.5.0", H200, "fp16", "sm90", "10.5.0 is too old"),
        ("10.6.0", Machine(Gpu("A100", "sm80", 1), "1", ""), "fp8", "sm80", "sm80 has no FP8: it begins with sm89"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, version: str, machine: Machine, precision: Any, target: str, says: str
) -> None:
    fake_tensorrt.install(monkeypatch, version)
    with pytest.raises(TargetError, match=says) as caught:
        get("tensorrt").check(precision, target, machine)
    assert caught.value.fix


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_every_precision_is_taken_on_an_h200(trt: Any, precision: Any) -> None:
    get("tensorrt").check(precision, "sm90", H200)


def test_without_tensorrt_the_check_says_what_to_install() -> None:
    with pytest.raises(TargetError, match="not installed"):
        get("tensorrt").check("fp16", "sm90", H200)


def test_can_run_says_why_not(trt: Any) -> None:
    backend = get("tensorrt")
    assert backend.can_run("sm90", H200) is None
    assert backend.can_run("sm90", CPU_ONLY) == "no GPU on this machine"
    assert backend.can_run("sm89", H200) == "it is for sm89 and this machine has sm90"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ('{"target": "sm89", "version": "10.6.0"}', r"is for sm89, and this machine has NVIDIA H200 \(sm90\)"),
        ('{"target": "sm90", "version": "11.4.0"}', r"built by TensorRT 11.4.0, and 10.6.0 is installed"),
        ('{"target": "sm90", "version": "10.6.0"}', r"TensorRT 10.6.0 on NVIDIA H200 \(sm90\) cannot load"),
        ("not json", "an unknown version for an unknown GPU: .*Version tag does not match"),
    ],
)
def test_an_engine_of_another_gpu_or_version_is_refused(trt: Any, tmp_path: Path, facts: str, says: str) -> None:
    plan = tmp_path / "sm90.plan"
    plan.write_bytes(b"plan")
    plan.with_suffix(".json").write_text(facts)
    with pytest.raises(EngineError, match=says):
        get("tensorrt").open(plan, SPEC, PROFILES)


def test_no_gpu_no_session(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no GPU on this machine"):
        get("tensorrt").open(tmp_path / "e.plan", SPEC, PROFILES)


def test_weights_are_not_needed_to_name_a_node(tmp_path: Path, trt: Any) -> None:
    graph = write(tmp_path / "m.onnx", "g (float[b, 4] x) => (float[b] y) { y = Det(w) }", w=np.ones((2, 2)))
    with pytest.raises(GraphError, match="Det"):
        get("tensorrt").check_graph(graph)
