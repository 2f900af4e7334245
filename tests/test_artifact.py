"""What an artifact holds, and that no damaged or half-made one is ever taken for whole."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import artifact, artifact_write
from aot.config import Budget
from aot.errors import ArtifactError, UsageError
from aot.runtime import files
from aot.stages.package import Result, package
from aot.stages.verify import verify_engine
from tests.tiny import PLAN, SPEC, WEIGHT, Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "store")


def build(shop: Workshop, output: Path, *targets: str, weight: np.ndarray[Any, Any] = WEIGHT) -> Result:
    """Package the tiny model with an engine for each target."""
    prepared = shop.prepared(weight)
    engines = [shop.cpu_engine(weight) if target == "cpu" else shop.engine(target) for target in targets]
    plan = replace(PLAN, backend="tensorrt_rtx" if targets else None, targets=targets)
    reports = [verify_engine(shop.run, engine, prepared, plan) for engine in engines]
    return package(shop.run, prepared, plan, engines, reports, output)


def test_the_summary_has_the_documented_form(shop: Workshop, tmp_path: Path) -> None:
    result = build(shop, tmp_path / "tiny.aot", "sm89", "cpu")
    summary = result.summary
    json.dumps(summary, allow_nan=False)
    assert result.accepted
    assert summary["artifact"] == str(tmp_path / "tiny.aot")
    assert (summary["precision"], summary["backend"], summary["accepted"]) == ("fp32", "tensorrt_rtx", True)
    assert [engine["target"] for engine in summary["engines"]] == ["sm89", "cpu"]
    assert summary["engines"][0].keys() >= {"target", "file", "bytes", "seconds", "cached"}
    assert summary["nodes"] == {"exported": 2, "final": 1}
    assert summary["quantized"] == {"ops": 0, "qdq": 0}
    assert summary["verification"]["graph"].keys() >= {"ran", "cosine", "relative_l2", "max_abs"}
    assert summary["verification"]["engine"]["ran"] is True  # the cpu engine ran, so that is the answer
    assert summary["stages"][-1]["name"] == "package"


def test_plans_lie_beside_their_metadata_and_are_the_vendors_bytes(shop: Workshop, tmp_path: Path) -> None:
    build(shop, tmp_path / "tiny.aot", "sm89")
    assert (tmp_path / "tiny.aot/engines/sm89.plan").read_bytes() == b"plan" * 100
    beside = json.loads((tmp_path / "tiny.aot/engines/sm89.json").read_text())
    assert beside["engine"]["target"] == "sm89"
    assert (tmp_path / "tiny.aot/engines/sm89.timing").read_bytes() == b"timings"
    assert beside["report"]["reason"].startswith("built, not run: ")


def test_what_is_loaded_equals_what_was_packaged(shop: Workshop, tmp_path: Path) -> None:
    build(shop, tmp_path / "tiny.aot", "sm89")
    first, back = shop.prepared(), artifact.load(str(tmp_path / "tiny.aot"))
    assert back.spec == SPEC
    assert back.exported_nodes == 2
    assert (back.final, back.ranges, back.references, back.checked) == (
        first.final, first.ranges, first.references, first.checked,
    )  # fmt: skip
    assert back.ranges.amax() == {"x": 3.5}
    assert [case.outputs["y"].shape for case in back.references.cases()] == [(1, 2), (3, 2)]
    assert back.plan == replace(PLAN, backend="tensorrt_rtx", targets=("sm89",))
    assert [engine.plan.read_bytes() for engine, _ in back.engines] == [b"plan" * 100]


def test_another_engine_is_added_to_a_loaded_artifact(shop: Workshop, tmp_path: Path) -> None:
    build(shop, tmp_path / "tiny.aot", "sm89")
    prepared = artifact.load(str(tmp_path / "tiny.aot"))
    engine = shop.engine("sm120", data=b"other")
    plan = replace(prepared.plan, targets=("sm120",))
    report = verify_engine(shop.run, engine, prepared, plan)
    result = package(shop.run, prepared, plan, [engine], [report], tmp_path / "tiny.aot")
    assert sorted(e["target"] for e in result.summary["engines"]) == ["sm120", "sm89"]
    back = artifact.load(str(tmp_path / "tiny.aot"))
    assert {e.target: e.plan.read_bytes() for e, _ in back.engines} == {"sm89": b"plan" * 100, "sm120": b"other"}
    assert [half.did for half in back.history] == [["graph", "engines"], ["engines"]]


def test_an_unchanged_artifact_is_left_untouched(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert build(shop, output).summary["stages"][-1]["cached"]
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    assert not build(shop, output, weight=WEIGHT * np.float32(1.5)).summary["stages"][-1]["cached"]


def test_a_file_cut_short_is_written_again(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output)
    (output / "graph/model.onnx").write_bytes(b"short")
    build(shop, output)
    artifact.load(str(output))


def test_another_budget_decides_anew_over_the_same_numbers(shop: Workshop, tmp_path: Path) -> None:
    prepared = shop.prepared(WEIGHT * np.float32(1.1))
    plan = replace(PLAN, budget=Budget(relative_l2=0.05))
    result = package(shop.run, prepared, plan, [], [], tmp_path / "tiny.aot")
    assert not result.accepted
    assert result.summary["reasons"] == ["graph: relative_l2 0.1 is above 0.05"]


def test_the_report_is_one_page_without_network(shop: Workshop, tmp_path: Path) -> None:
    build(shop, tmp_path / "tiny.aot", "sm89")
    page = (tmp_path / "tiny.aot/report.html").read_text()
    for shown in ("tiny, fp32", "Accepted", "built, not run", "matmul &lt;1&gt;", "net.head", "tiny.py:3", "b3"):
        assert shown in page
    assert "the network&#x27;s precision" in page
    assert "http" not in page
    assert "width=device-width" in page


def test_a_tar_holds_the_same_and_is_unpacked_once(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.tar"
    build(shop, output, "sm89")
    assert artifact.is_artifact(str(output))
    with tarfile.open(output) as tar:
        members = tar.getmembers()
    assert members[0].name == "manifest.json"
    assert [m.name for m in members[1:]] == sorted(m.name for m in members[1:])
    assert {m.mtime for m in members} == {0}
    back = artifact.load(str(output))
    assert back.final == shop.prepared().final
    assert artifact.load(str(output)).final.path == back.final.path
    stamp = output.stat().st_mtime_ns
    assert build(shop, output, "sm89").summary["stages"][-1]["cached"]
    assert output.stat().st_mtime_ns == stamp


def test_a_tar_that_writes_outside_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.add(tmp_path / "evil", arcname="../evil")
    with pytest.raises(ArtifactError, match="not a readable tar"):
        artifact.load(str(tmp_path / "evil.tar"))


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Another content of the manifest, its digest made to fit."""

    def apply(folder: Path) -> None:
        data = json.loads((folder / "manifest.json").read_text())
        change(data)
        data["digest"] = files.manifest_digest(data)
        (folder / "manifest.json").write_text(json.dumps(data))

    return apply


