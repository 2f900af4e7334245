"""What an explanation holds, on ONNX files: no torch is needed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import toolchain
from aot.config import Request
from aot.errors import TargetError, UsageError
from aot.explain import Explanation, explain
from aot.pipeline import build
from aot.progress import Silent
from aot.store import Store
from aot.toolchain import Machine
from tests.backends.graphs import write

pytest.importorskip("tensorrt_rtx")
BATCH = {"batch": (1, 4, 16)}
FINE = "g (float[batch, 64] x) => (float[batch, 32] y) { h = MatMul(x, w)  y = Relu(h) }"
WEIGHT = np.linspace(-1, 1, 64 * 32, dtype=np.float32).reshape(64, 32)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(None, None, "a CPU"))


def explained(path: Path, **options: Any) -> Explanation:
    return explain(Request(model=str(path), dims=BATCH, **options), Store(), Silent())


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    return write(tmp_path / "fine.onnx", FINE, w=WEIGHT)


def test_a_model_that_builds(fine: Path) -> None:
    found = explained(fine, targets=("sm89",))
    assert found.accepted
    assert (found.breaks, found.refusals, found.remarks) == ((), (), ())
    (target,) = found.targets
    assert (target.target, target.backend, target.asked, target.ok) == ("sm89", "tensorrt_rtx", "parser", True)
    assert target.ops is not None
    # The input is narrowed and the output widened.
    assert target.ops.native == {"Cast": 2, "MatMul": 1, "Relu": 1}
    assert found.nodes == {"exported": 2, "final": 4}


def test_without_a_target_both_backends_for_gpus_are_asked(fine: Path) -> None:
    found = explained(fine)
    assert [(one.target, one.backend, one.asked) for one in found.targets] == [
        (None, "tensorrt", "table"),
        (None, "tensorrt_rtx", "parser"),
    ]


def test_one_of_them_is_enough(tmp_path: Path) -> None:
    """TensorRT has a plugin for NonZero, TensorRT-RTX none."""
    path = write(tmp_path / "m.onnx", "g (float[batch, 64] x) => (int64[2, n] y) { r = Tanh(x)  y = NonZero(r) }")
    found = explained(path)
    assert [(one.backend, one.ok) for one in found.targets] == [("tensorrt", True), ("tensorrt_rtx", False)]
    assert found.accepted
    assert found.targets[0].ops is not None
    assert found.targets[0].ops.plugin == {"NonZero": 1}
    assert not explained(path, backend="tensorrt_rtx").accepted
    (remark,) = found.remarks
    assert (remark.op, "depends on values" in remark.note) == ("NonZero", True)


def test_every_node_that_a_target_lacks_is_named(tmp_path: Path) -> None:
    text = """g (float[batch, 8, 8] x) => (float[batch] y, float[batch] z) {
        a = Tanh(x)  y = Det(a)  b = Sin(x)  z = Det(b) }"""
    found = explained(write(tmp_path / "m.onnx", text), targets=("sm89", "sm90"))
    assert not found.accepted
    for target in found.targets:  # the parser and the table agree
        assert target.ops is not None
        assert target.ops.none == {"Det": 2}
        assert [(one.node, one.op) for one in target.unsupported] == [("n1", "Det"), ("n3", "Det")]
        assert all("plugins/Det.py" in one.fix for one in target.unsupported)
    node = found.to_json()["targets"][0]["unsupported"][0]
    assert set(node) == {"node", "op", "module", "source", "code", "reason", "fix"}


def test_what_rewriting_takes_care_of_is_counted(tmp_path: Path) -> None:
    """Dynamic quantization, which no parser takes, becomes a float graph."""
    text = """g (float[batch, 64] x) => (float[batch, 32] y) {
        q, s, z = DynamicQuantizeLinear(x)  i = MatMulInteger(q, w, z)  f = Cast<to = 1>(i)
        k = Mul(s, t)  y = Mul(f, k) }"""
    weights = (WEIGHT * 127).astype(np.int8)
    path = write(tmp_path / "m.onnx", text, w=weights, t=np.array(1 / 127, np.float32))
    (target,) = explained(path, targets=("sm89",), precision="fp32").targets
    assert target.ok
    assert target.ops is not None
    assert target.ops.rewriting == {"DynamicQuantizeLinear": 1, "MatMulInteger": 1}


def test_a_target_without_the_dtype_is_refused(fine: Path) -> None:
    found = explained(fine, targets=("sm80", "sm89"), precision="fp8")
    old, new = found.targets
    assert old.refused is not None
    assert old.refused.what == "sm80 has no FP8: it begins with sm89"
    assert (old.ok, new.ok, found.accepted) == (False, True, False)


def test_a_target_of_another_machine_is_no_obstacle(fine: Path) -> None:
    """TensorRT builds on the GPU it builds for: that this machine is none is said, and judged by the table."""
    found = explained(fine, targets=("sm90",))
    (target,) = found.targets
    assert (target.backend, target.asked, target.ok) == ("tensorrt", "table", True)
    assert "builds on the GPU it builds for" in target.notes[0]
    refused = explained(fine, backend="tensorrt_rtx", targets=("sm90",)).targets[0].refused
    assert refused is not None
    assert "TensorRT-RTX does not build for sm90" in refused.what


def test_names_that_do_not_exist_are_the_users_errors(fine: Path) -> None:
    with pytest.raises(UsageError, match="unknown target"):
        explained(fine, targets=("sm8",))
    with pytest.raises(UsageError, match="unknown backend"):
        explained(fine, backend="tensort")
    with pytest.raises(TargetError, match="there is none"):
        explained(fine, targets=("auto",))


def test_where_every_target_is_refused_nothing_is_exported(fine: Path) -> None:
    found = explained(fine, targets=("sm80",), precision="fp8")
    assert (found.accepted, found.targets[0].ok, found.nodes) == (False, False, {})
    assert explained(fine, targets=("sm80", "sm89"), precision="fp8").nodes["exported"] == 2


def test_an_artifact_is_inspected(tmp_path: Path) -> None:
    (tmp_path / "net.aot").mkdir()
    with pytest.raises(UsageError, match="is an artifact") as caught:
        explained(tmp_path / "net.aot")
    assert caught.value.fix == f"aot inspect {tmp_path / 'net.aot'}"


def test_a_graph_that_is_refused_ends_it(tmp_path: Path) -> None:
    found = explained(write(tmp_path / "m.onnx", FINE, w=WEIGHT * np.float32("nan")), targets=("sm89",))
    assert [refusal.what for refusal in found.refusals] == ["weight 'w' holds NaN"]
    assert (found.accepted, found.targets[0].ok, found.memory) == (False, None, None)


def test_a_build_does_not_export_again(fine: Path, tmp_path: Path) -> None:
    """The keys are the same, whatever the target."""
    store, progress = Store(tmp_path / "store"), Silent()
    request = Request(model=str(fine), dims=BATCH, targets=("sm89",))
    explain(request, store, progress)
    made = build(request.model_copy(update={"output": tmp_path / "fine.aot"}), store, progress)
    cached = {stage["name"]: stage["cached"] for stage in made.summary["stages"]}
    assert cached["export"]
    assert cached["surgery"]


def test_profiles_are_shown_as_shapes(fine: Path) -> None:
    (profile,) = explained(fine).profiles
    assert profile.dims == {"batch": (1, 4, 16)}
    assert profile.inputs == {"x": ((1, 64), (4, 64), (16, 64))}


def test_the_keys_of_the_answer(fine: Path) -> None:
    data = explained(fine, targets=("sm89",), precision="int8").to_json()
    assert list(data) == [
        "model", "accepted", "breaks", "refusals", "targets", "precision", "memory", "profiles", "remarks", "routes",
        "nodes", "seconds",
    ]  # fmt: skip
    (target,) = data["targets"]
    assert set(target) == {
        "target", "backend", "version", "asked", "refused", "ops", "unsupported", "notes", "plugins", "ok",
    }  # fmt: skip
    assert set(target["ops"]) == {"native", "plugin", "rewriting", "none"}
    assert set(data["precision"]) == {"name", "compute", "quantized", "wide", "warnings"}
    assert set(data["memory"]) == {"engine", "weights", "activations", "build", "unknown"}
