"""Two layers of GraphSAGE (Hamilton et al. 2017, arXiv:1706.02216) over graphs of any size, and the mean of each."""

import torch
from torch import nn

import aot

nodes = aot.Dim("nodes", min=4, opt=40, max=200)
edges = aot.Dim("edges", min=0, opt=120, max=800)
graphs = aot.Dim("graphs", min=1, opt=4, max=16)


class Layer(nn.Module):
    """A node with what comes in along its edges, reduced."""

    def __init__(self, width: int, out: int, reduce: str) -> None:
        super().__init__()
        self.own, self.near, self.reduce = nn.Linear(width, out), nn.Linear(width, out, bias=False), reduce

    def forward(self, x: torch.Tensor, edge: torch.Tensor) -> torch.Tensor:
        met = aot.ops.scatter_reduce(x.index_select(0, edge[0]), edge[1].contiguous(), x, self.reduce)
        return torch.relu(self.own(x) + self.near(met))


class GraphNet(nn.Module):
    """x [nodes, width], edge [2, edges] from node to node in any order, counts [graphs] of nodes -> [graphs, 5]."""

    def __init__(self, width: int = 12, inner: int = 16) -> None:
        super().__init__()
        self.first, self.second = Layer(width, inner, "max"), Layer(inner, inner, "mean")
        self.head = nn.Linear(inner, 5)

    def forward(self, x: torch.Tensor, edge: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x, edge), edge)
        pointers = nn.functional.pad(counts.cumsum(0), (1, 0)).clamp(max=x.shape[0])
        return self.head(aot.ops.segment_reduce(x, pointers, "mean"))


@aot.model(
    inputs={
        "x": aot.Input([nodes, 12]),
        "edge": aot.Input([2, edges], "int64", low=0, high=4),  # nodes that the smallest graph has
        "counts": aot.Input([graphs], "int64", low=0, high=4),
    },
    outputs=["y"],
)
def graph_net() -> nn.Module:
    torch.manual_seed(0)
    return GraphNet().eval()