KERNELS = {"stage": "kernels", "key": "0" * 64, "facts": {"target": "../../x", "kernels": [], "left": []}}


def flip(folder: Path) -> None:
    data = bytearray((folder / "graph/model.onnx").read_bytes())
    data[-1] ^= 1
    (folder / "graph/model.onnx").write_bytes(data)


def link(folder: Path) -> None:
    outside = folder.parent / "outside"
    os.replace(folder / "graph/model.onnx", outside)
    (folder / "graph/model.onnx").symlink_to(outside)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "manifest.json").write_text("{"), "not JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe\x00"), "not JSON"),
        (lambda f: (f / "manifest.json").write_text("[]"), "no schema_version"),
        (lambda f: (f / "manifest.json").unlink(), "has no manifest.json"),
        (edit(lambda m: m.update(schema_version=99)), "schema version 99, and this aot reads up to 2"),
        (edit(lambda m: m.pop("spec")), "spec: Field required"),
        (edit(lambda m: m["records"].pop("graph")), "records.graph: Field required"),
        (edit(lambda m: m["spec"].pop("inputs")), "spec.inputs: Field required"),
        (edit(lambda m: m["plan"].update(precision="fp3")), "fp3"),
        (edit(lambda m: m["files"].update({"../../etc/passwd": m["files"]["report.json"]})), "outside the artifact"),
        (edit(lambda m: m["files"].update({"/etc/passwd": m["files"]["report.json"]})), "outside the artifact"),
        (lambda f: (f / "references/cases.json").unlink(), "references/cases.json"),
        (lambda f: (f / "graph/model.onnx").write_bytes(b"12"), "has 2 bytes instead of"),
        (edit(lambda m: m["kernels"].append(KERNELS)), "does not list kernels/../../x/kernels.json"),
        (edit(lambda m: m["kernels"].append({**KERNELS, "facts": {}})), "kernels.0.facts.target: Field required"),
        (flip, "SHA-256 differs"),
        (link, "a link that leaves it"),
    ],
)
def test_a_damaged_artifact_is_refused_with_the_place(
    shop: Workshop, tmp_path: Path, damage: Callable[[Path], Any], says: str
) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output)
    damage(output)
    with pytest.raises(ArtifactError) as caught:
        artifact.load(str(output))
    assert says in str(caught.value)
    assert "tiny.aot" in str(caught.value)


