"""Which nodes a layer is put down to, and what the layers come to by module and by precision."""

from __future__ import annotations

import pytest

from aot.backend import LayerTime
from aot.profiling.attribution import Node, attributed
from aot.profiling.sums import Timed
from aot.profiling.text import shown

KNOWN = {
    node.name: node
    for node in (
        Node("q", "QuantizeLinear", "net.fc", "net.py:3"),
        Node("dq", "DequantizeLinear", "net.fc", "net.py:3"),
        Node("fc", "MatMul", "net.fc", "net.py:3", "int8"),
        Node("bias", "Add", "net.fc", "net.py:3", "fp16"),
        Node("gelu", "Gelu", "net.act", "net.py:4", "fp16"),
        Node("norm", "LayerNormalization", "net.norm", "net.py:5", "fp32"),
    )
}


def test_a_fused_layer_is_put_down_to_its_product_and_is_of_the_narrowest_precision() -> None:
    (layer,) = attributed([LayerTime("__myl_0", 1.0, ("gelu", "bias", "q", "fc", "gone"))], KNOWN)
    assert layer.main == KNOWN["fc"]
    assert layer.ops == "Gelu+Add+MatMul"
    assert layer.precision == "int8"
    assert [node.name for node in layer.nodes] == ["gelu", "bias", "q", "fc"]


def test_a_layer_of_q_and_dq_alone_is_a_conversion_of_the_module_that_it_serves() -> None:
    (layer,) = attributed([LayerTime("q", 1.0, ("q", "dq"))], KNOWN)
    assert (layer.ops, layer.precision) == ("QuantizeLinear+DequantizeLinear", "conversion")
    assert layer.main is not None
    assert layer.main.module == "net.fc"


@pytest.mark.parametrize(
    ("layer", "nodes"),
    [
        ("fc + bias", ["fc", "bias"]),
        ("PWN(gelu)", ["gelu"]),
        ("{ForeignNode[q...norm]}", ["q", "norm"]),
        ("Reformatting CopyNode for Input Tensor 0 to norm", ["norm"]),
        ("something of the vendor's own", []),
    ],
)
def test_where_the_engine_says_nothing_its_layers_names_do(layer: str, nodes: list[str]) -> None:
    (found,) = attributed([LayerTime(layer, 1.0)], KNOWN)
    assert [node.name for node in found.nodes] == nodes


def timed() -> Timed:
    times = [
        LayerTime("a", 3.0, ("fc", "bias")),
        LayerTime("b", 1.0, ("q",)),
        LayerTime("c", 5.0, ("norm",)),
        LayerTime("d", 0.5, ("gelu",)),
        LayerTime("e", 0.5, ()),
    ]
    return Timed("engine sm90 (tensorrt 10.6.0)", {"batch": 8}, 8.0, 50, tuple(attributed(times, KNOWN)))


def test_sums_by_module_and_by_precision_come_to_the_total() -> None:
    found = timed()
    assert found.modules() == {"net.norm": 5.0, "net.fc": 4.0, "net.act": 0.5, "not known": 0.5}
    assert found.precisions() == {"fp32": 5.0, "int8": 3.0, "conversion": 1.0, "fp16": 0.5, "not known": 0.5}
    data = found.to_json()
    assert (data["layers_ms"], data["difference_ms"]) == (10.0, 2.0)
    for key in ("layers", "modules", "precisions"):
        assert sum(one["share"] for one in data[key]) == pytest.approx(1)
    assert data["layers"][0]["source"] == "net.py:3"
    assert data["layers"][4] == {
        "layer": "e", "ms": 0.5, "share": 0.05, "ops": "", "precision": None, "module": None, "source": None,
        "nodes": [],
    }  # fmt: skip


def test_the_table_has_the_longest_first_and_the_rest_in_one_row_within_100_columns() -> None:
    said = shown(timed(), 2)
    lines = said.splitlines()
    assert lines[0] == "engine sm90 (tensorrt 10.6.0), batch=8"
    assert "8 ms without the profiler" in said
    assert "add up to 10 ms, 25% more" in said
    first, second, rest = lines[5:8]
    assert first.split() == ["5.0000", "50.0%", "LayerNormalization", "fp32", "net.norm", "net.py:5"]
    assert second.split()[:3] == ["3.0000", "30.0%", "MatMul+Add"]
    assert rest.split() == ["2.0000", "20.0%", "3", "more"]
    assert max(map(len, lines)) <= 100


def test_layers_of_the_same_nodes_are_one_row_and_stay_apart_in_the_data() -> None:
    times = [
        LayerTime("kernel 1", 2.0, ("fc", "bias")),
        LayerTime("kernel 2", 3.0, ("fc", "bias")),
        LayerTime("?", 4.0),
    ]
    found = Timed("x", {}, 9.0, 1, tuple(attributed(times, KNOWN)))
    assert [(layer.ms, layer.ops) for layer in found.longest()] == [(5.0, "MatMul+Add"), (4.0, "")]
    assert [layer["ms"] for layer in found.to_json()["layers"]] == [2.0, 3.0, 4.0]


def test_long_paths_keep_their_ends() -> None:
    node = Node("n", "MatMul", "encoder.layer.0.attention.self.query", "transformers/models/bert/modeling_bert.py:213")
    found = Timed("x", {}, 1.0, 1, tuple(attributed([LayerTime("n", 1.0, ("n",))], {"n": node})))
    line = shown(found, 10).splitlines()[5]
    assert "self.query" in line
    assert "modeling_bert.py:213" in line
    assert len(line) <= 100
