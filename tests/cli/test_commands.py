"""What the commands print and write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from aot.cli import _main as cli
from aot.stages.package import package
from aot.stages.verify import verify_engine
from aot.store import Store
from tests.tiny import PLAN, WEIGHT, Workshop, write_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """An artifact with an engine for another machine."""
    return make(tmp_path / "tiny.aot")


def make(output: Path, weight: np.ndarray[Any, Any] = WEIGHT, cpu: bool = False) -> Path:
    shop = Workshop(Store().root)
    prepared = shop.prepared(weight)
    engine = shop.cpu_engine(weight) if cpu else shop.engine("sm89")
    plan = replace(PLAN, backend=str(engine.facts["backend"]), targets=(engine.target,))
    report = verify_engine(shop.run, engine, prepared, plan)
    package(shop.run, prepared, plan, [engine], [report], output)
    return output


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_run_takes_the_final_graph_where_no_engine_runs_and_says_so(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.savez(tmp_path / "x.npz", x=x)
    arguments = ["run", str(tiny), "--inputs", str(tmp_path / "x.npz"), "--output", str(tmp_path / "y.npz"), "--json"]
    assert cli.call(arguments) == 0
    found = said(capsys)
    assert found["ran"].startswith("final graph, fp32 (onnxruntime ")
    assert found["outputs"] == [{"name": "y", "dtype": "float32", "shape": [3, 2]}]
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_allclose(outputs["y"], x @ WEIGHT, rtol=1e-6)


def test_run_takes_an_engine_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["run", str(make(tmp_path / "t.aot", cpu=True)), "--json"]) == 0
    assert said(capsys)["ran"].startswith("engine cpu (onnxruntime")


def test_run_makes_random_inputs_of_the_asked_sizes(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["run", str(tiny), "--size", "batch=4", "--json"]) == 0
    assert said(capsys)["outputs"][0]["shape"] == [4, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "batch=9"], "size 9 is outside Dim 'batch'"),
        (["--size", "bach=2"], "did you mean 'batch'?"),
        (["--engine", "sm90"], "did you mean 'sm89'?"),
        (["--engine", "sm89"], "does not run here"),
        (["--inputs", "nowhere.npz"], "no such file"),
    ],
)
def test_run_refuses_what_cannot_be(
    tiny: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["run", str(tiny), *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((1, 3), np.float64)}, "expected float32, got float64"),
        ({"x": np.zeros((1, 4), np.float32)}, "axis 1 has size 4, expected 3"),
        ({"z": np.zeros((1, 3), np.float32)}, "lacks x"),
    ],
)
def test_run_checks_the_inputs_it_is_given(
    tiny: Path, tmp_path: Path, arrays: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    assert cli.call(["run", str(tiny), "--inputs", str(tmp_path / "x.npz")]) == 2
    assert says in capsys.readouterr().err


def test_diff_of_equal_things_is_0_and_of_different_ones_1(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make(tmp_path / "other.aot", WEIGHT * np.float32(1.5))
    assert cli.call(["diff", str(tiny), str(tiny), "--budget", "max_abs=0", "--json"]) == 0
    rows = said(capsys)["rows"]
    assert [(row["case"], row["cosine"]) for row in rows] == [("b1", 1.0), ("b3", 1.0)]
    assert cli.call(["diff", str(tiny), str(other), "--budget", "relative_l2=0.1", "--json"]) == 1
    found = said(capsys)
    assert found["rows"][0]["relative_l2"] == pytest.approx(0.5, rel=1e-5)
    assert "case 'b1', output 'y': relative_l2 0.5 is above 0.1" in found["reasons"]


def test_diff_takes_an_onnx_file(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "m.onnx", WEIGHT)
    assert cli.call(["diff", str(tmp_path / "m.onnx"), str(tiny), "--budget", "cosine=1", "--json"]) == 0
    capsys.readouterr()
    write_model(tmp_path / "n.onnx", -WEIGHT)
    two = ["diff", str(tmp_path / "m.onnx"), str(tmp_path / "n.onnx"), "--dim", "batch=1:2:5", "--json"]
    assert cli.call([*two, "--budget", "cosine=0"]) == 1
    rows = said(capsys)["rows"]
    assert [(row["case"], row["elements"]) for row in rows] == [("minimum", 2), ("optimum", 4), ("maximum", 10)]
    assert all(row["cosine"] == pytest.approx(-1) for row in rows)


def test_inspect_says_what_it_is_takes_and_decided(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["inspect", str(tiny), "--json"]) == 0
    found = said(capsys)
    assert found["kind"] == "full"
    assert found["io"]["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}]
    assert found["io"]["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch", 2]}]
    [decision] = found["decisions"]
    assert (decision["module"], decision["source"]) == ("net.head", "tiny.py:3")
    assert decision["reason"] == "the network's precision"
    assert found["engines"][0]["reason"].startswith("built, not run")
    assert cli.call(["inspect", str(tiny), "--nodes"]) == 0
    assert "matmul <1>  MatMul  fp32  net.head, tiny.py:3  the network's precision" in capsys.readouterr().out


def test_doctor_names_every_backend_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["doctor", "--json"]) == 0
    found = said(capsys)
    assert {backend["name"] for backend in found["backends"]} == {"tensorrt", "tensorrt_rtx", "onnxruntime"}
    assert all(backend["builds"] or backend["missing"] for backend in found["backends"])
    assert cli.call(["doctor"]) == 0


def test_cache_lists_checks_and_shrinks_the_store(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["cache", "list", "--json"]) == 0
    entries = said(capsys)["entries"]
    assert {"quantize", "reference", "verify", "build"} <= {entry["stage"] for entry in entries}
    assert cli.call(["cache", "verify", "--json"]) == 0
    capsys.readouterr()
    next(Store().root.glob("quantize/*/model.onnx")).write_bytes(b"cut")
    assert cli.call(["cache", "verify", "--json"]) == 1
    assert [Path(path).parent.name for path in said(capsys)["damaged"]] == ["quantize"]
    assert cli.call(["cache", "gc", "--json"]) == 0
    assert said(capsys)["removed"] == 1
    assert cli.call(["cache", "gc", "--max-size", "0", "--json"]) == 0
    assert said(capsys)["removed"] == len(entries) - 1
    assert cli.call(["cache", "list"]) == 0
    assert "0 entries" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "run", "build"])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plan",), {"a": 1}),
        (("spec",), {"a": 1}),
        (("spec", "inputs"), {"x": 3}),
        (("identity",), "x"),
        (("io",), {"a": []}),
        (("records", "graph", "facts"), {}),
        (("records", "checked", "facts"), {"ran": True}),
        (("history",), [{"did": ["graph"], "created": "now", "versions": {}, "machine": {}}]),
        (("engines", 0, "engine", "facts"), {"file": "sm89.plan"}),
    ],
)
def test_a_manifest_of_another_inner_form_is_damaged(
    tiny: Path, capsys: pytest.CaptureFixture[str], command: str, place: tuple[str | int, ...], value: Any
) -> None:
    manifest = json.loads((tiny / "manifest.json").read_text())
    inner = manifest
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tiny / "manifest.json").write_text(json.dumps(manifest))
    assert cli.call([command, str(tiny)]) == 2
    told = capsys.readouterr().err
    assert "the manifest" in told
    assert "build it again" in told


def test_inspect_says_that_a_file_is_damaged(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((tiny / "engines/sm89.plan").read_bytes())
    data[7] ^= 1
    (tiny / "engines/sm89.plan").write_bytes(data)
    assert cli.call(["inspect", str(tiny)]) == 2
    assert "engines/sm89.plan" in capsys.readouterr().err
    (tiny / "engines/sm89.plan").write_bytes(data[:9])
    assert cli.call(["inspect", str(tiny)]) == 2
    assert "has 9 bytes instead of 400" in capsys.readouterr().err


def other_model(path: Path, inputs: str, body: str) -> str:
    text = f'<ir_version: 10, opset_import: ["": 20]> other ({inputs}) => (float[batch, k] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), str(path))
    return str(path)


def test_diff_of_models_with_other_inputs_names_both_sides(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = other_model(tmp_path / "two.onnx", "float[batch, 3] x, float[batch, 3] mask", "y = Add(x, mask)")
    ids = other_model(tmp_path / "ids.onnx", "float[batch, 3] ids", "y = Relu(ids)")
    wide = other_model(tmp_path / "wide.onnx", "float[batch, 5] x", "y = Relu(x)")
    for first, second, says in (
        (str(tiny), two, ["A takes x; B takes x, mask", "A lacks mask"]),
        (two, str(tiny), ["A takes x, mask; B takes x", "B lacks mask"]),
        (str(tiny), ids, ["A takes x; B takes ids", "A lacks ids, B lacks x"]),
        (str(tiny), wide, ["input 'x'", "float32 [batch, 3]", "float32 [batch, 5]"]),
    ):
        assert cli.call(["diff", first, second, "--json"]) == 2
        found = capsys.readouterr()
        assert json.loads(found.out)["error"]["fix"]
        assert all(text in found.err for text in says), found.err


def test_run_says_what_is_no_npz(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cnn.py").write_text("import torch\n")
    np.save(tmp_path / "one.npy", np.zeros((2, 3), np.float32))
    for name in ("cnn.py", "one.npy"):
        assert cli.call(["run", str(tiny), "--input", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert "not an .npz file" in told
        assert "numpy.savez" in told
        assert "pickle" not in told


def test_run_says_where_outputs_can_be_written(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["run", str(tiny), "-o", "/proc/y.npz"]) == 2
    told = capsys.readouterr().err
    assert "at:  /proc/y.npz" in told
    assert "fix: give another place with -o" in told
