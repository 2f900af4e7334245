"""`aot profile` where there is no GPU: the final graph, timed by onnxruntime's own profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from aot import artifact
from aot.backends.onnxruntime_profile import made_of
from aot.cli import _main as cli
from tests.e2e.harness import DIM, write_mlp_onnx


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an MLP in INT8 and FP16, prepared."""
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(autouse=True)
def _built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if not (folder / "mlp.aot").exists():
        write_mlp_onnx(folder / "mlp.onnx")
        (folder / "plain.yaml").write_text("precision: int8\n")
        options = (*DIM, "--calibration", "plain.yaml", "--until", "graph", "-o", "mlp.aot")
        assert cli.call(["build", "mlp.onnx", *options]) == 0


def profiled(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.call(["profile", "mlp.aot", *options, "--json"]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


def test_every_layer_is_put_down_to_nodes_of_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(capsys, "--size", "batch=3")
    assert found["ran"].startswith("final graph, int8 (onnxruntime")
    assert found["ran"].endswith("cpu)")
    assert found["sizes"] == {"batch": 3}
    prepared = artifact.load("mlp.aot")
    graph = onnx.load(str(prepared.final.model), load_external_data=False).graph
    made = {node["node"] for layer in found["layers"] for node in layer["nodes"]}
    assert all(layer["nodes"] for layer in found["layers"])
    assert made <= {node.name for node in graph.node}
    assert {"first", "relu", "second"} <= made
    assert all(layer["source"].startswith("mlp.onnx") for layer in found["layers"])
    assert all(layer["ms"] >= 0 for layer in found["layers"])
    assert found["layers_ms"] == pytest.approx(sum(layer["ms"] for layer in found["layers"]))
    assert found["difference_ms"] == pytest.approx(found["layers_ms"] - found["ms"])
    assert {"int8", "conversion"} <= {one["precision"] for one in found["precisions"]}


def test_the_table_is_for_people_and_as_long_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.call(["profile", "mlp.aot", "--top", "2"]) == 0
    said = capsys.readouterr().out
    assert "without the profiler" in said
    assert "narrow types are emulated" in said
    assert " more\n" in said
    assert max(map(len, said.splitlines())) <= 100
    assert not list(Path().glob("profile*.json")), "what onnxruntime writes is gone"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--size", "batch=99"), "size 99 is outside Dim 'batch'"),
        (("--engine", "sm90"), "engine 'sm90'"),
        (("--size", "batch=3", "--inputs", "x.npz"), "contradict each other"),
        (("--top", "0"), "0 is not in the range"),
    ],
)
def test_what_a_user_can_get_wrong(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str) -> None:
    capsys.readouterr()
    assert cli.call(["profile", "mlp.aot", *options]) == 2
    assert says in capsys.readouterr().err


def graph(*nodes: tuple[str, str, str, str]) -> onnx.GraphProto:
    made = [onnx.helper.make_node(op, reads.split(), gives.split(), name=name) for name, op, reads, gives in nodes]
    return onnx.helper.make_graph(made, "g", [], [])


def test_what_onnxruntime_fused_or_put_in_stands_for_nodes_of_the_graph() -> None:
    given = graph(
        ("mm", "MatMul", "x w", "h"),
        ("bias", "Add", "h b", "a"),
        ("conv", "Conv", "a k", "c"),
        ("relu", "Relu", "c", "y"),
    )
    optimized = graph(
        ("mm/MatMulAddFusion", "Gemm", "x w b", "a/unrounded"),
        ("a/rounded", "Cast", "a/unrounded", "a/rounded"),
        ("a/widened", "Cast", "a/rounded", "a"),
        ("ReorderInput", "ReorderInput", "a", "t0"),
        ("c_nchwc", "Conv", "t0 k", "t1"),
        ("ReorderOutput", "ReorderOutput", "t1", "y"),
    )
    assert made_of(optimized, given) == {
        "mm/MatMulAddFusion": ("bias", "mm"),
        "a/rounded": ("bias", "mm"),
        "a/widened": ("bias", "mm"),
        "ReorderInput": ("relu", "conv"),
        "c_nchwc": ("relu", "conv"),
        "ReorderOutput": ("relu", "conv"),
    }
