"""`--precision auto`, from the request to the artifact, with a TensorRT of our making.

Its engines compute what their graph says; how long each precision takes is what a test says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from aot import artifact, toolchain
from aot import backend as backends
from aot.backends.tensorrt import TensorRt
from aot.config import Request, parse
from aot.errors import ArtifactError, EngineError, TargetError, UsageError
from aot.pipeline import build
from aot.progress import Silent
from aot.stages.package import Result
from aot.store import Store
from aot.toolchain import Gpu, Machine
from tests.backends import fake_tensorrt
from tests.backends.fake_tensorrt import H200
from tests.e2e.harness import DIM, Aot

NO_GPU = Machine(None, None, "a CPU")
A100 = Machine(Gpu("NVIDIA A100", "sm80", 80 << 30), "580.65.06", "a CPU")


@dataclass
class Vendor:
    """What its engines do. ms: of a run, by precision. broken: precisions that it builds nothing of. error: by
    precision, what an engine adds to its outputs. timed: how often an engine was timed."""

    ms: dict[str, float] = field(default_factory=lambda: {"fp16": 2.0, "int8": 1.5, "fp8": 1.0})
    broken: set[str] = field(default_factory=set)
    error: dict[str, float] = field(default_factory=dict)
    timed: list[str] = field(default_factory=list)

    def build(self, _: Any, job: Any, plan: Path, caches: Any, progress: Any) -> Mapping[str, Any]:
        if job.precision in self.broken:
            raise EngineError(f"no kernel for {job.precision}")
        model = onnx.load(job.graph)
        model.doc_string = job.precision
        onnx.save(model, plan)
        return {"origin": None, "timing_cache": "does not apply"}

    def open(self, _: Any, plan: Path, spec: Any, profiles: Any, weights: Any = None) -> Any:
        vendor, precision = self, onnx.load(plan).doc_string
        session: Any = backends.get("onnxruntime").open(plan, spec, profiles)

        class Engine(backends.Session):
            def __exit__(self, *_: object) -> None: ...

            def __call__(self, inputs: Mapping[str, Any]) -> Any:
                off = np.float32(vendor.error.get(precision, 0.0))
                return {name: array + off for name, array in session(inputs).items()}

            def stopwatch(self, inputs: Mapping[str, Any]) -> Callable[[int], float]:
                vendor.timed.append(precision)
                return lambda times: times * vendor.ms[precision] / 1e3

        return Engine()


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    """TensorRT on an H200."""
    found = Vendor()
    fake_tensorrt.install(monkeypatch)
    monkeypatch.setattr(TensorRt, "build", lambda *given: found.build(*given))
    monkeypatch.setattr(TensorRt, "open", lambda *given: found.open(*given))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all tests: what does not depend on the GPU is done once."""
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def auto(tmp_path: Path, mlp_onnx: Path, store: Store) -> Callable[..., Result]:
    """Build the MLP, or the artifact given."""

    def run(model: Path = mlp_onnx, output: str = "m.aot", fresh_store: bool = False, **asked: Any) -> Result:
        given: dict[str, Any] = {"model": str(model), "output": tmp_path / output, "precision": "auto", **asked}
        if model == mlp_onnx:
            given["dims"] = {"batch": (1, 4, 8)}
        where = Store(tmp_path / "other") if fresh_store else store
        return build(parse(Request, given, "a test"), where, Silent())

    return run


def outs(result: Result) -> dict[str, str | None]:
    return {one["precision"]: one["out"] for one in result.summary["choice"]["candidates"]}


def names(result: Result, *, worked: bool = False) -> list[str]:
    return [stage["name"] for stage in result.summary["stages"] if not (worked and stage["cached"])]


