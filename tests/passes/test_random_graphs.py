"""No graph is changed by the passes but in its nodes: shown on random ones, and on what random ones once found."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from aot.graph import Pass, Skip
from aot.passes._edit import nodes, replace
from tests.passes.random_graphs import generate
from tests.passes.random_graphs.judge import fault
from tests.passes.random_graphs.reduce import reduced

SLOW = 2000
"""Graphs of `make sweep`; the tests of every change take a few of them."""


def faults(seeds: range) -> dict[int, str]:
    """What is wrong, by seed; `python -m tests.passes.random_graphs.reduce SEED` shows the least graph."""
    found = {}
    for seed in seeds:
        graph = generate(seed)
        wrong = fault(graph.model, graph.feeds)
        if wrong is not None:
            found[seed] = wrong
    return found


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_graphs_stay_equal(first: int) -> None:
    assert faults(range(first, first + 15)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 60 + SLOW, 100))
def test_many_random_graphs_stay_equal(first: int) -> None:
    assert faults(range(first, first + 100)) == {}


def test_a_seed_is_one_graph_of_5_to_60_ops() -> None:
    sizes = []
    for seed in range(100):
        graph = generate(seed)
        assert graph.model == generate(seed).model
        sizes.append(sum(node.op_type != "Constant" for node in graph.model.graph.node))
        onnx.checker.check_model(graph.model, full_check=True)
    assert min(sizes) >= 5
    assert max(sizes) <= 60


def test_a_wrong_pass_is_found_and_its_graph_reduced() -> None:
    """a - b = b - a, says this pass, where a is a product."""

    def wrong(model: ir.Model, skip: Skip) -> int:
        changed = 0
        for node in nodes(model, "Sub"):
            a, b = node.inputs
            if "swapped" not in node.metadata_props and a is not None and a.producer() is not None:
                replace(node, "Sub", [b, a]).metadata_props["swapped"] = "yes"
                changed += 1
        return changed

    passes = [Pass("wrong", wrong, "")]
    graph = next(
        graph
        for graph in map(generate, range(50))
        if str(fault(graph.model, graph.feeds, passes)).startswith("numbers")
    )
    small = reduced(graph, passes)
    assert len(small.model.graph.node) <= 4
    assert str(fault(small.model, small.feeds, passes)).startswith("numbers")
