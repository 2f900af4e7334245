"""What an error says about a node."""

from __future__ import annotations

from pathlib import Path

from onnx import helper

from aot.backends import _graph
from aot.origins import Origin
from tests.backends.graphs import write


def test_module_and_source_line_are_said_of_a_node() -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["c"], name="mm")
    for key, value in Origin("encoder.layer.0", "model.py", 12, "forward", "x = self.f(x)").metadata().items():
        node.metadata_props.add(key=key, value=value)
    described = "node 'mm' (MatMul), module 'encoder.layer.0', model.py:12: x = self.f(x)"
    assert _graph.describe(node) == described


def test_damaged_metadata_is_left_out() -> None:
    node = helper.make_node("Relu", ["a"], ["b"], domain="own")
    node.metadata_props.add(key="aot.source", value="nowhere")
    assert _graph.describe(node) == "node 'b' (own::Relu)"


def test_nodes_are_found_in_what_the_builder_says(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { a = Relu(x)  b = Tanh(a)  y = Abs(b) }"
    graph = _graph.load_structure(write(tmp_path / "m.onnx", text)).graph
    found = _graph.mentioned(graph, "no implementation for node {ForeignNode[n0...n2]}, nor for n11.")
    assert [node.name for node in found] == ["n0", "n2"]


def test_a_fused_region_is_told_by_its_ends_and_their_lines(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] y) { a = Relu(x)  b = Tanh(a)  y = Abs(b) }"
    graph = _graph.load_structure(write(tmp_path / "m.onnx", text)).graph
    for line, node in enumerate(graph.node, 10):
        for key, value in Origin("head", "m.py", line).metadata().items():
            node.metadata_props.add(key=key, value=value)
    ends = "from node 'n0' (Relu), module 'head', m.py:10 to node 'n2' (Abs), module 'head', m.py:12"
    assert _graph.blamed(graph, "Could not find any implementation for node {ForeignNode[n0...n2]}.") == ends
    assert _graph.blamed(graph, "no kernel for n1") == "node 'n1' (Tanh), module 'head', m.py:11"
    assert _graph.blamed(graph, "out of memory") is None