class TestOnTheGpu:
    def test_the_fastest_precision_is_built_and_the_figures_are_everywhere(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path
    ) -> None:
        result = auto(fresh=True)

        summary = result.summary
        # One of the two layers: the other has 16 output channels, which FP8 leaves wide.
        assert (summary["precision"], summary["quantized"]["ops"], result.accepted) == ("fp8", 1, True)
        choice = summary["choice"]
        assert choice["reason"] == "2.00 times as fast as fp16; int8 1.33 times"
        assert (choice["on"], choice["sizes"]) == ("NVIDIA H200", [{"batch": 4}])
        assert {one["precision"]: one["ms"] for one in choice["candidates"]} == {
            "fp16": [2.0], "int8": [1.5], "fp8": [1.0],
        }  # fmt: skip
        manifest = json.loads((tmp_path / "m.aot/manifest.json").read_text())
        assert (manifest["kind"], manifest["plan"]["precision"], manifest["choice"]) == ("full", "fp8", choice)
        assert json.loads((tmp_path / "m.aot/report.json").read_text())["choice"] == choice
        assert "precision auto took fp8 on NVIDIA H200" in (tmp_path / "m.aot/report.html").read_text()
        assert not (tmp_path / "m.aot/candidates").exists()

    @pytest.mark.parametrize("until", [None, "graph"])
    def test_its_lock_is_written_where_it_is_asked_for(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path, until: str | None
    ) -> None:
        auto(lock=tmp_path / "m.lock", until=until)

        assert (tmp_path / "m.lock").read_bytes() == (tmp_path / "m.aot/aot.lock").read_bytes()

    def test_where_fp16_is_faster_it_is_taken(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        vendor.ms = {"fp16": 1.0, "int8": 1.25, "fp8": 0.99}

        result = auto(fresh=True)

        assert (result.summary["precision"], result.summary["quantized"]["ops"]) == ("fp16", 0)
        assert result.summary["choice"]["reason"].startswith("int8 runs 0.80 times as fast and fp8 runs 1.01 times")

    def test_what_all_precisions_share_is_done_and_told_once(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        told = names(auto(fresh=True), worked=True)

        for shared in ("export", "collect", "reference", "time"):
            assert told.count(shared) == 1
        for each in ("quantize", "verify", "build sm90", "verify sm90"):
            assert {f"{each} fp16", f"{each} int8", f"{each} fp8"} <= set(told)

    def test_an_unchanged_build_does_no_work_and_a_new_driver_times_again(
        self, vendor: Vendor, auto: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        auto()
        vendor.timed.clear()
        assert names(auto(), worked=True) == []
        assert vendor.timed == []

        monkeypatch.setattr(toolchain, "machine", lambda: Machine(H200.gpu, "590.1", "a CPU"))
        vendor.ms["int8"] = 0.5
        result = auto()
        assert vendor.timed == ["fp16", "int8", "fp8"]
        assert result.summary["precision"] == "int8"


class TestWhatIsOut:
    def test_the_users_budget_holds_for_all(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        result = auto(budget={"cosine": 0.99999}, search=False)

        assert (result.summary["precision"], result.accepted) == ("fp16", True)
        found = outs(result)
        assert found["fp16"] is None
        for narrow in ("int8", "fp8"):
            assert str(found[narrow]).startswith("the graph misses the budget: ")
        assert result.summary["choice"]["reason"].startswith("nothing else can be taken; int8 is out: ")
        assert not [name for name in names(result) if name == "time" or name.endswith(("sm90 int8", "sm90 fp8"))]

    def test_an_engine_that_misses_the_budget_is_out_however_fast(
        self, vendor: Vendor, auto: Callable[..., Result]
    ) -> None:
        vendor.error["fp8"] = 100.0

        result = auto(fresh=True)

        assert result.summary["precision"] == "int8"
        assert str(outs(result)["fp8"]).startswith("the engine misses the budget: ")

    def test_a_precision_of_which_no_engine_comes_is_out(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        vendor.broken = {"fp8"}

        result = auto(fresh=True)

        assert result.summary["precision"] == "int8"
        assert outs(result)["fp8"] == "no engine comes of it: no kernel for fp8"

    def test_where_no_engine_comes_of_any_the_widest_says_why(
        self, vendor: Vendor, auto: Callable[..., Result]
    ) -> None:
        vendor.broken = {"fp16", "int8", "fp8"}

        with pytest.raises(EngineError, match="no kernel for fp16"):
            auto(fresh=True)

    def test_where_nothing_keeps_the_budget_the_widest_is_built_and_not_accepted(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path
    ) -> None:
        result = auto(budget={"max_abs": 0.0}, search=False)

        assert (result.summary["precision"], result.accepted) == ("fp16", False)
        assert result.summary["choice"]["reason"] == "nothing keeps the budget, and this is the widest"
        assert json.loads((tmp_path / "m.aot/manifest.json").read_text())["accepted"] is False

    def test_a_precision_in_which_nothing_is_quantized_is_out_untimed(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path
    ) -> None:
        """The one layer is a convolution, which FP8 leaves in FP16."""
        graph = parser.parse_graph(
            "conv (float[batch, 16, 8, 8] x) => (float[batch, 16, 8, 8] y) { y = Conv<pads=[1, 1, 1, 1]>(x, w) }"
        )
        weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(model, tmp_path / "conv.onnx")
        result = auto(tmp_path / "conv.onnx", dims={"batch": (1, 4, 8)})
        assert outs(result) == {"fp16": None, "int8": None, "fp8": "nothing in the graph is quantized to fp8"}
        assert set(vendor.timed) == {"fp16", "int8"}

    def test_what_the_target_lacks_is_out(
        self, vendor: Vendor, auto: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(toolchain, "machine", lambda: A100)

        result = auto()

        assert result.summary["precision"] == "int8"
        assert "sm80" in str(outs(result)["fp8"])
        assert not [name for name in names(result) if name.endswith(" fp8")]


class TestInTwoHalves:
    @pytest.fixture
    def prepared(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Path:
        """What a machine without a GPU prepares; the H200 is there again afterwards."""
        with monkeypatch.context() as without:
            without.setattr(toolchain, "machine", lambda: NO_GPU)
            result = auto(output="prepared.aot")
        assert (result.summary["precision"], result.summary["engines"]) == ("auto", [])
        assert result.summary["choice"]["precision"] is None
        return tmp_path / "prepared.aot"

    def test_without_a_gpu_the_artifact_carries_every_precision(self, prepared: Path) -> None:
        manifest = json.loads((prepared / "manifest.json").read_text())

        assert (manifest["kind"], manifest["plan"]["precision"]) == ("prepared", "fp16")
        assert [one["plan"]["precision"] for one in manifest["candidates"]] == ["int8", "fp8"]
        for precision in ("int8", "fp8"):
            ops = {node.op_type for node in onnx.load(prepared / f"candidates/{precision}/graph/model.onnx").graph.node}
            assert "QuantizeLinear" in ops
        assert not list(prepared.glob("candidates/*/references"))

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            (("choice",), {"precision": "fp16"}),
            (("choice", "candidates", 0, "precision"), "fp9"),
            (("candidates", 0, "plan", "precision"), "../.."),
            (("candidates", 1, "graph", "facts"), {}),
            (("candidates", 1, "checked", "key"), "short"),
            (("candidates", 0, "plan", "profiles"), [{"length": [1, 2, 3]}]),
        ],
    )
    def test_a_damaged_manifest_is_refused(self, prepared: Path, place: Sequence[Any], value: Any) -> None:
        data = json.loads((prepared / "manifest.json").read_text())
        inner = data
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        (prepared / "manifest.json").write_text(json.dumps(data))

        with pytest.raises(ArtifactError):
            artifact.load(str(prepared))

    @pytest.mark.parametrize("precision", [None, "auto"])
    def test_the_choice_is_made_where_the_gpu_is(
        self, prepared: Path, auto: Callable[..., Result], precision: str | None, tmp_path: Path
    ) -> None:
        result = auto(prepared, "done.aot", fresh_store=True, precision=precision)

        assert (result.summary["precision"], result.summary["choice"]["precision"]) == ("fp8", "fp8")
        assert [half["did"] for half in json.loads((tmp_path / "done.aot/manifest.json").read_text())["history"]] == [
            ["graph"],
            ["engines"],
        ]

    def test_a_tighter_budget_counts_there_too(self, prepared: Path, auto: Callable[..., Result]) -> None:
        candidates = json.loads((prepared / "manifest.json").read_text())["candidates"]
        cosines = {one["plan"]["precision"]: one["checked"]["facts"]["cosine"] for one in candidates}
        worse, better = sorted(cosines, key=lambda precision: cosines[precision])

        result = auto(prepared, "done.aot", precision=None, budget={"cosine": sum(cosines.values()) / 2})

        assert result.summary["precision"] == better
        assert str(outs(result)[worse]).startswith("the graph misses the budget: ")

    def test_one_of_the_precisions_can_be_had_by_its_name(self, prepared: Path, auto: Callable[..., Result]) -> None:
        result = auto(prepared, "done.aot", precision="int8", backend="onnxruntime")

        assert (result.summary["precision"], result.summary["choice"]) == ("int8", None)
        with pytest.raises(UsageError, match="prepared in fp16, int8, fp8, not bf16"):
            auto(prepared, "done.aot", precision="bf16")

    def test_an_artifact_of_one_precision_leaves_nothing_to_choose(
        self, vendor: Vendor, auto: Callable[..., Result], tmp_path: Path
    ) -> None:
        auto(output="one.aot", precision="int8", until="graph")

        with pytest.raises(UsageError, match="prepared in int8, not auto"):
            auto(tmp_path / "one.aot", "done.aot")


class TestRefusals:
    def refused(self, auto: Callable[..., Result], kind: type[Exception], says: str, **asked: Any) -> str:
        with pytest.raises(kind, match=says) as caught:
            auto(**asked)
        fix = getattr(caught.value, "fix", None)
        assert fix
        return str(fix)

    def test_a_recipe_is_for_one_precision(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        fix = self.refused(auto, UsageError, "a recipe is for one precision", calibration="int8")
        assert "calib/int8.yaml" in fix

    def test_the_other_route_has_no_narrow_precision(self, vendor: Vendor, auto: Callable[..., Result]) -> None:
        self.refused(auto, UsageError, "neither int8 nor fp8", route="torch-tensorrt")

    @pytest.mark.parametrize(
        ("targets", "says"),
        [(("sm89", "sm120"), "these are several"), (("sm89",), "times engines on the GPU that they are for")],
    )
    def test_engines_are_timed_on_the_one_gpu_that_is_here(
        self, vendor: Vendor, auto: Callable[..., Result], targets: Sequence[str], says: str
    ) -> None:
        fix = self.refused(auto, TargetError, says, targets=tuple(targets), backend="tensorrt_rtx")
        assert "until graph" in fix or "one at a time" in fix


def test_on_the_cpu_it_is_all_real(tmp_path: Path, mlp_onnx: Path) -> None:
    here = Aot(tmp_path, tmp_path / "store")
    here.folder.joinpath("mlp.onnx").write_bytes(mlp_onnx.read_bytes())
    command = ("build", "mlp.onnx", *DIM, "--precision", "auto", "--backend", "onnxruntime")

    built = here(*command, "--json")

    assert built.code == 0, built.err
    choice = built.json["choice"]
    assert choice["precision"] == built.json["precision"]
    assert [(one["precision"], one["out"], len(one["ms"])) for one in choice["candidates"]] == [
        ("fp16", None, 1),
        ("int8", None, 1),
        ("fp8", None, 1),
    ]
    assert all(one["ms"][0] > 0 for one in choice["candidates"])
    again = here(*command)
    assert again.code == 0
    assert "time             cached" in again.out
    assert f"precision auto took {choice['precision']} on {choice['on']}: {choice['reason']}" in again.out
    assert choice["reason"] in here("inspect", "mlp.aot").out


def test_the_choice_needs_neither_torch_nor_the_model(tmp_path: Path, mlp_onnx: Path) -> None:
    here, there = Aot(tmp_path / "here", tmp_path / "store"), Aot(tmp_path / "there", tmp_path / "other")
    here.folder.mkdir()
    there.folder.mkdir()
    here.folder.joinpath("mlp.onnx").write_bytes(mlp_onnx.read_bytes())
    first = here("build", "mlp.onnx", *DIM, "--precision", "auto", "--until", "graph", "-o", "../there/mlp.tar")
    assert first.code == 0, first.err
    assert "precision auto: not made yet" in first.out

    no_torch = "import sys; sys.modules['torch'] = None"
    done = there("build", "mlp.tar", "--target", "cpu", "-o", "done.aot", "--json", before=no_torch)

    assert done.code == 0, done.err
    assert len(done.json["choice"]["candidates"]) == 3
    assert done.json["choice"]["precision"] in ("fp16", "int8", "fp8")
