"""Nodes of plugins in ONNX files: which stay, with what function, and that the result is what the file computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from aot.config import Request
from aot.declaration import Dim, Input
from aot.errors import GraphError
from aot.onnx_input import prepare
from aot.onnx_input.loading import load
from aot.onnx_input.plugin_calls import Calls, called
from aot.plugins.schema import NODE_TYPES
from aot.progress import Silent
from aot.run import Run
from aot.sources.onnx_file import OnnxFile
from aot.store import Store
from tests.plugins.projects import write

HEAD = '<ir_version: 9, opset_import: ["" : 17, "mine" : 1]> '
TWICE = "g (float[N, 4] x) => (float[N, 4] z) { y = mine.triple <shift = 0.5> (x)  z = mine.triple (y) }"
FUNCTION = """
<opset_import: ["" : 17], domain: "mine"> triple <shift: float = 0.0> (x) => (y) {
    three = Constant <value_float = 3.0> ()  s = Constant <value_float: float = @shift> ()
    m = Mul(x, three)  y = Add(m, s) }"""
X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
INPUTS = {"x": Input([Dim("N", min=1, opt=3, max=8), 4])}


def saved(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(HEAD + text), folder / "m.onnx")
    return folder / "m.onnx"


def prepared(folder: Path, text: str) -> tuple[ir.Model, tuple[str, ...]]:
    """The graph that the file is made into, the folder's plugins at hand; and what was noted."""
    files = {file.stem: file for file in (folder / "plugins").glob("*.py")}
    calls: list[Calls] = []

    def kept(model: ir.Model) -> Any:
        calls.append(called(model, files))
        return calls[-1].headers

    path = saved(folder, text)
    model = load(path, kept)
    return model, prepare(model, INPUTS, str(path), calls[-1]).notes


def run(model: ir.Model) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    return np.asarray(session.run(None, {"x": X})[0])


@pytest.mark.parametrize("function", [FUNCTION, ""], ids=["with a function", "without"])
def test_a_plugins_nodes_stay_and_get_the_function_of_its_reference(tmp_path: Path, function: str) -> None:
    """The second reads what the first makes, and leaves its attribute to the default."""
    write(tmp_path)
    model, notes = prepared(tmp_path, TWICE + function)
    nodes = [node for node in model.graph if node.domain == "mine"]
    assert [node.op_type for node in nodes] == ["triple", "triple"]
    assert [node.metadata_props[NODE_TYPES] for node in nodes] == ["float32 float16;float32 float16"] * 2
    assert [node.attributes["shift"].as_float() for node in nodes] == [0.5, 0.0]
    assert {node.op_identifier() for node in nodes} == set(model.functions)
    assert str(nodes[0].outputs[0].shape) == "[N,4]"
    np.testing.assert_allclose(run(model), (X * 3.0 + 0.5) * 3.0, rtol=1e-6)
    assert notes == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (("mine", "other"), None),
        (("shift", "offset"), "it has an attribute 'offset', and SCHEMA shift"),
    ],
)
def test_a_function_that_is_not_a_plugins_is_written_out(
    tmp_path: Path, change: tuple[str, str], note: str | None
) -> None:
    """Of another domain it has nothing to do with the plugin; of another schema that is told."""
    write(tmp_path)
    model, notes = prepared(tmp_path, (TWICE + FUNCTION).replace(*change))
    assert {node.domain for node in model.graph} == {""}
    assert not model.functions
    if note is None:
        assert notes == ()
    else:
        (said,) = notes
        assert said.startswith("plugin triple does not take node 'node_0' (mine::triple)") or "mine::triple" in said
        assert note in said


def test_a_node_without_a_function_that_no_plugin_takes_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(
        GraphError, match="plugin triple does not take the node: it has 2 inputs, and SCHEMA 1: x"
    ) as no:
        prepared(tmp_path, TWICE.replace("(x)  z", "(x, x)  z"))
    assert "(mine::triple)" in str(no.value.where)
    assert file.name in str(no.value.fix)


def test_what_the_result_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's own function where it has one, be it another; the plugin's reference where it has none."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    keys = []
    for text, expected in ((TWICE + FUNCTION.replace("3.0", "4.0"), (X * 4.0 + 0.5) * 4.0), (TWICE, X * 9.0 + 1.5)):
        path = saved(tmp_path, text)
        dims = {"N": (1, 3, 8)}
        source = OnnxFile(Request(model=str(path), dims=dims), Run(Store(tmp_path / "store"), Silent()))
        np.testing.assert_allclose(source.eager()({"x": X})["z"], expected, rtol=1e-6)
        keys.append(source.key)
        assert "torch" in source.tools
    write(tmp_path, "triple", ("* 3.0 + shift", "* 5.0 + shift"))
    changed = OnnxFile(Request(model=str(path), dims=dims), Run(Store(tmp_path / "store"), Silent()))
    assert len({*keys, changed.key}) == 3
