"""`aot.lock` and `--locked`: the same build again, or what changed, by name, old and new."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot import lock, toolchain
from aot.backend import Job, get
from aot.backends._engine_layers import tactics
from aot.config import EngineOptions, Request
from aot.errors import LockError, UsageError
from aot.lock import Ledger, Lock
from aot.lock_changes import changes, tactic_changes
from aot.progress import Silent
from aot.records import TACTICS, TIMING, Engine
from aot.store import Entry, Store
from aot.timing_cache import TimingCaches
from tests.backends import fake_tensorrt
from tests.backends.graphs import write
from tests.backends.test_tensorrt import PROFILES, SPEC
from tests.e2e.harness import DIM, Here, Outcome, write_mlp_onnx
from tests.tiny import PLAN, Workshop

RTX = ("--backend", "tensorrt_rtx", "--target", "sm89")


@pytest.fixture(scope="module")
def aot(tmp_path_factory: pytest.TempPathFactory) -> Here:
    """A project with an artifact, `mlp.aot`, and its lock, also as `mlp.lock`."""
    base = tmp_path_factory.mktemp("lock")
    (base / "project").mkdir()
    write_mlp_onnx(base / "project/mlp.onnx")
    aot = Here(base / "project", base / "store")
    done = build(aot, "--lock", "mlp.lock")
    assert done.code == 0, done.err
    return aot


def build(aot: Here, *options: str) -> Outcome:
    return aot("build", "mlp.onnx", *DIM, *(() if "--target" in options else RTX), *options)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def named(done: Outcome) -> list[str]:
    """What a refusal says has changed."""
    assert done.code == 1, done.err
    lines = [line.strip() for line in done.err.splitlines()]
    start = next(i for i, line in enumerate(lines) if "not the one that was locked" in line)
    return [line for line in lines[start + 1 :] if " -> " in line]


class TestWhatALockSays:
    def test_it_lies_in_the_artifact_and_where_it_is_asked_for(self, aot: Here) -> None:
        inside = aot.folder / "mlp.aot/aot.lock"
        assert inside.read_text() == (aot.folder / "mlp.lock").read_text()
        listed = read(aot.folder / "mlp.aot/manifest.json")["files"]["aot.lock"]
        assert listed["sha256"] == hashlib.sha256(inside.read_bytes()).hexdigest()

    def test_it_holds_what_the_build_depends_on(self, aot: Here) -> None:
        found = read(aot.folder / "mlp.lock")
        assert found["options"]["engine"]["optimization_level"] == 3
        assert found["options"]["profiles"] == [{"batch": [1, 4, 8]}]
        assert found["versions"]["onnx"] == toolchain.version("onnx")
        assert found["versions"]["tensorrt-rtx-cu13"] == toolchain.version("tensorrt-rtx-cu13")
        model = (aot.folder / "mlp.onnx").read_bytes()
        assert found["sources"] == {"mlp.onnx": hashlib.sha256(model).hexdigest()}
        (engine,) = found["engines"]
        assert (engine["target"], engine["timing_cache"], engine["tactics"]) == ("sm89", None, None)
        assert found["digests"].keys() == {"data", "graph"}

    def test_the_same_build_elsewhere_has_the_same_lock(self, aot: Here, tmp_path: Path) -> None:
        other = Here(tmp_path, tmp_path / "store")
        write_mlp_onnx(tmp_path / "mlp.onnx")
        assert build(other, "--lock", "mlp.lock").code == 0
        assert (tmp_path / "mlp.lock").read_bytes() == (aot.folder / "mlp.lock").read_bytes()

    def test_a_prepared_artifact_has_one_too(self, aot: Here) -> None:
        assert aot("build", "mlp.onnx", *DIM, "--until", "graph", "-o", "prepared.aot").code == 0
        assert read(aot.folder / "prepared.aot/aot.lock")["engines"] == []
        done = aot("build", "mlp.onnx", *DIM, "--until", "graph", "-o", "prepared.aot", "--locked")
        assert done.code == 0, done.err


class TestLocked:
    def test_the_same_build_passes(self, aot: Here) -> None:
        assert build(aot, "--locked").code == 0
        done = build(aot, "--locked", "--lock", "mlp.lock", "--fresh", "-o", "again.aot")
        assert done.code == 0, done.err
        assert (aot.folder / "again.aot/aot.lock").read_text() == (aot.folder / "mlp.lock").read_text()

    def test_a_build_from_the_artifact_passes(self, aot: Here) -> None:
        done = aot("build", "mlp.aot", *RTX, "--locked", "-o", "from.aot", "--lock", "mlp.lock")
        assert done.code == 0, done.err

    def test_changed_options_are_named_before_any_work(self, aot: Here) -> None:
        (aot.folder / "p.yaml").write_text("engine: {optimization_level: 5, tf32: true}\n")
        done = build(aot, "--locked", "--profile", "./p.yaml")
        assert named(done) == ["option engine.optimization_level: 3 -> 5", "option engine.tf32: false -> true"]
        assert "export" not in done.err
        done = build(aot, "--locked", "--target", "sm120", "--backend", "tensorrt_rtx")
        assert named(done) == ['option targets: ["sm89"] -> ["sm120"]']

    def test_another_precision_is_named(self, aot: Here) -> None:
        assert "option precision: fp16 -> fp32" in named(build(aot, "--locked", "--precision", "fp32"))

    def test_a_changed_file_is_named(self, aot: Here, tmp_path: Path) -> None:
        kept = (aot.folder / "mlp.onnx").read_bytes()
        (aot.folder / "mlp.onnx").write_bytes(kept.replace(b"relu", b"RELU"))
        (line,) = named(build(aot, "--locked"))
        (aot.folder / "mlp.onnx").write_bytes(kept)
        assert line.startswith(f"file mlp.onnx: {hashlib.sha256(kept).hexdigest()[:12]}... -> ")

    def test_another_version_is_named(self, aot: Here, monkeypatch: pytest.MonkeyPatch) -> None:
        known = toolchain.version
        monkeypatch.setattr(toolchain, "version", lambda name: "9.9" if name == "onnxscript" else known(name))
        assert named(build(aot, "--locked")) == [f"version of onnxscript: {known('onnxscript')} -> 9.9"]

    def test_the_refusal_is_one_object_on_demand(self, aot: Here) -> None:
        done = build(aot, "--locked", "--no-search", "--json")
        assert done.code == 1
        assert "option search: true -> false" in done.json["error"]["what"]
        assert done.json["error"]["where"].endswith("aot.lock")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (("-o", "nowhere.aot"), "there is no lock to build by"),
            (("--lock", "nowhere.lock"), "the lock cannot be read: No such file"),
            (("--lock", "mlp.onnx"), "not a lock of this aot"),
            (("--lock", "other.json"), "not a lock of this aot: it has form 7"),
            (("--precision", "auto"), "a lock is of one precision"),
        ],
    )
    def test_what_is_no_lock_is_the_users_to_put_right(self, aot: Here, options: tuple[str, ...], says: str) -> None:
        (aot.folder / "other.json").write_text('{"lock": 7, "engines": []}')
        done = build(aot, "--locked", *options)
        assert done.code == 2
        assert says in done.err

    @pytest.mark.parametrize(
        ("place", "says"),
        [
            ("mlp.onnx", "will not overwrite what is not a lock"),
            ("package.json", "will not overwrite what is not a lock"),
            ("/dev/null", "will not overwrite what is not a lock"),
            ("mlp.aot", "will not overwrite what is not a lock"),
            ("empty", "a lock cannot be written here"),
            ("mlp.onnx/x.lock", "a lock cannot be written here"),
            ("mlp.aot/x.lock", "nothing is written into an artifact"),
        ],
    )
    def test_where_no_lock_can_be_written_is_said_before_any_work(self, aot: Here, place: str, says: str) -> None:
        (aot.folder / "package.json").write_text('{"name": "other"}')
        (aot.folder / "empty").mkdir(exist_ok=True)
        before = (aot.folder / "mlp.onnx").read_bytes()
        done = build(aot, "--lock", place, "-o", "unlocked.aot")
        assert (done.code, says in done.err) == (2, True)
        assert not (aot.folder / "unlocked.aot").exists()
        assert (aot.folder / "mlp.onnx").read_bytes() == before

    def test_nor_is_another_artifact_written_into_one(self, aot: Here) -> None:
        done = build(aot, "-o", "mlp.aot/inner.aot")
        assert (done.code, "nothing is written into an artifact" in done.err) == (2, True)
        assert not (aot.folder / "mlp.aot/inner.aot").exists()

    @pytest.mark.parametrize("before", ["", '{"lock": 7}'])
    def test_a_lock_takes_the_place_of_another(self, aot: Here, before: str) -> None:
        place = aot.folder / "made/later.lock"
        place.parent.mkdir(exist_ok=True)
        place.write_text(before)
        assert build(aot, "--lock", "made/later.lock").code == 0
        assert place.read_bytes() == (aot.folder / "mlp.lock").read_bytes()
        assert [one.name for one in place.parent.iterdir() if one.name.startswith(".")] == []

    def test_a_lock_of_a_size_that_none_has_is_not_read(self, aot: Here) -> None:
        with (aot.folder / "huge.lock").open("wb") as file:
            file.truncate(1 << 40)
        for name, says in (("huge.lock", "has more than"), ("/dev/zero", "is not a plain file")):
            done = build(aot, "--lock", name, "--locked")
            assert (done.code, says in done.err) == (2, True)


def _said(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "options": {"precision": "fp16", "engine": {"tf32": False}, "recipe": {"compute": "fp16"}},
        "versions": {"aot": "1", "torch": "2.11", "tensorrt": "10.6.0"},
        "machine": {"gpu": "NVIDIA H200", "driver": "580"},
        "sources": {"model.py": "a" * 64, "w.npz": "b" * 64},
        "packages": {"timm": "1.0"},
        "digests": {"data": "c" * 64},
        "engines": [{"target": "sm90"}],
    }
    return base | more


FROM_ARTIFACT: dict[str, Any] = {"sources": None, "packages": None, "digests": {}}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        (
            {"machine": {"gpu": "NVIDIA H100", "driver": "590"}},
            ["driver: 580 -> 590", "gpu: NVIDIA H200 -> NVIDIA H100"],
        ),
        (
            {"versions": {"aot": "1", "tensorrt": "10.9.0"}},
            ["version of tensorrt: 10.6.0 -> 10.9.0", "version of torch: 2.11 -> none"],
        ),
        (
            {"packages": {"timm": "1.1", "einops": "0.8"}},
            ["version of einops: none -> 0.8", "version of timm: 1.0 -> 1.1"],
        ),
        ({"sources": {"model.py": "a" * 64}}, ["file w.npz: bbbbbbbbbbbb... -> none"]),
        ({"digests": {"data": "d" * 64}}, ["digest of the calibration data: cccccccccccc... -> dddddddddddd..."]),
        # From an artifact: neither sources nor recipe are known, and torch has no part in it.
        (FROM_ARTIFACT | {"versions": {"aot": "1", "tensorrt": "10.6.0"}}, []),
        (
            FROM_ARTIFACT | {"options": {"precision": "int8", "engine": {"tf32": False}}},
            ["option precision: fp16 -> int8"],
        ),
    ],
)
def test_every_change_is_one_line(changed: dict[str, Any], says: list[str]) -> None:
    assert [one for one in changes(_said(), _said(**changed)) if one] == says


def test_without_an_engine_the_gpu_does_not_count() -> None:
    now = _said(machine={"gpu": None, "driver": None}, engines=[])
    assert [one for one in changes(_said(engines=[]), now) if one] == []


def layers(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"layer": name, "tactic": tactic} for name, tactic in pairs]


def test_tactics_are_compared_layer_by_layer() -> None:
    locked = layers(("a", "gemm_1"), ("b", "gemm_2"), ("b", "gemm_3"), ("c", ""))
    assert tactic_changes(locked, locked) == []
    now = layers(("a", "gemm_1"), ("b", "gemm_2"), ("b", "gemm_9"), ("d", "x"))
    assert tactic_changes(locked, now) == [
        "tactic of layer 'b (2)': gemm_3 -> gemm_9",
        "layer 'c' is gone",
        "layer 'd' is new, with tactic x",
    ]


def test_many_differences_are_counted() -> None:
    assert lock.listed([str(n) for n in range(15)]) == [*map(str, range(12)), "and 3 more"]


def test_what_the_inspector_says_of_layers() -> None:
    class Inspector:
        def get_engine_information(self, form: str) -> str:
            said = [
                {"Name": "first", "TacticName": "sm90_xmma_gemm", "TacticValue": "0x1"},
                {"Name": "second", "TacticName": "", "TacticValue": "0x2"},
                {"Name": "third"},
                "a name alone",
            ]
            return json.dumps({"Layers": said})

    class Vendor:
        LayerInformationFormat = type("Form", (), {"JSON": "json"})

    class Loaded:
        def create_engine_inspector(self) -> Inspector:
            return Inspector()

    assert tactics(Vendor, Loaded()) == layers(("first", "sm90_xmma_gemm"), ("second", "0x2"), ("third", ""))  # type: ignore[arg-type]


class TestTheTimingCache:
    @pytest.fixture
    def relu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        fake_tensorrt.install(monkeypatch)
        return write(tmp_path / "model.onnx", "g (float[b, 4] x) => (float[b, 4] y) { y = Relu(x) }")

    def made(self, graph: Path, timings: bytes | None, folder: Path) -> dict[str, Any]:
        job = Job(graph, SPEC, "fp16", PROFILES, "sm90", EngineOptions(), timings=timings)
        return dict(get("tensorrt").build(job, folder / "e.plan", TimingCaches(Store(folder / "store")), Silent()))

    def test_a_locked_build_takes_tactics_from_it_alone(self, relu: Path, tmp_path: Path) -> None:
        facts = self.made(relu, b"kernel of n0", tmp_path)
        config = fake_tensorrt.MODULE.builders[-1].config
        assert "error_on_miss" in config.flags
        assert facts["timing_cache"] == {"used": True, "saved": False}
        assert (tmp_path / "e.timing").read_bytes() == b"kernel of n0"  # so the next lock is the same
        assert not (tmp_path / "store/timing-cache").exists()

    def test_what_it_lacks_is_not_timed(self, relu: Path, tmp_path: Path) -> None:
        with pytest.raises(LockError, match="cannot build with the locked tactics alone: Cache miss"):
            self.made(relu, b"kernel of other", tmp_path)

    @pytest.mark.parametrize("timings", [b"garbage", b"gpu:other"])
    def test_one_of_another_gpu_is_refused(self, relu: Path, tmp_path: Path, timings: bytes) -> None:
        with pytest.raises(LockError, match="does not take the locked timing cache"):
            self.made(relu, timings, tmp_path)

    def locked(self, timing: bytes | None, sha256: str | None) -> Lock:
        data = {"engines": [{"target": "sm90", "timing_cache": sha256}]}
        return Lock(Path("m.lock"), data, {} if timing is None else {"sm90": timing})

    def test_it_is_held_against_its_digest(self) -> None:
        right = hashlib.sha256(b"cache").hexdigest()
        assert self.locked(b"cache", right).cache("sm90") == b"cache"
        assert self.locked(None, None).cache("sm90") is None  # it was built without
        assert self.locked(b"cache", right).cache("sm89") is None
        with pytest.raises(LockError, match=f"timing cache sm90: {right[:12]}... -> "):
            self.locked(b"another", right).cache("sm90")
        with pytest.raises(UsageError, match="is not beside the lock"):
            self.locked(None, right).cache("sm90")


def engine(folder: Path, *pairs: tuple[str, str]) -> Engine:
    folder.mkdir()
    (folder / f"sm90{TACTICS}").write_text(json.dumps(layers(*pairs)))
    (folder / f"sm90{TIMING}").write_bytes(b"cache")
    return Engine(Entry("build", "k", folder, {"target": "sm90", "file": "sm90.plan"}))


def test_other_tactics_make_a_build_that_is_not_accepted(tmp_path: Path) -> None:
    shop = Workshop(tmp_path / "store")
    said = {"engines": [{"target": "sm90", "tactics": layers(("a", "one"))}], "digests": {}}
    ledger = Ledger(Lock(tmp_path / "m.lock", said))
    assert ledger.tactics([engine(tmp_path / "same", ("a", "one"))]) == []
    says = "engine sm90, tactic of layer 'a': one -> two"
    assert ledger.tactics([engine(tmp_path / "other", ("a", "two"))]) == [says]
    assert Ledger().tactics([engine(tmp_path / "free", ("a", "two"))]) == []

    from aot.stages.package import package
    from aot.stages.verify import verify_engine

    made = shop.engine("sm90")
    (made.path / f"sm90{TACTICS}").write_text(json.dumps(layers(("a", "two"))))
    plan = replace(PLAN, backend="tensorrt", targets=("sm90",))
    prepared = shop.prepared()
    shop.run.ledger = ledger
    report = verify_engine(shop.run, made, prepared, plan)
    result = package(shop.run, prepared, plan, [made], [report], tmp_path / "m.aot")
    assert not result.accepted
    assert result.summary["reasons"] == [f"not what was locked: {says}"]


def test_a_lock_outside_has_the_timing_caches_beside_it(tmp_path: Path) -> None:
    one = engine(tmp_path / "entry", ("a", "one"))
    empty: dict[str, Any] = {"options": {}, "versions": {}, "machine": {}, "digests": {}}
    lock.write(tmp_path / "m.lock", json.dumps({"lock": 1, "engines": [], **empty}), [one])
    assert (tmp_path / "m.lock.sm90.timing").read_bytes() == b"cache"
    found = lock.ledger(Request(model="m.py", lock=tmp_path / "m.lock", locked=True), []).locked
    assert found is not None
    assert found.caches == {"sm90": b"cache"}


def test_names_of_files_are_those_of_any_machine() -> None:
    read_files = {"files": {"/home/a/project/sub/model.py": {"sha256": "1"}, "/data/hub/abc/w.bin": {"sha256": "2"}}}
    assert lock.files(read_files, Path("/home/a/project")) == {"sub/model.py": "1", ".../abc/w.bin": "2"}
