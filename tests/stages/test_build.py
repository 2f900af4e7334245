"""The build stage: what an engine's key depends on, what is refused first, what is recorded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import backend as backends
from aot import toolchain
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import GraphError
from aot.plan import Plan, choose, decide
from aot.progress import Silent
from aot.records import Engine, QuantizedGraph
from aot.run import Run
from aot.stages.build import build_engine
from aot.store import Entry, Store
from aot.toolchain import Gpu, Machine
from tests.backends import fake_tensorrt
from tests.backends.graphs import write

SPEC = ModelSpec("m", {"x": Input([Dim("batch", min=1, opt=4, max=8), 4])})
RELU = "g (float[b, 4] x) => (float[b, 4] y) { y = Relu(x) }"
TWIST = "g (float[b, 4] x) => (float[b, 4] y) { y = own.Twist(x) }"
TWIST_AND_FUNCTION = TWIST + '<opset_import: ["" : 20], domain: "own"> Twist (p) => (q) { q = Tanh(p) }'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "plugins").mkdir(parents=True)
    return tmp_path / "project"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Store(tmp_path / "store"), Silent())


def graph(folder: Path, text: str = RELU, key: str = "k1", **weights: np.ndarray) -> QuantizedGraph:
    (folder / key).mkdir(exist_ok=True)
    write(folder / key / "model.onnx", text, **weights)
    return QuantizedGraph(Entry("quantize", key, folder / key, {"nodes": 1}))


def plan(project: Path, **asked: Any) -> Plan:
    from aot.config import Request

    request = Request(model="m.py", **asked)
    return decide(request, choose(request, project), SPEC)


def test_several_targets_are_several_engines_with_their_facts(run: Run, project: Path) -> None:
    made = plan(project, targets=("sm89", "sm120"), precision="fp32")
    final = graph(project)
    engines = [build_engine(run, final, SPEC, made, target) for target in made.targets]
    assert [engine.target for engine in engines] == ["sm89", "sm120"]
    for engine in engines:
        data = engine.plan.read_bytes()
        assert engine.plan.name == f"{engine.target}.plan"
        assert engine.facts == {
            "target": engine.target,
            "route": "onnx",
            "backend": "tensorrt_rtx",
            "version": toolchain.version("tensorrt-rtx-cu13"),
            "file": f"{engine.target}.plan",
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "plugins": {},
            "origin": None,
            "timing_cache": "does not apply",
            "builder_seconds": engine.facts["builder_seconds"],
            "attention_operators": 0,
        }
    assert [time.name for time in run.times] == ["build sm89", "build sm120"]


ATTENTION = """g (KIND[b, 2, s, 32] q, KIND[b, 2, 32, s] k, KIND[b, 2, s, 32] v) => (KIND[b, 2, s, 32] y) {
    a = MatMul(q, k)  p = Softmax(a)  y = MatMul(p, v) }"""


@pytest.mark.parametrize(
    ("precision", "kind", "operators"),
    [
        ("fp16", "float16", 1),
        ("bf16", "bfloat16", 1),
        ("fp32", "float", 0),
        ("int8", "float16", 0),
        ("fp8", "float16", 0),
    ],
)
def test_attention_is_built_in_the_form_of_its_precision(
    run: Run, project: Path, precision: str, kind: str, operators: int
) -> None:
    text = ATTENTION.replace("KIND", kind)
    many, seq = Dim("b", min=1, opt=2, max=4), Dim("s", min=1, opt=16, max=64)
    dtype = kind.replace("float", "float32") if kind == "float" else kind
    spec = ModelSpec("m", {name: Input([many, 2, *sizes], dtype)
                           for name, sizes in {"q": (seq, 32), "k": (32, seq), "v": (seq, 32)}.items()})  # fmt: skip
    final = graph(project, text)
    before = final.model.read_bytes()
    made = replace(
        plan(project, targets=("sm89",), precision=precision), profiles=({"b": (1, 2, 4), "s": (1, 16, 64)},)
    )
    engine = build_engine(run, final, spec, made, "sm89")
    assert engine.facts["attention_operators"] == operators
    assert engine.plan.stat().st_size > 1000
    assert sorted(path.name for path in engine.path.iterdir() if path.suffix != ".json") == ["sm89.plan"]
    assert final.model.read_bytes() == before


def test_an_unchanged_build_reads_no_graph(run: Run, project: Path) -> None:
    made, final = plan(project, targets=("cpu",)), graph(project)
    build_engine(run, final, SPEC, made, "cpu")
    final.model.unlink()
    assert build_engine(run, final, SPEC, made, "cpu").entry.cached


def test_what_an_engine_depends_on_is_in_its_key(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch)
    made, final = plan(project), graph(project)

    def key(final: QuantizedGraph = final, spec: ModelSpec = SPEC, made: Plan = made) -> str:
        return build_engine(run, final, spec, made, "sm90").key

    keys = [
        key(),
        key(final=graph(project, key="k2")),
        key(made=replace(made, profiles=({"batch": (1, 2, 8)},))),
        key(made=replace(made, engine=EngineOptions(optimization_level=1))),
        key(spec=ModelSpec("m", {"x": replace(SPEC.inputs["x"], low=0, high=9)})),
    ]
    assert key() == keys[0]
    newer = Machine(Gpu("NVIDIA H200", "sm90", 141 << 30), "590.1", "a CPU")
    fake_tensorrt.install(monkeypatch, machine=newer)
    keys.append(key())
    other = Machine(Gpu("NVIDIA H100", "sm90", 80 << 30), "580.65.06", "a CPU")
    fake_tensorrt.install(monkeypatch, machine=other)
    keys.append(key())
    fake_tensorrt.install(monkeypatch, version="11.4.0")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_the_driver_here_does_not_matter_for_an_rtx_engine(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, final = plan(project, targets=("sm89",)), graph(project)
    first = build_engine(run, final, SPEC, made, "sm89")
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(Gpu("L4", "sm89", 1), "590", "a CPU"))
    assert build_engine(run, final, SPEC, made, "sm89").key == first.key


def test_a_plugins_source_is_in_the_key(run: Run, project: Path) -> None:
    """The plugin has a model-local function too, which onnxruntime runs."""
    made, final = plan(project, targets=("cpu",)), graph(project, TWIST_AND_FUNCTION)
    without = build_engine(run, final, SPEC, made, "cpu")
    file = project / "plugins" / "Twist.py"
    file.write_text("one")
    one = build_engine(run, final, SPEC, made, "cpu")
    file.write_text("two")
    two = build_engine(run, final, SPEC, made, "cpu")
    assert len({without.key, one.key, two.key}) == 3
    assert two.facts["plugins"] == {"Twist": hashlib.sha256(b"two").hexdigest()}
    (project / "plugins" / "Other.py").write_text("not used by the graph")
    assert build_engine(run, final, SPEC, made, "cpu").key == two.key


def test_a_function_takes_the_place_of_its_node_where_no_kernel_is_launched(run: Run, project: Path) -> None:
    made, final = plan(project, targets=("sm89",)), graph(project, TWIST_AND_FUNCTION)
    assert build_engine(run, final, SPEC, made, "sm89").facts["expanded"] == ["Twist"]
    on_cpu = replace(made, backend="onnxruntime")
    assert "expanded" not in build_engine(run, final, SPEC, on_cpu, "cpu").facts


def test_an_op_that_nothing_implements_is_named(run: Run, project: Path) -> None:
    made = plan(project, targets=("sm89",))
    with pytest.raises(GraphError, match="nothing implements the op own::Twist") as caught:
        build_engine(run, graph(project, TWIST), SPEC, made, "sm89")
    assert caught.value.where == "node 'n0' (own::Twist)"
    assert "plugins/Twist.py" in str(caught.value.fix)


def test_the_graph_is_checked_before_the_long_work(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(type(backends.get("onnxruntime"))):  # type: ignore[misc]
        def check_graph(self, *_: object) -> None:
            raise GraphError("no")

        def build(self, *_: object) -> Any:
            raise AssertionError("the long work began")

    made, final = plan(project, targets=("cpu",)), graph(project)
    monkeypatch.setattr(backends, "get", lambda name: Refuses())
    with pytest.raises(GraphError):
        build_engine(run, final, SPEC, made, "cpu")
    assert not list(run.store.root.glob("build/*"))


def test_a_timing_cache_can_be_declined(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch)
    made, final = plan(project), graph(project)
    kept = build_engine(run, final, SPEC, made, "sm90")
    assert kept.facts["timing_cache"] == {"used": False, "saved": True}
    declined = replace(made, engine=EngineOptions(timing_cache=False))
    assert build_engine(run, final, SPEC, declined, "sm90").facts["timing_cache"] == {"used": False, "saved": False}


def test_records_are_engines(run: Run, project: Path) -> None:
    engine = build_engine(run, graph(project), SPEC, plan(project, targets=("cpu",)), "cpu")
    assert isinstance(engine, Engine)
    assert engine.plan.name == "cpu.onnx"
    with backends.get("onnxruntime").open(engine.plan, SPEC, ({"batch": (1, 4, 8)},)) as session:
        x = np.array([[-1, 0, 1, 2]], np.float32)
        assert np.array_equal(session({"x": x})["y"], np.maximum(x, 0))
