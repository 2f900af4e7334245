"""The whole command, with processes of its own, on models of a few numbers."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.bench.contender import Job
from aot.bench.worker import Failed, Worker
from aot.cli import _main as cli
from aot.stages.package import package
from aot.stages.verify import verify_engine
from aot.store import Store
from tests.e2e.harness import Aot
from tests.tiny import PLAN, WEIGHT, Workshop, write_model

FIELDS = {
    "tool", "name", "label", "precision", "sizes", "runs", "p50_ms", "p90_ms", "p99_ms", "spread", "first_ms",
    "load_ms", "throughput", "launches", "gpu_bytes", "host_bytes", "energy_mj", "cosine", "relative_l2", "reason",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def artifact(output: Path, weight: np.ndarray[Any, Any] = WEIGHT) -> str:
    """y = x W as an artifact whose engine runs on the CPU."""
    shop = Workshop(Store().root)
    prepared, engine = shop.prepared(weight), shop.cpu_engine(weight)
    plan = replace(PLAN, backend="onnxruntime", targets=("cpu",))
    package(shop.run, prepared, plan, [engine], [verify_engine(shop.run, engine, prepared, plan)], output)
    return str(output)


def test_an_artifact_beside_an_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "tiny.onnx", WEIGHT)
    arguments = ["bench", artifact(tmp_path / "tiny.aot"), str(tmp_path / "tiny.onnx"), "--runs", "100"]
    assert cli.call([*arguments, "--size", "batch=1", "--size", "batch=4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["artifact"] == arguments[1]
    assert set(found["versions"]) >= {"aot", "python", "numpy", "onnxruntime"}
    assert found["machine"]["threads"] >= 1
    assert found["clocks"]["gpu"] is None
    assert 0 <= found["clocks"]["cpu_others"] <= 1
    assert not found["interrupted"]
    rows = found["rows"]
    assert all(set(row) == FIELDS for row in rows)
    ran = [row for row in rows if row["p50_ms"] is not None]
    assert [(row["tool"], row["sizes"]["batch"]) for row in ran] == [
        ("aot", 1), ("onnxruntime-cpu", 1), ("aot", 4), ("onnxruntime-cpu", 4),
    ]  # fmt: skip
    for row in ran:
        assert row["runs"] == 100
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["first_ms"] > row["load_ms"] > row["p50_ms"]
        assert row["host_bytes"] > 1 << 20
        assert row["cosine"] == pytest.approx(1.0, abs=1e-6)
        assert (row["launches"], row["gpu_bytes"], row["energy_mj"]) == (None, None, None)
        assert row["reason"] == "gpu_bytes, energy_mj, launches: no GPU"
    out = {row["tool"]: row["reason"] for row in rows if row["p50_ms"] is None}
    assert "--model model.py" in out["eager"]
    assert out["onnxruntime-cuda"] == "no GPU"


def test_two_artifacts_are_told_apart_and_judged_by_the_references_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = WEIGHT.copy()
    wrong[0, 0] += 1
    names = [artifact(tmp_path / "right.aot"), artifact(tmp_path / "wrong.aot", wrong)]
    page = tmp_path / "page.html"
    options = ["--against", "onnxruntime-cpu", "--runs", "20", "--html", str(page)]
    assert cli.call(["bench", *names, *options]) == 0
    assert page.read_text().startswith("<!doctype html>")
    said = capsys.readouterr().out
    assert "batch=2" in said  # the optimum
    lines = {line.split()[1]: line.split() for line in said.splitlines() if line.startswith("  aot ") and "e" in line}
    assert lines["right"][-1] == "0.0e+00"
    assert float(lines["wrong"][-1]) > 0.01
    assert "p99_ms: 20 runs, and it takes 100" in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "what", "fix"),
    [
        (["--against", "eagre"], "unknown contender 'eagre'", "did you mean 'eager'?"),
        (["--size", "batch=9"], "size 9 is outside Dim 'batch'", "from 1 to 4"),
        (["--size", "batch=²"], "--size 'batch=²': expected NAME=NUMBER", "--size batch=3"),
        (["--size", ""], "--size '': expected NAME=NUMBER", "--size batch=3"),
        (["--size", "batch=1,batch=2"], "--size gives Dim 'batch' two sizes", "give one of them"),
        (["--size", "batsch=2"], "unknown Dim 'batsch'", "did you mean 'batch'?"),
        (["--runs", "3", "--seconds", "4"], "--runs and --seconds contradict each other", "give one of them"),
        (["--seconds", "nan"], "--seconds nan: no time to measure", "--seconds 10"),
        (["--seconds", "inf"], "--seconds inf: no time to measure", "--seconds 10"),
        (["--seed", "-1"], "'--seed': -1 is not in the range", "--help"),
        (["--dim", "batch=1:2:3"], "--dim has nothing to narrow", "--model"),
        (["--html", "."], "the page would have the name of a folder", "--html page.html"),
        (["missing.onnx"], "no such file: missing.onnx", "check the path"),
        (["one.py", "two.py"], "two of what there can be one of, a model: one.py and two.py", "leave one away"),
        (["--html", "/nowhere/page.html"], "no such folder: /nowhere", "make it"),
        (["missing.aot"], "no such artifact: missing.aot", "aot build"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str, fix: str
) -> None:
    assert cli.call(["bench", artifact(tmp_path / "tiny.aot"), *arguments]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert fix in said


def test_a_page_that_may_not_be_written_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert cli.call(["bench", artifact(tmp_path / "tiny.aot"), "--html", str(tmp_path / "page.html")]) == 2
    found = capsys.readouterr()
    assert "the page cannot be written: Permission denied" in found.err
    assert not found.out


def test_a_report_that_no_page_can_be_made_from_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact(tmp_path / "tiny.aot")
    for text, what in (("[" * 100_000, "a part is not JSON"), ('{"model": 3}', "does not say what was built")):
        (Path(made) / "report.json").write_text(text)
        assert cli.call(["bench", made, "--html", str(tmp_path / "page.html")]) == 2
        found = capsys.readouterr()
        assert what in found.err
        assert not found.out


def test_artifacts_of_one_name_in_two_places_are_told_apart_and_each_size_is_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = artifact(tmp_path / "tiny.aot")
    other = shutil.make_archive(str(tmp_path / "tiny"), "tar", first)
    arguments = ["--runs", "5", "--against", "", "--size", "batch=1", "--size", "batch=1", "--json"]
    assert cli.call(["bench", first, other, *arguments]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["runs"]) for row in rows] == [(f"aot {first}", 5), (f"aot {other}", 5)]


def test_where_nothing_ran_the_answer_is_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "tiny.onnx", WEIGHT)
    arguments = ["bench", str(tmp_path / "tiny.onnx"), "--dim", "batch=1:2:4", "--against"]
    assert cli.call([*arguments, "onnxruntime-cuda"]) == 1
    assert "no GPU" in capsys.readouterr().out
    assert cli.call([*arguments, ","]) == 2
    assert "--against names no contender" in capsys.readouterr().err


def test_nothing_to_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["bench", "--runs", "5"]) == 2
    assert "nothing to run" in capsys.readouterr().err


def test_an_onnx_file_of_other_inputs_is_refused_with_both_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.onnx"
    import onnx

    onnx.save(onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[batch, 5] x) => (float[batch, 5] y) { y = Relu(x) }'
    ), str(other))  # fmt: skip
    assert cli.call(["bench", artifact(tmp_path / "tiny.aot"), str(other)]) == 2
    said = capsys.readouterr().err
    assert "input 'x' is float32 [batch, 3] in A and float32 [batch, 5] in B" in said
    assert "other.onnx" in said


def job(source: str, tool: str = "onnxruntime-cpu") -> Job:
    return Job(tool, source, "fp32", False, 1, {})


def test_what_a_contender_raises_is_its_reason_on_one_line(tmp_path: Path) -> None:
    worker = Worker(job(str(tmp_path / "missing.onnx")))
    try:
        worker.ask("start")
        with pytest.raises(Failed, match=r"^NoSuchFile: .*missing\.onnx") as caught:
            worker.ask("first", {})
        assert "\n" not in str(caught.value)
    finally:
        worker.close()


def test_a_process_that_dies_is_a_reason_with_the_signal(tmp_path: Path) -> None:
    import os

    worker = Worker(job("x.onnx"))
    try:
        worker.ask("start")
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(Failed, match="its process ended: SIGSEGV"):
            worker.ask("host_bytes")
    finally:
        worker.close()


MODEL = """
import aot, torch
batch = aot.Dim("batch", min=1, opt=2, max=4)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[1.0, 0.5, 2.0], [-2.0, 3.0, 0.25]]))

    def forward(self, x):
        print("what a model prints is not the answer's")
        return self.linear(x)