def test_what_is_no_artifact_is_not_overwritten(shop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_text("meow")
    (tmp_path / "notes").write_text("x")
    for name in ("photos", "notes"):
        with pytest.raises(ArtifactError, match="will not overwrite"):
            build(shop, tmp_path / name)
    assert (tmp_path / "photos/cat.jpg").read_text() == "meow"
    (tmp_path / "empty").mkdir()
    build(shop, tmp_path / "empty")
    artifact.load(str(tmp_path / "empty"))


def test_a_model_in_the_place_of_an_artifact_is_to_be_built_first(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    with pytest.raises(UsageError, match="this is a model, and no artifact") as refused:
        files.unpacked(str(tmp_path / "model.py"))
    assert refused.value.fix == f"build it first: aot build {tmp_path / 'model.py'}"


def test_a_missing_artifact_is_the_users_error() -> None:
    assert not artifact.is_artifact("nowhere.aot")
    with pytest.raises(UsageError, match="no such artifact"):
        files.unpacked("nowhere.aot")


def test_a_full_disk_keeps_the_previous_artifact(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output)
    previous = shop.prepared().final.key

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(output))

    monkeypatch.setattr(artifact_write, "_copy", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        build(shop, output, weight=WEIGHT * np.float32(2))
    assert artifact.load(str(output)).final.key == previous
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_leftovers_of_killed_runs_are_swept_and_those_of_living_ones_are_not(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.aot"
    gone, foreign = tmp_path / f".tiny.aot.{'0' * 16}.new", tmp_path / ".tiny.aot.notes"
    for folder in (gone, foreign):
        folder.mkdir()
    with artifact_write.sibling(output) as ours:
        ours.mkdir()
        build(shop, output)
        assert ours.exists()
    assert not gone.exists()
    assert foreign.exists()
    assert {path.name for path in tmp_path.iterdir()} >= {"tiny.aot", ".tiny.aot.notes"}
    assert [path.name for path in tmp_path.glob(".tiny.aot.*")] == [".tiny.aot.notes"]


def test_an_artifact_moved_aside_by_a_killed_run_goes_back(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output)
    os.rename(output, tmp_path / f".tiny.aot.{'0' * 16}.old")
    artifact_write.sweep(output)
    assert artifact.load(str(output)).spec == SPEC


@pytest.mark.parametrize("name", ["tiny.aot", "tiny.tar"])
def test_a_rejected_build_does_not_replace_an_accepted_artifact(shop: Workshop, tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    assert build(shop, output).accepted
    accepted = artifact.load(str(output)).final.key
    result = build(shop, output, weight=-WEIGHT)
    assert not result.accepted
    assert result.artifact == tmp_path / name.replace("tiny", "tiny.rejected")
    assert result.summary["artifact"] == str(result.artifact)
    assert any(str(output) in warning and str(result.artifact) in warning for warning in result.summary["warnings"])
    assert artifact.load(str(output)).final.key == accepted
    assert artifact.load(str(result.artifact)).final.key != accepted
    assert build(shop, output, weight=-WEIGHT).summary["stages"][-1]["cached"]


def test_a_rejected_build_replaces_a_rejected_artifact(shop: Workshop, tmp_path: Path) -> None:
    output = tmp_path / "tiny.aot"
    build(shop, output, weight=-WEIGHT)
    assert build(shop, output, weight=WEIGHT[::-1].copy()).artifact == output


@pytest.mark.parametrize("name", ["x.zip", "foo", ".aot", "a.aot.bak"])
def test_another_suffix_is_refused_with_the_two_forms(name: str) -> None:
    with pytest.raises(UsageError, match=r"NAME\.aot or one file NAME\.tar"):
        artifact_write.check_name(Path(name))


@pytest.mark.parametrize("name", ["/proc/x.aot", "/proc/deep/er/x.tar", "file/x.aot"])
def test_a_place_that_cannot_be_written_is_found_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be written") as caught:
        artifact_write.check_output(Path(name))
    assert caught.value.where == name
    assert "space" not in str(caught.value.fix)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_checking_an_output_makes_nothing(tmp_path: Path) -> None:
    artifact_write.check_output(tmp_path / "new" / "x.aot")
    assert list(tmp_path.iterdir()) == []
