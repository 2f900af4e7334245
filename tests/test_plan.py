"""Decisions are pure functions of the request, the declaration, the project's files and the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot import artifact, toolchain
from aot.config import Budget, EngineOptions, Request
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ArtifactError, ProfileError, TargetError, UsageError
from aot.plan import Plan, choose, decide, decide_finish
from aot.toolchain import Gpu, Machine

batch = Dim("batch", min=1, opt=8, max=64)
seq = Dim("seq", min=2, opt=128, max=512)
SPEC = ModelSpec("m", {"ids": Input([batch, seq], "int64", high=100)})
DIMS = {"batch": (1, 8, 64), "seq": (2, 128, 512)}
CPU_ONLY = Machine(None, None, "a CPU")
ADA = Machine(Gpu("NVIDIA L4", "sm89", 24 << 30), "580", "a CPU")
H200 = Machine(Gpu("NVIDIA H200", "sm90", 141 << 30), "580", "a CPU")
ALL = {"tensorrt": "10.6.0", "tensorrt-rtx-cu13": "1.7.1", "onnxruntime": "1.32.0"}


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Be on a machine with these distributions."""

    def be(machine: Machine, installed: dict[str, str] = ALL) -> None:
        from aot.runtime import vendors

        monkeypatch.setattr(toolchain, "machine", lambda: machine)
        monkeypatch.setattr(toolchain, "version", installed.get)
        monkeypatch.setattr(vendors, "find_spec", lambda name: object())

    return be


def plan(project: Path, **asked: Any) -> Plan:
    request = Request(model="model.py", **asked)
    return decide(request, choose(request, project), SPEC)


def placed(project: Path, **asked: Any) -> tuple[str | None, tuple[str, ...]]:
    made = plan(project, **asked)
    return made.backend, made.targets


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Precision and recipe


def test_fp16_and_the_dims_by_default(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    made = plan(tmp_path)
    assert made.precision == "fp16"
    assert made.recipe.precision == "fp16"
    assert made.profiles == (DIMS,)
    assert made.engine == EngineOptions()
    assert made.project == tmp_path


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_precision_names_the_recipe(on: Any, tmp_path: Path, precision: Any) -> None:
    on(CPU_ONLY)
    assert plan(tmp_path, precision=precision).recipe.precision == precision


def test_a_recipe_implies_its_precision_and_a_projects_own_comes_first(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    write(tmp_path / "calib" / "int8.yaml", "precision: int8\nbudget: {cosine: 0.5}\n")
    made = plan(tmp_path, calibration="int8")
    assert made.precision == "int8"
    assert made.budget == Budget(cosine=0.5)


def test_a_recipe_of_another_precision_is_refused(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    with pytest.raises(UsageError, match="--precision fp8 contradicts the recipe, which is for int8"):
        plan(tmp_path, precision="fp8", calibration="int8")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"calibration": "imt8"}, "did you mean 'int8'"),
        ({"profile": "defualt"}, "did you mean 'default'"),
        ({"backend": "tensort"}, "did you mean 'tensorrt'"),
        ({"targets": ("sm_89",)}, "did you mean 'sm89'"),
        ({"targets": ("sm_89",), "until": "graph"}, "did you mean 'sm89'"),
    ],
)
def test_unknown_names_get_the_nearest_one(on: Any, tmp_path: Path, asked: dict[str, Any], hint: str) -> None:
    on(CPU_ONLY)
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, **asked)
    assert hint in str(caught.value)


# Profiles and budgets