@aot.model(inputs={"x": aot.Input([batch, 3])}, outputs=["y"])
def model():
    return Model().eval()
"""


def test_a_model_in_eager_is_the_reference_and_a_contender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    wrong = WEIGHT.copy()
    wrong[0] = -wrong[0]
    arguments = ["bench", artifact(tmp_path / "wrong.aot", wrong), "--model", str(tmp_path / "model.py")]
    assert cli.call([*arguments, "--against", "eager", "--runs", "20", "--precision", "bf16", "--json"]) == 0
    rows = {row["tool"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["eager"]["precision"] == "bf16"
    assert rows["eager"]["label"].startswith("eager (torch ")
    assert 1e-5 < rows["eager"]["relative_l2"] < 1e-2  # bfloat16 has 8 bits
    assert rows["aot"]["cosine"] < 0.9
    assert rows["eager"]["host_bytes"] > rows["aot"]["host_bytes"]  # torch is not in the artifact's process


def test_ctrl_c_prints_what_was_measured_until_then(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.onnx", WEIGHT)
    aot = Aot(tmp_path, Store().root)
    dims, sizes = ("--dim", "batch=1:2:4"), ("--size", "batch=1", "--size", "batch=4")
    process = aot.start("bench", "tiny.onnx", *dims, *sizes, "--against", "onnxruntime-cpu", "--runs", "100", "--json")
    assert process.stderr is not None
    while not process.stderr.readline().startswith("bench"):  # the first size is done
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was measured until then is above" in err
    found = json.loads(out)
    assert found["interrupted"]
    first, *rest = found["rows"]
    assert (first["sizes"], first["runs"]) == ({"batch": 1}, 100)
    assert [row["reason"] for row in rest] == ["interrupted before it was timed"] * len(rest)


STATEFUL = """
import aot, torch

