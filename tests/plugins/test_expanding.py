"""A plugin's function in the place of its node, and what a parser's refusal of it says then."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from aot import origins
from aot.backend import get
from aot.errors import GraphError
from aot.plugins.expanding import expanded
from tests.backends.graphs import write

MEETS = """g (float[6, 4] x, int64[6, 4] index) => (float[3, 4] y) { y = aot.scatter_reduce (x, index) }
<opset_import: ["" : 20], domain: "aot">
scatter_reduce (x, index) => (y) {
    shape = Constant <value_ints = [3, 4]> ()  none = ConstantOfShape (shape)
    y = ScatterElements <axis = 0, reduction = "max"> (none, index, x)
}"""


def test_a_refusal_names_the_plugin_and_the_line_that_calls_it(tmp_path: Path) -> None:
    """TensorRT-RTX itself, whose parser does not say which node it means; surgery gave the function origins that say
    nothing."""
    pytest.importorskip("tensorrt_rtx")
    path = write(tmp_path / "m.onnx", MEETS)
    model = onnx.load(path)
    model.opset_import.append(onnx.helper.make_opsetid("aot", 1))
    for key, value in origins.Origin("net.first", "model.py", 7).metadata().items():
        model.graph.node[0].metadata_props.add(key=key, value=value)
    for key, value in origins.Origin().metadata().items():
        model.functions[0].node[2].metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    with expanded(path, ["scatter_reduce"], tmp_path) as plain:
        assert [node.op_type for node in ir.load(plain).graph] == ["Constant", "ConstantOfShape", "ScatterElements"]
        with pytest.raises(GraphError, match="Unsupported reduction type") as caught:
            get("tensorrt_rtx").check_graph(plain)
    assert "'scatter_reduce/" in str(caught.value.where)
    assert "module 'net.first', model.py:7" in str(caught.value.where)