def test_several_profiles_from_a_file_are_completed_from_the_dims(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    write(tmp_path / "profiles" / "two.yaml", "profiles: [{batch: [1, 1, 8]}, {batch: [8, 64, 64], seq: [2, 64, 64]}]")
    assert plan(tmp_path, profile="two").profiles == (
        {"batch": (1, 1, 8), "seq": (2, 128, 512)},
        {"batch": (8, 64, 64), "seq": (2, 64, 64)},
    )


def test_a_built_in_file_with_two_profiles(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    assert [profile["batch"] for profile in plan(tmp_path, profile="batch").profiles] == [(1, 1, 8), (8, 64, 64)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("profiles: [{batch: [1, 100, 64]}]", "opt is above max"),
        ("profiles: [{batch: [1, 8, 128]}]", "leaves the range of Dim 'batch'"),
        ("profiles: [{}, {sequ: [2, 4, 8]}]", "did you mean 'seq'"),
    ],
)
def test_impossible_profiles_name_file_profile_and_inputs(on: Any, tmp_path: Path, text: str, says: str) -> None:
    on(CPU_ONLY)
    path = write(tmp_path / "profiles" / "bad.yaml", text)
    with pytest.raises(ProfileError) as caught:
        plan(tmp_path, profile="bad")
    assert says in str(caught.value)
    assert f"{path}: profile " in str(caught.value)


@pytest.mark.parametrize("text", ["engine: {optimization_level: 9}", "engine: {workspace_mib: 0}", "engines: {}"])
def test_settings_that_no_builder_takes_are_refused(on: Any, tmp_path: Path, text: str) -> None:
    on(CPU_ONLY)
    write(tmp_path / "profiles" / "bad.yaml", text)
    with pytest.raises(UsageError):
        plan(tmp_path, profile="bad")


def test_budgets_merge_from_recipe_over_profile_to_request(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    write(tmp_path / "calib" / "mine.yaml", "precision: int8\nbudget: {cosine: 0.9, max_abs: 1, relative_l2: 0.5}\n")
    write(tmp_path / "profiles" / "mine.yaml", "budget: {max_abs: 2, relative_l2: 0.4}\n")
    made = plan(tmp_path, calibration="mine", profile="mine", budget=Budget(relative_l2=0.1))
    assert made.budget == Budget(cosine=0.9, max_abs=2, relative_l2=0.1)


# Backend and targets


@pytest.mark.parametrize(
    ("machine", "asked", "expected"),
    [
        (CPU_ONLY, {}, (None, ())),
        (CPU_ONLY, {"until": "graph", "targets": ("sm89",)}, (None, ())),
        (CPU_ONLY, {"targets": ("sm89", "sm120", "sm89")}, ("tensorrt_rtx", ("sm89", "sm120"))),
        (CPU_ONLY, {"targets": ("cpu",)}, ("onnxruntime", ("cpu",))),
        (CPU_ONLY, {"backend": "onnxruntime"}, ("onnxruntime", ("cpu",))),
        (H200, {}, ("tensorrt", ("sm90",))),
        (H200, {"targets": ("auto",)}, ("tensorrt", ("sm90",))),
        (H200, {"targets": ("auto", "sm90")}, ("tensorrt", ("sm90",))),
        (H200, {"targets": ("sm89",)}, ("tensorrt_rtx", ("sm89",))),
        (H200, {"until": "graph"}, (None, ())),
        (ADA, {"backend": "tensorrt_rtx"}, ("tensorrt_rtx", ("sm89",))),
    ],
)
def test_where_a_build_goes(on: Any, tmp_path: Path, machine: Machine, asked: Any, expected: Any) -> None:
    on(machine)
    assert placed(tmp_path, **asked) == expected


def test_rtx_serves_a_gpu_without_tensorrt_where_it_can(on: Any, tmp_path: Path) -> None:
    only_rtx = {"tensorrt-rtx-cu13": "1.7.1"}
    on(ADA, only_rtx)
    assert placed(tmp_path) == ("tensorrt_rtx", ("sm89",))
    on(H200, only_rtx)
    assert placed(tmp_path) == (None, ())


def test_a_profile_file_may_name_backend_and_targets_and_the_request_wins(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    write(tmp_path / "profiles" / "rtx.yaml", "backend: tensorrt_rtx\ntargets: [sm89, sm120]\n")
    assert placed(tmp_path, profile="rtx") == ("tensorrt_rtx", ("sm89", "sm120"))
    assert placed(tmp_path, profile="rtx", targets=("sm86",)) == ("tensorrt_rtx", ("sm86",))


@pytest.mark.parametrize(
    ("machine", "asked", "says", "way_out"),
    [
        (CPU_ONLY, {"targets": ("auto",)}, "this machine's GPU, and there is none", "--target sm89"),
        (CPU_ONLY, {"backend": "tensorrt"}, "here is none", "--until graph"),
        (CPU_ONLY, {"backend": "tensorrt", "targets": ("sm90",)}, "here is none", "--backend tensorrt_rtx"),
        (CPU_ONLY, {"backend": "tensorrt_rtx"}, "what to build for must be said", "--target sm89"),
        (CPU_ONLY, {"targets": ("sm90",)}, "TensorRT-RTX does not build for sm90", "--until graph"),
        (CPU_ONLY, {"precision": "fp8", "targets": ("sm86",)}, "sm86 has no FP8", "a target from sm89 on"),
        (CPU_ONLY, {"precision": "fp8", "targets": ("sm86",), "until": "graph"}, "sm86 has no FP8", "int8"),
        (H200, {"backend": "tensorrt", "targets": ("sm89",)}, "this is NVIDIA H200", "--until graph"),
        (CPU_ONLY, {"backend": "onnxruntime", "targets": ("sm89",)}, "builds for cpu", "--target cpu"),
    ],
)
def test_what_cannot_be_built_is_refused_before_any_work(
    on: Any, tmp_path: Path, machine: Machine, asked: Any, says: str, way_out: str
) -> None:
    on(machine)
    with pytest.raises(TargetError) as caught:
        plan(tmp_path, **asked)
    assert says in caught.value.what
    assert way_out in str(caught.value.fix)


def test_cpu_and_a_gpu_are_two_builds(on: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    with pytest.raises(UsageError, match="one build has one backend"):
        plan(tmp_path, targets=("cpu", "sm89"))


# The second half


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Plan]:
    """Finish an artifact that was prepared on a machine without a GPU, in FP8."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artifact, "is_artifact", lambda name: name.endswith(".aot"))
    request = Request(model="model.py", precision="fp8", until="graph")
    first = decide(request, choose(request, tmp_path), SPEC)

    def made(prepared: dict[str, Any] | None = None, **asked: Any) -> Plan:
        kept = Plan.from_json({**first.to_json(), **(prepared or {})})
        return decide_finish(Request(model="m.aot", **asked), SimpleNamespace(plan=kept, spec=SPEC))  # type: ignore[arg-type]

    return made


def test_the_gpu_of_the_second_machine_is_built_for(on: Any, finish: Any) -> None:
    on(H200)
    made = finish()
    assert (made.backend, made.targets) == ("tensorrt", ("sm90",))
    assert (made.precision, made.profiles) == ("fp8", (DIMS,))


def test_where_nothing_can_be_built_the_way_out_is_told(on: Any, finish: Any) -> None:
    on(CPU_ONLY)
    with pytest.raises(TargetError, match="nothing here can build") as caught:
        finish()
    assert "machine with the GPU" in str(caught.value.fix)
    assert finish(until="graph").targets == ()


def test_without_a_gpu_the_prepared_targets_are_built(on: Any, finish: Any) -> None:
    on(CPU_ONLY)
    made = finish(prepared={"backend": "tensorrt_rtx", "targets": ["sm89"]})
    assert (made.backend, made.targets) == ("tensorrt_rtx", ("sm89",))
    made = finish(prepared={"backend": "tensorrt_rtx", "targets": ["sm89"]}, targets=("sm120",))
    assert (made.backend, made.targets) == ("tensorrt_rtx", ("sm120",))


@pytest.mark.parametrize(
    ("prepared", "asked", "expected"),
    [
        ("measured", {}, "measured"),
        ("asked", {}, "asked"),
        ("never", {}, "never"),
        ("measured", {"plugins": ("attention",)}, "asked"),
        ("asked", {"measured": False}, "never"),
    ],
)
def test_attention_becomes_kernels_as_asked_for_when_it_is_finished_else_when_it_was_prepared(
    on: Any, finish: Any, prepared: str, asked: dict[str, Any], expected: str
) -> None:
    on(H200)
    assert finish(prepared={"attention": prepared, "precision": "fp16"}, patterns=asked).attention == expected


def test_other_plugins_are_looked_for_in_the_model_alone(on: Any, finish: Any) -> None:
    on(H200)
    with pytest.raises(UsageError, match="the artifact is exported already") as caught:
        finish(patterns={"plugins": ("attention", "swiglu")})
    assert caught.value.where == "--plugin swiglu"


@pytest.mark.parametrize(
    ("machine", "asked", "meant"),
    [
        (CPU_ONLY, {}, ()),
        (CPU_ONLY, {"targets": ("sm89", "sm120")}, ("sm89", "sm120")),
        (H200, {}, ("sm90",)),
        (H200, {"targets": ("sm89",)}, ("sm89",)),
        (H200, {"targets": ("sm89",), "backend": "tensorrt_rtx"}, None),
    ],
)
def test_kernels_of_a_prepared_artifact_are_for_the_targets_named_else_for_this_gpu(
    on: Any, tmp_path: Path, machine: Machine, asked: dict[str, Any], meant: Any
) -> None:
    on(machine)
    assert plan(tmp_path, until="graph", **asked).meant == meant


@pytest.mark.parametrize(
    ("asked", "says"),
    [({"precision": "int8"}, "prepared in fp8, not int8"), ({"calibration": "int8"}, "calibrated already")],
)
def test_what_was_prepared_cannot_be_contradicted(on: Any, finish: Any, asked: Any, says: str) -> None:
    on(H200)
    with pytest.raises(UsageError, match=says):
        finish(**asked)


def test_profiles_options_and_budget_can_be_given_late(on: Any, finish: Any, tmp_path: Path) -> None:
    on(H200)
    write(tmp_path / "profiles" / "late.yaml", "profiles: [{batch: [1, 4, 8]}]\nengine: {optimization_level: 1}\n")
    made = finish(profile="late", budget=Budget(cosine=0.7), precision="fp8")
    assert made.profiles == ({"batch": (1, 4, 8), "seq": (2, 128, 512)},)
    assert made.engine.optimization_level == 1
    assert made.budget.cosine == 0.7
    assert finish(dims={"batch": (1, 2, 3)}).profiles == ({"batch": (1, 2, 3), "seq": (2, 128, 512)},)


def test_a_plan_survives_the_manifest(on: Any, tmp_path: Path) -> None:
    import json

    on(CPU_ONLY)
    write(tmp_path / "profiles" / "p.yaml", "profiles: [{batch: [1, 1, 1]}]\nverify: {sizes: [{batch: 3}]}\n")
    made = plan(tmp_path, precision="fp8", targets=("sm89",), profile="p", budget=Budget(cosine=0.5))
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == replace(made, project=None)


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "fp7"},
        {"profiles": [{"batch": [1, 2]}]},
        {"recipe": {"precision": "int8", "new": 1}},
        {"engine": 3},
    ],
)
def test_a_damaged_plan_is_an_artifact_error(on: Any, tmp_path: Path, change: dict[str, Any]) -> None:
    on(CPU_ONLY)
    with pytest.raises(ArtifactError, match="plan cannot be read"):
        Plan.from_json({**plan(tmp_path).to_json(), **change})


def test_a_limit_on_a_metric_needs_a_metric(on: Any, finish: Any, tmp_path: Path) -> None:
    on(CPU_ONLY)
    for make in (plan, lambda _, **asked: finish(until="graph", **asked)):
        with pytest.raises(UsageError, match="model 'm' declares none"):
            make(tmp_path, budget=Budget(metric=0.1))
    request = Request(model="model.py", budget=Budget(metric=0.1))
    scored = decide(request, choose(request, tmp_path), replace(SPEC, has_metric=True))
    assert scored.budget.metric == 0.1
