"""The kernels of a graph's plugins: what is compiled for which nodes, what is left without, and that all of it is told.

Kernels are made up where what the compiler does with them is not the point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from aot import toolchain
from aot.config import Request
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.plan import Plan, choose, decide
from aot.plugins import tuned
from aot.plugins.compiling import Job
from aot.plugins.header import Header, read
from aot.plugins.nodes import plugin_nodes
from aot.plugins.sizes import Varies
from aot.progress import Silent
from aot.records import Kernels
from aot.run import Run
from aot.runtime.kernels import Compiled
from aot.stages import kernels as stage
from aot.stages.build import build_engine
from aot.store import Store
from tests.backends import fake_tensorrt
from tests.plugins.graphs import final
from tests.plugins.projects import write

BATCH = Dim("b", min=1, opt=4, max=8)
SPEC = ModelSpec("m", {"x": Input([BATCH, 8])})
FIXED = (
    "def launch(shapes, attributes, config):\n",
    "def launch(shapes, attributes, config):\n    fixed(shapes.x[0])\n",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Store(tmp_path / "store"), Silent())


@pytest.fixture
def plan(project: Path) -> Plan:
    request = Request(model="m.py", precision="fp32", until="graph", targets=("sm90",))
    return decide(request, choose(request, project), SPEC)


def warnings(run: Run) -> list[str]:
    assert isinstance(run.progress, Silent)
    return run.progress.warnings


def compiled(job: Job, code: str = "code", **changes: Any) -> Compiled:
    made = Compiled(
        "mine::triple", job.target, "kernel", code, 32, 0, 8, 0, ("x",), job.dtypes, job.dtypes,
        (["size", "x", 0], 1, 1), {}, ([["size", "x", 0], 8],), {}, hashlib.sha256(code.encode()).hexdigest(), "0" * 64,
    )  # fmt: skip
    return replace(made, **changes)


class Compiler:
    """In the place of `compile_each`: `gives` for every job; the jobs are kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gives: dict[str, Any] | Varies) -> None:
        self.jobs: list[Job] = []
        self._gives = gives or ({},)
        monkeypatch.setattr(stage, "compile_each", self)
        monkeypatch.setattr(stage, "devices", lambda *_: ())  # what the kernels compute is not the point either

    def __call__(self, header: Header, wanted: Sequence[Job]) -> list[tuple[Compiled, ...] | Varies]:
        self.jobs += wanted
        first = self._gives[0]
        if isinstance(first, Varies):
            return [first for _ in wanted]
        return [tuple(compiled(job, **given) for given in self._gives if isinstance(given, dict)) for job in wanted]


def test_nodes_that_are_alike_have_one_kernel(run: Run, plan: Plan, tmp_path: Path) -> None:
    """The compiler itself, for every config; the code is for the target asked for."""
    made = stage.kernels(run, final(tmp_path), plan, "sm90")
    assert made is not None
    (group,) = made.facts["kernels"]
    assert (group["plugin"], group["nodes"]) == ("mine::triple", ["n0", "n1"])
    assert made.facts["left"] == warnings(run) == []
    ((first,), second) = made.by_node()["n0"], made.by_node()["n1"]
    assert second == (first,)
    assert ".target sm_90a" in first.code
    assert group["digests"] == [hashlib.sha256(first.code.encode()).hexdigest()]
    assert first.launched([(5, 8)]) == ((3, 1, 1), (40,))  # 40 elements, 16 a program
    again = stage.kernels(run, final(tmp_path), plan, "sm90")
    assert again is not None
    assert again.entry.cached


def test_attributes_and_sizes_tell_kernels_apart(
    run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    text = """g (float[b, 8] x, float[b, 4] v) => (float[b, 8] z, float[b, 4] w) {
        y = mine.triple <shift = 1.0> (x)  z = mine.triple <shift = 2.0> (y)  w = mine.triple <shift = 2.0> (v) }"""
    stage.kernels(run, final(tmp_path, text), plan, "sm90")
    assert [(job.attributes, job.shapes, job.dtypes, job.config) for job in compiler.jobs] == [
        ({"shift": 1.0}, {"x": (None, 8)}, ("float32",), None),
        ({"shift": 2.0}, {"x": (None, 8)}, ("float32",), None),
        ({"shift": 2.0}, {"x": (None, 4)}, ("float32",), None),
    ]


def test_what_was_tuned_is_compiled_alone(
    run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(monkeypatch)
    monkeypatch.setattr(tuned, "best", lambda header, target, dtypes, shapes, **_: 0)
    stage.kernels(run, final(tmp_path), plan, "sm90")
    assert [job.config for job in compiler.jobs] == [0]


def test_a_size_known_in_one_place_is_known_wherever_its_name_stands(tmp_path: Path) -> None:
    """The width of x varies in the graph; that of the weight, which is the same, does not."""
    header = read(Path(__file__).parents[2] / "plugins" / "add_rms_norm.py")
    infos = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shape)
        for name, shape in {"x": ["a", "b", "w"], "r": ["a", 3, "w"], "g": [64]}.items()
    }
    node = onnx.helper.make_node("add_rms_norm", ["x", "r", "g"], ["y", "t"], "n", domain="aot", eps=0.5)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", list(infos.values()), []))
    import onnx_ir as ir

    (found,) = plugin_nodes(ir.serde.deserialize_model(model), header)
    assert found.call is not None
    assert found.call.shapes == {"x": (None, 3, 64), "residual": (None, 3, 64), "weight": (64,)}
    assert found.call.attributes == {"eps": 0.5}


