"""Attention as kernels: when, what is compiled, what the engine launches, and what is said of the rest.

Kernels are made up, for what the compiler does with them is not the point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from aot import content, toolchain
from aot.config import Patterns, Request
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import UsageError
from aot.plan import Plan, choose, decide
from aot.plugins import header as headers
from aot.plugins import tuned
from aot.plugins.compiling import Job
from aot.plugins.header import Header
from aot.plugins.replacing import NOTHING, decided
from aot.plugins.sizes import Varies
from aot.progress import Silent
from aot.records import Kernels, QuantizedGraph
from aot.run import Run
from aot.runtime.kernels import Compiled
from aot.stages import kernels as stage
from aot.stages.build import build_engine
from aot.store import Entry, Store
from tests.backends import fake_tensorrt
from tests.passes.test_attention_kernel import SCALED
from tests.passes.test_limits import HEAD

B, S = Dim("B", min=1, opt=4, max=8), Dim("S", min=1, opt=16, max=64)
SPEC = ModelSpec("m", {**{name: Input([B, S, 32], "float16") for name in "xzw"}, "m": Input([B, 1, 1, S], "float16")})
NODE = "o_attention"
STAYS = "attention stays two MatMuls and a Softmax"


def final(folder: Path, text: str = SCALED, key: str = "k" * 64) -> QuantizedGraph:
    """The graph as the record of a finished stage; each node is called as its value."""
    import onnx

    (folder / key).mkdir(exist_ok=True)
    model = onnx.shape_inference.infer_shapes(
        onnx.parser.parse_model(HEAD + text.replace("T]", "S]").replace("T,", "S,"))
    )
    for node in model.graph.node:
        node.name = node.output[0]
        node.metadata_props.add(key="aot.module", value="encoder.0")
        node.metadata_props.add(key="aot.source", value="bert.py:7")
    onnx.save(model, folder / key / "model.onnx")
    return QuantizedGraph(Entry("quantize", key, folder / key, {"nodes": len(model.graph.node)}))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Store(tmp_path / "store"), Silent())


def made(project: Path, asked: bool = False, none: bool = False, **changes: Any) -> Plan:
    patterns = Patterns(plugins=("attention",) if asked else (), measured=not none)
    request = Request(model="m.py", precision="fp16", until="graph", targets=("sm90",), patterns=patterns)
    return replace(decide(request, choose(request, project), SPEC), **changes)


def warnings(run: Run) -> list[str]:
    assert isinstance(run.progress, Silent)
    return run.progress.warnings


def compiled(job: Job) -> Compiled:
    inputs = ("q", "k", "v", "mask")
    return Compiled(
        "aot::attention", job.target, "kernel", "code", 128, 0, 8, 0, inputs, job.dtypes, job.dtypes[:1],
        (["size", "q", 1], 1, 1), {}, ([["size", "q", 0], ["size", "q", 1], 32],), {},
        hashlib.sha256(b"code").hexdigest(), "5" * 64,
    )  # fmt: skip


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What is to be compiled, which gives made up kernels."""
    asked: list[Job] = []

    def compile_each(header: Header, wanted: Sequence[Job]) -> list[tuple[Compiled, ...]]:
        asked.extend(wanted)
        return [(compiled(job),) for job in wanted]

    monkeypatch.setattr(stage, "compile_each", compile_each)
    return asked


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say what tuning found on sm90: whether kernels are faster there (None: nothing)."""

    def found(faster: bool | None) -> None:
        header = headers.read(content.names("plugins")["attention"])
        entry = tuned.Entry(
            "NVIDIA H200", "sm90", ("float16",) * 4,
            {"batch": 4, "queries": 16, "width": 32, "keys": 16, "kv_width": 32},
            {"queries": 64, "keys": 32, "num_warps": 4, "num_stages": 2}, 1.0 if faster else 3.0, 1, 1,
            {}, tuned.source(header), "", None, None, 2.0,
        )  # fmt: skip
        entries = [] if faster is None else [entry]
        monkeypatch.setattr(tuned, "entries", lambda header, project=None: (entries, []))
        monkeypatch.setattr(tuned, "file_of", lambda name, folder: header.file)

    return found


@pytest.mark.parametrize(
    ("how", "faster", "becomes"),
    [
        ({"asked": True}, None, True),
        ({"asked": True}, False, True),
        ({}, True, True),
        ({}, False, False),
        ({}, None, False),
        ({"none": True}, True, False),
        ({"precision": "fp32"}, True, False),
    ],
)
def test_it_is_asked_for_or_measured_to_be_faster(
    run: Run, tmp_path: Path, jobs: list[Job], timings: Any, how: dict[str, Any], faster: bool | None, becomes: bool
) -> None:
    timings(faster)
    got = stage.kernels(run, final(tmp_path), made(tmp_path, **how), "sm90")
    assert (got is not None) == becomes
    assert len(jobs) == becomes
    assert warnings(run) == []
    if got is not None:
        found = got.facts["attention"]
        assert (found["formed"], found["left"]) == ([NODE], [])
        why = "asked for" if "asked" in how else "measured to be faster on sm90"
        about = {"module": "encoder.0", "source": "bert.py:7"}
        assert found["places"] == [{"plugin": "attention", "node": NODE, "replaced": True, "why": why, **about}]
        assert list(got.by_node()) == [NODE]


def test_what_was_measured_holds_for_the_sizes_that_a_profile_is_optimized_for(
    run: Run, tmp_path: Path, jobs: list[Job], timings: Any
) -> None:
    """In every profile; the sizes of an entry are powers of two that are not less."""
    timings(True)
    near, other = {"B": (1, 3, 8), "S": (1, 9, 64)}, {"B": (1, 1, 8), "S": (1, 16, 64)}
    for profiles, becomes in (((near,), True), ((other,), False), ((near, other), False)):
        got = stage.kernels(run, final(tmp_path), made(tmp_path, profiles=profiles), "sm90")
        assert (got is not None) == becomes
    assert len(jobs) == 1
    assert jobs[0].shapes["q"] == (None, None, 32)  # it serves all of them


def test_a_copy_of_heads_was_not_measured_so_it_is_made_where_it_is_asked_for(
    run: Run, tmp_path: Path, jobs: list[Job], timings: Any
) -> None:
    timings(True)
    text = SCALED.replace("q = Mul(qt, scale)", "qr = Tanh(qt)  q = Mul(qr, scale)")
    assert stage.kernels(run, final(tmp_path, text), made(tmp_path), "sm90") is None
    assert jobs == []
    got = stage.kernels(run, final(tmp_path, text), made(tmp_path, asked=True), "sm90")
    assert got is not None
    assert got.facts["attention"]["formed"] == [NODE]


def test_what_is_compiled_is_what_the_graph_says(run: Run, tmp_path: Path, jobs: list[Job]) -> None:
    stage.kernels(run, final(tmp_path), made(tmp_path, asked=True), "sm90")
    (job,) = jobs
    assert job.attributes == {"heads": 2, "causal": False, "scale": 0.25}
    assert job.dtypes == ("float16",) * 4
    assert job.shapes == {**dict.fromkeys("qkv", (None, None, 32)), "mask": (None, None)}


class TestStays:
    """Where no kernel takes its place, and what is said then."""

    def test_what_the_rewrite_cannot_take(self, run: Run, tmp_path: Path, jobs: list[Job]) -> None:
        text = SCALED.replace("[B,1,1,T] m", "[B,1,S,T] m")
        got = stage.kernels(run, final(tmp_path, text), made(tmp_path, asked=True), "sm90")
        why = "its mask is not one of keys, [batch, 1, 1, keys]"
        assert warnings(run) == [f"{STAYS} in 1 place on sm90: {why}"]
        assert got is not None
        assert got.facts["attention"]["formed"] == []
        assert got.facts["attention"]["left"] == [{"why": why, "nodes": ["o"], "told": True}]
        (place,) = got.facts["attention"]["places"]
        assert (place["node"], place["replaced"], place["why"]) == ("o", False, why)

    def test_a_kernel_that_does_not_come_to_be(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timings: Any
    ) -> None:
        timings(True)
        monkeypatch.setattr(stage, "compile_each", lambda header, jobs: [Varies("it varies") for _ in jobs])
        assert stage.kernels(run, final(tmp_path), made(tmp_path), "sm90") is None
        assert warnings(run) == [f"{STAYS} in 1 place on sm90: it varies"]

    def test_no_triton(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        without_triton(monkeypatch)
        assert stage.kernels(run, final(tmp_path), made(tmp_path, asked=True), "sm90") is None
        (warning,) = warnings(run)
        assert warning.startswith(f"{STAYS} on sm90: triton, which compiles its kernel, is not installed: pip install")

    def test_a_graph_without_attention(self, run: Run, tmp_path: Path) -> None:
        text = "(float16[B,4] x) => (float16[B,4] y) { y = Relu(x) }"
        stage.kernels(run, final(tmp_path, text), made(tmp_path, asked=True), "sm90")
        assert warnings(run) == [f"{STAYS} on sm90: none was found in the graph, or no kernel of it was brought along"]

    def test_a_backend_that_launches_nothing(self, run: Run, tmp_path: Path) -> None:
        prepared: Any = Carrier(final(tmp_path))
        plan = made(tmp_path, asked=True, backend="tensorrt_rtx", targets=("sm89",))
        assert stage.carrying(run, prepared, plan).kernels == ()
        assert warnings(run) == ["TensorRT-RTX launches no kernels of plugins, so attention stays as it is"]


def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    known = toolchain.version
    monkeypatch.setattr(toolchain, "version", lambda name: None if name == "triton" else known(name))


@dataclass(frozen=True)
class Carrier:
    """A `Prepared` as far as kernels go: no more is asked of it."""

    final: Any
    kernels: tuple[Kernels, ...] = ()
    replaced: tuple[Any, ...] = ()
    notices: tuple[str, ...] = ()


def test_kernels_that_were_brought_along_are_launched(
    run: Run, tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without triton; --no-plugins leaves them alone."""
    trt = fake_tensorrt.install(monkeypatch)
    graph = final(tmp_path)
    got = stage.kernels(run, graph, made(tmp_path, asked=True), "sm90")
    assert got is not None
    without_triton(monkeypatch)
    for plan, launched in ((made(tmp_path), [NODE]), (made(tmp_path, none=True), [])):
        carried = stage.carrying(run, Carrier(graph, (got,)), replace(plan, targets=("sm90",)))  # type: ignore[arg-type]
        assert carried.kernels == (got,)
        assert [place["node"] for place in carried.replaced] == launched
        facts = build_engine(run, graph, SPEC, replace(plan, backend="tensorrt"), "sm90", got).facts
        assert [layer.name for layer in trt.builders[-1].network.plugins] == launched
        assert facts["attention_kernels"] == len(launched)
        assert [one["nodes"] for one in facts["kernels"]] == ([launched] if launched else [])
        assert list(facts["plugins"]) == (["attention"] if launched else [])
    assert warnings(run) == []