class Peak(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.zeros(3))

    def forward(self, x):
        self.peak = torch.maximum(self.peak, x.abs().amax(0))
        return x / self.peak

@aot.model(inputs={"x": aot.Input([2, 3])}, outputs=["y"], states=["peak"])
def peak():
    return Peak().eval()
"""


def test_a_module_keeps_its_states_while_it_is_timed_and_answers_from_those_given(tmp_path: Path) -> None:
    (tmp_path / "state.py").write_text(STATEFUL)
    x = np.array([[1.0, -4.0, 2.0], [2.0, 2.0, -1.0]], np.float32)
    given = np.array([8.0, 1.0, 2.0], np.float32)
    worker = Worker(job(str(tmp_path / "state.py"), "eager"))
    try:
        worker.ask("start")
        first = worker.ask("first", {"x": x, "state_peak": given})
        assert len(worker.ask("block", 3)) == 3
        again = worker.ask("answers", {"x": x, "state_peak": given * 2})
    finally:
        worker.close()
    peak = np.array([8.0, 4.0, 2.0], np.float32)
    np.testing.assert_array_equal(first["outputs"]["state_peak_out"], peak)
    np.testing.assert_array_equal(first["outputs"]["y"], x / peak)
    np.testing.assert_array_equal(again["state_peak_out"], np.array([16.0, 4.0, 4.0], np.float32))
