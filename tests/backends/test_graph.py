"""What an error says about a node."""

from __future__ import annotations

from pathlib import Path

from onnx import helper

from aot.backends import _graph
from tests.backends.graphs import write


def test_module_and_source_line_come_from_the_exporters_metadata() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["c"], name="mm")
    said = {
        "pkg.torch.onnx.name_scopes": "['', 'encoder', 'encoder.layer.0', 'linear_2']",
        "pkg.torch.onnx.stack_trace": 'File "/p/model.py", line 12, in forward\n    x = self.f(x)\n'
        '  File "/v/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return F.linear(input)',
    }
    for key, value in said.items():
        item = node.metadata_props.add()
        item.key, item.value = key, value
    described = "node 'mm' (MatMul), module 'encoder.layer.0', source /p/model.py:12: x = self.f(x)"
    assert _graph.describe(node) == described


def test_damaged_metadata_is_left_out() -> None:
    node = helper.make_node("Relu", ["a"], ["b"], domain="own")
    item = node.metadata_props.add()
    item.key, item.value = "pkg.torch.onnx.name_scopes", "[not python"
    assert _graph.describe(node) == "node 'b' (own::Relu)"


def test_nodes_are_found_in_what_the_builder_says(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { a = Relu(x)  b = Tanh(a)  y = Abs(b) }"
    graph = _graph.load_structure(write(tmp_path / "m.onnx", text)).graph
    found = _graph.mentioned(graph, "no implementation for node {ForeignNode[n0...n2]}, nor for n11.")
    assert [node.name for node in found] == ["n0", "n2"]