def test_the_engine_has_the_node_and_the_rest_of_the_graph(
    run: Run, tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    trt = fake_tensorrt.install(monkeypatch)
    graph, plan = final(tmp_path), made(tmp_path, asked=True, backend="tensorrt")
    before = graph.model.read_bytes()
    facts = build_engine(run, graph, SPEC, plan, "sm90", stage.kernels(run, graph, plan, "sm90")).facts
    network = trt.builders[-1].network
    assert [layer.name for layer in network.plugins] == [NODE]
    assert (facts["attention_kernels"], facts["attention_operators"]) == (1, 0)
    assert "expanded" not in facts
    assert graph.model.read_bytes() == before
    bare = build_engine(run, graph, SPEC, plan, "sm90").facts
    assert trt.builders[-1].network.plugins == []
    assert "attention_kernels" not in bare


def test_a_plugin_that_is_looked_for_in_the_graph_is_not_looked_for_in_the_program(tmp_path: Path) -> None:
    """So an ONNX file takes it too; any other still has to say what it replaces."""
    plan = made(tmp_path)
    assert decided(Patterns(plugins=("attention",)), plan) == NOTHING
    with pytest.raises(UsageError, match="nms does not say what it replaces"):
        decided(Patterns(plugins=("attention", "nms")), plan)


def test_a_plan_keeps_what_was_asked_for(tmp_path: Path) -> None:
    for how, said in (({"asked": True}, "asked"), ({}, "measured"), ({"none": True}, "never")):
        plan = made(tmp_path, **how)
        assert plan.attention == said
        assert Plan.from_json(plan.to_json()).attention == said


def test_the_graph_in_this_form_is_a_valid_model(tmp_path: Path) -> None:
    from aot.form import Form, formed

    with formed(final(tmp_path).model, Form("kernel", (NODE,)), tmp_path) as (path, count):
        model = ir.load(path)
    assert count == 1
    assert [node.name for node in model.graph if node.domain == "aot"] == [NODE]
    with formed(final(tmp_path).model, Form("kernel", ("other",)), tmp_path) as (path, count):
        assert (path, count) == (final(tmp_path).model, 0)