def test_kernels_that_a_target_has_no_shared_memory_for_are_left_out(
    run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Compiler(monkeypatch, {"code": "small", "shared": 90 << 10}, {"code": "large", "shared": 200 << 10})
    graph = final(tmp_path)
    codes = {}
    for target in ("sm89", "sm90"):
        made = stage.kernels(run, graph, plan, target)
        assert made is not None
        codes[target] = [kernel.code for kernel in made.by_node()["n0"]]
    assert codes == {"sm89": ["small"], "sm90": ["small", "large"]}
    Compiler(monkeypatch, {"shared": 228 << 10})
    assert stage.kernels(replace(run, fresh=True), graph, plan, "sm90") is not None
    assert warnings(run) == [
        "triple runs as the ops of its reference on sm90: its kernel takes 228 KiB of shared memory at the least, and "
        "a program has 227"
    ]


def test_two_configs_that_come_to_one_kernel_are_one(
    run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Compiler(monkeypatch, {"config": {"num_warps": 4}}, {"config": {"num_warps": 8}}, {"code": "other"})
    made = stage.kernels(run, final(tmp_path), plan, "sm90")
    assert made is not None
    assert [kernel.config for kernel in made.by_node()["n0"]] == [{"num_warps": 4}, {}]


class TestLeft:
    """What has no kernel runs as its function; the warning says why, and what to do."""

    def test_a_size_that_must_be_fixed_and_varies(self, run: Run, plan: Plan, project: Path, tmp_path: Path) -> None:
        changed = ("import Launch, ceil_div", "import Launch, ceil_div, fixed")
        write(project, "triple", changed, FIXED)
        made = stage.kernels(run, final(tmp_path), plan, "sm90")
        assert made is not None
        assert made.by_node() == {}
        (warning,) = warnings(run)
        assert warning.startswith("triple runs as the ops of its reference on sm90: plugin triple for sm90, float32: ")
        assert "must be fixed, and x[0] varies; give that axis a number in place of a Dim" in warning
        (left,) = made.left
        assert left["nodes"] == ["n0", "n1"]

    def test_a_target_that_triton_does_not_know(self, run: Run, plan: Plan, tmp_path: Path) -> None:
        assert stage.kernels(run, final(tmp_path), plan, "sm75") is None
        (warning,) = warnings(run)
        assert warning.startswith("triple runs as the ops of its reference on sm75: kernels are compiled for sm80, ")

    def test_no_triton(self, run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_triton(monkeypatch)
        assert stage.kernels(run, final(tmp_path), plan, "sm90") is None
        (warning,) = warnings(run)
        assert "pip install 'aot-engine[plugins]', or finish an artifact that was prepared with" in warning

    def test_no_file(self, run: Run, plan: Plan, tmp_path: Path) -> None:
        assert stage.kernels(run, final(tmp_path), replace(plan, project=tmp_path), "sm90") is None
        assert warnings(run) == ["triple runs as the ops of its reference on sm90: plugins/triple.py is not here"]

    def test_no_target(self, run: Run, plan: Plan, tmp_path: Path) -> None:
        prepared: Any = Carrier(final(tmp_path))
        assert stage.carrying(run, prepared, replace(plan, meant=())).kernels == ()
        (warning,) = warnings(run)
        assert stage.carrying(run, prepared, replace(plan, meant=())).notices == (warning,)
        assert warning.startswith("no target was named, so no kernel of triple was compiled: --target sm89, ")

    def test_an_error_of_the_plugin_ends_the_build(
        self, run: Run, plan: Plan, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stage, "devices", lambda *_: ())  # which would see it first
        write(project, "triple", ("value * 3.0 + SHIFT", "valeu * 3.0 + SHIFT"))
        with pytest.raises(PluginError, match="triple for sm90, float32: the kernel does not compile") as caught:
            stage.kernels(run, final(tmp_path), plan, "sm90")
        assert str(project / "plugins" / "triple.py") in str(caught.value.where)


@dataclass(frozen=True)
class Carrier:
    """A `Prepared` as far as kernels go: no more is asked of it."""

    final: Any
    kernels: tuple[Kernels, ...] = ()
    replaced: tuple[Any, ...] = ()
    notices: tuple[str, ...] = ()


def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    known = toolchain.version
    monkeypatch.setattr(toolchain, "version", lambda name: None if name == "triton" else known(name))


def test_kernels_that_were_brought_along_need_neither_triton_nor_the_plugins_file(
    run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Compiler(monkeypatch)
    graph = final(tmp_path)
    made = stage.kernels(run, graph, plan, "sm90")
    assert made is not None
    without_triton(monkeypatch)
    elsewhere = replace(plan, project=tmp_path)
    assert stage.kernels(run, graph, elsewhere, "sm90", [made]) is made
    assert warnings(run) == []


class TestEngine:
    """The engine of TensorRT 10.6, up to the vendor's call."""

    @pytest.fixture
    def trt(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(stage, "devices", lambda *_: ())
        return fake_tensorrt.install(monkeypatch)

    def engine(self, run: Run, plan: Plan, tmp_path: Path, kernels: Kernels | None) -> Any:
        built = replace(plan, backend="tensorrt", targets=("sm90",))
        return build_engine(run, final(tmp_path), SPEC, built, "sm90", kernels)

    def test_launches_its_kernels_and_says_so(
        self, trt: Any, run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Compiler(monkeypatch)
        made = stage.kernels(run, final(tmp_path), plan, "sm90")
        facts = self.engine(run, plan, tmp_path, made).facts
        assert [layer.name for layer in trt.builders[-1].network.plugins] == ["n0", "n1"]
        (launched,) = facts["kernels"]
        assert (launched["plugin"], launched["nodes"], launched["target"]) == ("mine::triple", ["n0", "n1"], "sm90")
        assert launched["needs_python"] is True
        assert launched["digests"] == [hashlib.sha256(b"code").hexdigest()]
        assert "expanded" not in facts
        assert warnings(run) == []

    def test_expands_what_has_none(
        self, trt: Any, run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """n0 has a kernel and n1, of another width, none."""
        text = """g (float[b, 8] x, float[b, 4] v) => (float[b, 8] y, float[b, 4] w) {
            y = mine.triple <shift = 1.0> (x)  w = mine.triple <shift = 1.0> (v) }"""
        graph = final(tmp_path, text, "w" * 64)

        def half(header: Header, wanted: Sequence[Job]) -> list[tuple[Compiled, ...] | Varies]:
            return [(compiled(job),) if job.shapes["x"][1] == 8 else Varies("it varies") for job in wanted]

        monkeypatch.setattr(stage, "compile_each", half)
        made = stage.kernels(run, graph, plan, "sm90")
        spec = ModelSpec("m", {"x": Input([BATCH, 8]), "v": Input([BATCH, 4])})
        built = replace(plan, backend="tensorrt", targets=("sm90",))
        facts = build_engine(run, graph, spec, built, "sm90", made).facts
        network = trt.builders[-1].network
        assert [layer.name for layer in network.plugins] == ["n0"]
        assert len(network.nodes) > 2  # the ops of the reference stand in the place of n1
        assert facts["expanded"] == ["triple"]
        assert warnings(run) == ["triple runs as the ops of its reference on sm90: it varies"]

    def test_is_built_from_the_functions_by_a_backend_that_launches_no_kernels(
        self, run: Run, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TensorRT-RTX itself; the artifact carries kernels for the target."""
        Compiler(monkeypatch)
        made = stage.kernels(run, final(tmp_path), plan, "sm90")
        assert made is not None
        built = replace(plan, backend="tensorrt_rtx", targets=("sm89",))
        carrier: Any = Carrier(final(tmp_path), (made,))
        carried = stage.carrying(run, carrier, built)
        facts = build_engine(run, final(tmp_path), SPEC, built, "sm89", made).facts
        assert facts["expanded"] == ["triple"]
        assert "kernels" not in facts
        said = "TensorRT-RTX launches no kernels of plugins yet: triple became the ops of its reference"
        assert warnings(run) == list(carried.notices) == [said]

    def test_another_kernel_is_another_engine(
        self, trt: Any, run: Run, plan: Plan, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = [self.engine(run, plan, tmp_path, None).key]
        for width in ("16", "32"):
            Compiler(monkeypatch, {"code": width})
            file = write(project, "triple", ('"block": 16', f'"block": {width}'))
            assert file.is_file()
            keys.append(self.engine(run, plan, tmp_path, stage.kernels(run, final(tmp_path), plan, "sm90")).key)
        assert len(set(keys)) == 3
