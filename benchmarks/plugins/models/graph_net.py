"""Two layers of GraphSAGE, 64 wide, over eight edges a node."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import aot

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.plugins.models.graph_net import GraphNet

SIZES = (
    {"nodes": 500, "edges": 4000, "graphs": 10},
    {"nodes": 2000, "edges": 16000, "graphs": 40},
    {"nodes": 8000, "edges": 64000, "graphs": 160},
)
PROFILE = {"nodes": (4, 2000, 8000), "edges": (0, 16000, 64000), "graphs": (1, 40, 160)}
SMALL = {"nodes": (4, 40, 200), "edges": (0, 120, 800), "graphs": (1, 4, 16)}


def inputs(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """Graphs of equal size, edges between any of their nodes."""
    nodes, edges, graphs = sizes["nodes"], sizes["edges"], sizes["graphs"]
    each = nodes // graphs
    first = torch.randint(0, graphs, (edges,)) * each
    return {
        "x": torch.randn(nodes, 64),
        "edge": first + torch.randint(0, each, (2, edges)),
        "counts": torch.full((graphs,), each),
    }


@aot.model(
    inputs={
        "x": aot.Input([aot.Dim("nodes", min=4, opt=2000, max=8000), 64]),
        "edge": aot.Input([2, aot.Dim("edges", min=0, opt=16000, max=64000)], "int64", low=0, high=4),
        "counts": aot.Input([aot.Dim("graphs", min=1, opt=40, max=160)], "int64", low=0, high=4),
    },
    outputs=["y"],
)
def graph_net() -> torch.nn.Module:
    """The network."""
    torch.manual_seed(0)
    return GraphNet(64, 64).eval()
