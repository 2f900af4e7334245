"""`aot diff --layers`, and what `aot build` does where the budget is missed, as a user has them."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from aot.cli import _main as cli
from tests.e2e.harness import DIM, write_mlp_onnx

# Without the steps that divide channels: what they divide is not compared.
PLAIN = "precision: int8\n"
INT8 = (*DIM, "--calibration", "plain.yaml", "--until", "graph")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_mlp_onnx(tmp_path / "mlp.onnx")
    (tmp_path / "plain.yaml").write_text(PLAIN)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert cli.call([*arguments, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_model_and_its_artifact_are_compared_by_the_artifacts_graph(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "build", "mlp.onnx", *INT8, "-o", "mlp.aot")
    found = call(capsys, "diff", "mlp.onnx", "mlp.aot", "--layers", "--plot", "layers.html")
    layers = found["layers"]
    assert (layers["a"], layers["b"]) == ("mlp.onnx: FP32 graph after surgery", "mlp.aot: final graph, int8")
    assert layers["alone"][0] == 0
    by_node = {row["node"]: row for row in layers["rows"]}
    assert {"first", "relu", "second"} <= set(by_node)
    assert by_node["first"]["added"] == by_node["first"]["relative_l2"] > 1e-3 > by_node["relu"]["added"]
    assert sum(row["share"] for row in layers["rows"]) == pytest.approx(1)

    # The whole output, of all cases together, as the comparison of outputs has it case by case.
    output = layers["rows"][-1]
    cases = [row["relative_l2"] for row in found["rows"]]
    assert min(cases) <= output["relative_l2"] <= max(cases)

    page = (folder / "layers.html").read_text()
    assert "http" not in page
    assert page.count('<rect class="added"') == len(layers["rows"])
    svg = ElementTree.fromstring(page[page.index("<svg") : page.rindex("</svg>") + 6])
    lines = [float(line.attrib["y1"]) for line in svg.iter("line")]
    marks = dict(
        zip((math.log10(float(text.text or "")) for text in svg.findall("text")[: len(lines)]), lines, strict=True)
    )
    (low, bottom), (high, top) = min(marks.items()), max(marks.items())
    (line,) = svg.iter("polyline")
    drawn = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    powers = np.log10([row["relative_l2"] for row in layers["rows"]])
    assert drawn == pytest.approx(bottom + (powers - low) * (top - bottom) / (high - low), abs=0.2)
    assert 0 < min(drawn) < max(drawn) < float(svg.attrib["height"])


def test_two_files_are_compared_as_they_are_and_the_changed_weight_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load("mlp.onnx")
    [weight] = [tensor for tensor in model.graph.initializer if tensor.name == "w2"]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.25), "w2"))
    onnx.save(model, "other.onnx")
    found = call(capsys, "diff", "mlp.onnx", "other.onnx", *DIM, "--layers")
    added = {row["node"]: row["added"] for row in found["layers"]["rows"]}
    assert added == {"first": 0.0, "bias": 0.0, "relu": 0.0, "second": pytest.approx(0.25)}
    assert {row["node"]: row["share"] for row in found["layers"]["rows"]}["second"] == 1.0


def test_the_table_names_nodes_and_says_what_was_not_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "build", "mlp.onnx", *INT8, "-o", "mlp.aot")
    assert cli.call(["diff", "mlp.onnx", "mlp.aot", "--layers"]) == 0
    said = capsys.readouterr().out
    for shown in ("first", "MatMul", "added here", "0 of A", "over"):
        assert shown in said


def test_a_page_that_cannot_be_written_is_the_users_to_put_right(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(["diff", "mlp.onnx", "mlp.onnx", *DIM, "--plot", "nowhere/layers.html"]) == 2
    assert "--plot nowhere/layers.html" in capsys.readouterr().err


def test_a_build_that_misses_keeps_wide_what_it_takes_and_without_the_search_is_not_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = call(capsys, "build", "mlp.onnx", *INT8, "-o", "plain.aot")
    reached = plain["verification"]["graph"]["cosine"]
    budget = ("--budget", f"cosine={1 - (1 - reached) * 0.8}")
    assert plain["search"] is None

    missed = call(capsys, "build", "mlp.onnx", *INT8, *budget, "--no-search", "-o", "missed.aot", code=1)
    assert missed["search"] is None
    assert not missed["accepted"]

    kept = call(capsys, "build", "mlp.onnx", *INT8, *budget, "-o", "kept.aot")
    assert kept["accepted"]
    assert kept["search"]["before"]["cosine"] == reached
    [one] = kept["search"]["kept"]
    assert one["node"] in ("first", "second")
    assert kept["quantized"]["ops"] == plain["quantized"]["ops"] - 1
    assert any(one["node"] in warning for warning in kept["warnings"])

    again = call(capsys, "build", "mlp.onnx", *INT8, *budget, "-o", "kept.aot")
    assert [stage["name"] for stage in again["stages"] if not stage["cached"]] == []
    assert again["search"] == kept["search"]

    finished = call(capsys, "build", "kept.aot", "--target", "cpu", "-o", "cpu.aot")
    assert finished["search"] == kept["search"]
    assert finished["accepted"]
