"""segment_reduce and scatter_reduce against a loop over nodes in FP64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from aot.plugins.compiling import compile_all, jobs
from aot.plugins.header import read
from tests.plugins.engines import built
from tests.plugins.kernels import BUILT_IN, interpreted
from tests.plugins.models import graph_net

REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
DEGREES = [[3, 0, 70, 1, 0, 2], [0], [], [1], [0, 0, 5], [9] * 20]


def given(degrees: list[int], width: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """x, pointers, and an index that brings the same edges in disorder, with the nodes that they meet in."""
    random = np.random.default_rng(len(degrees))
    edges = sum(degrees)
    return {
        "x": random.standard_normal((edges, width)).astype(dtype),
        "pointers": np.cumsum([0, *degrees]),
        "index": random.permutation(np.repeat(np.arange(len(degrees)), np.array(degrees, int))),
        "like": np.zeros((len(degrees), 2), dtype),
    }


def truth(inputs: dict[str, np.ndarray], op: str, reduce: str) -> np.ndarray:
    """Node by node; one without edges is 0."""
    x, nodes = inputs["x"].astype(np.float64), len(inputs["like"])
    y = np.zeros((nodes, x.shape[1]))
    for node in range(nodes):
        if op == "segment_reduce":
            rows = x[inputs["pointers"][node] : inputs["pointers"][node + 1]]
        else:
            rows = x[inputs["index"] == node]
        if len(rows):
            y[node] = REDUCTIONS[reduce](rows, 0)
    return y


INPUTS = {"segment_reduce": ("x", "pointers"), "scatter_reduce": ("x", "index", "like")}


def tensors(inputs: dict[str, np.ndarray], op: str) -> list[torch.Tensor]:
    return [torch.from_numpy(inputs[name]) for name in INPUTS[op]]


def called(inputs: dict[str, np.ndarray], op: str, reduce: str) -> np.ndarray:
    found: torch.Tensor = getattr(aot.ops, op)(*tensors(inputs, op), reduce)
    return found.numpy()


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("op", INPUTS)
def test_the_ops_are_the_loop_over_nodes(op: str, reduce: str) -> None:
    for degrees in DEGREES:
        if op == "segment_reduce" or degrees:
            inputs = given(degrees, 5)
            np.testing.assert_allclose(called(inputs, op, reduce), truth(inputs, op, reduce), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("op", INPUTS)
def test_the_kernels_are_the_loop_over_nodes(op: str) -> None:
    """Nodes without edges, one with more than a step takes, more columns than a program has, every config."""
    asked = [(given(degrees, 3), reduce, 0) for degrees in DEGREES if degrees or op == "segment_reduce"
             for reduce in REDUCTIONS]  # fmt: skip
    asked += [(given(DEGREES[0], 130), "mean", config) for config in range(5)]
    asked += [(given([300, 0, 290], 2), "sum", 2)]  # more edges than a program looks at once
    asked += [(given(DEGREES[0], 7, np.float16), reduce, 0) for reduce in REDUCTIONS]
    calls = [(tensors(inputs, op), {"reduce": reduce, "config": config}) for inputs, reduce, config in asked]
    for y, (inputs, reduce, _) in zip(interpreted(op, calls), asked, strict=True):
        step = 1e-3 if y.dtype == torch.float16 else 2e-6
        np.testing.assert_allclose(y.numpy(), truth(inputs, op, reduce), rtol=step, atol=step)


@pytest.mark.parametrize("op", INPUTS)
def test_what_is_no_number_stays_in_its_node_and_in_its_column(op: str) -> None:
    inputs = given([2, 3, 0, 4], 3)
    inputs["index"] = np.repeat(np.arange(4), [2, 3, 0, 4])
    inputs["x"][3, 1], inputs["x"][0, 0] = np.nan, np.inf
    calls = [(tensors(inputs, op), {"reduce": reduce}) for reduce in REDUCTIONS]
    for kernel, reduce in zip(interpreted(op, calls), REDUCTIONS, strict=True):
        for y in (kernel.numpy(), called(inputs, op, reduce)):
            assert np.argwhere(np.isnan(y)).tolist() == [[1, 1]]
            assert np.argwhere(np.isinf(y)).tolist() == ([] if reduce == "min" else [[0, 0]])


def test_a_nodes_bits_depend_on_its_edges_alone() -> None:
    """The same rows in a graph of another size, at another place: not one bit differs."""
    rows = np.random.default_rng(1).standard_normal((50, 9)).astype(np.float32)
    before = np.ones((13, 9), np.float32)
    alone = {"x": rows, "pointers": np.array([0, 50])}
    among = {"x": np.concatenate((before, rows)), "pointers": np.array([0, 4, 4, 13, 63])}
    calls = [(tensors(inputs, "segment_reduce"), {}) for inputs in (alone, among)]
    one, other = interpreted("segment_reduce", calls)
    assert torch.equal(one[0], other[3])


class Reduced(nn.Module):
    def __init__(self, uses: list[tuple[str, str]]) -> None:
        super().__init__()
        self.uses = uses

    def forward(
        self, x: torch.Tensor, pointers: torch.Tensor, index: torch.Tensor, like: torch.Tensor
    ) -> list[torch.Tensor]:
        given = {"segment_reduce": (x, pointers), "scatter_reduce": (x, index, like)}
        return [getattr(aot.ops, op)(*given[op], reduce) for op, reduce in self.uses]


EDGES, BOUNDS, NODES = (Dim(name, min=low, max=400) for name, low in (("edges", 0), ("bounds", 2), ("nodes", 1)))
SPEC = ModelSpec(
    "reduced",
    {
        "x": Input([EDGES, 6]),
        "pointers": Input([BOUNDS], "int64", low=0, high=1),
        "index": Input([EDGES], "int64", low=0, high=1),
        "like": Input([NODES, 2]),
    },
)


SOME = [("segment_reduce", "sum"), ("segment_reduce", "max"), ("scatter_reduce", "mean"), ("scatter_reduce", "min")]
ALL = [(op, reduce) for op in INPUTS for reduce in REDUCTIONS]


@pytest.mark.parametrize("uses", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_as_functions_in_onnx_they_give_the_same_at_any_size(uses: list[tuple[str, str]], tmp_path: Path) -> None:
    write_module(Reduced(uses), SPEC, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for degrees in (DEGREES[0], DEGREES[1], DEGREES[5]):
        inputs = given(degrees, 6)
        for got, (op, reduce) in zip(session.run(None, inputs), uses, strict=True):
            np.testing.assert_allclose(got, truth(inputs, op, reduce), rtol=2e-6, atol=2e-6)


class Segments(nn.Module):
    def forward(self, x: torch.Tensor, pointers: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = aot.ops.segment_reduce(x, pointers, "max")
        return y


@pytest.mark.slow
def test_tensorrt_rtx_builds_the_function_of_segment_reduce(tmp_path: Path) -> None:
    """For a fixed number of edges, which has few digits: with 24 of them the builder takes more than a minute."""
    spec = ModelSpec("segments", {"x": Input([60, 6]), "pointers": Input([BOUNDS], "int64", low=0, high=1)})
    write_module(Segments(), spec, tmp_path)
    assert built(tmp_path / "model.onnx", spec, ["segment_reduce"], tmp_path)


@pytest.mark.parametrize("op", INPUTS)
def test_they_compile_without_spilling(op: str) -> None:
    header = read(BUILT_IN / f"{op}.py")
    wanted = [jobs(header, target, {"width": 128})[2] for target in ("sm80", "sm90", "sm100", "sm120")]
    kernels = compile_all(header, wanted)
    assert [kernel.spilled for kernel in kernels] == [0, 0, 0, 0]
    shapes = [(1000, 128), (101,)] if op == "segment_reduce" else [(1000, 128), (1000,), (100, 64)]
    assert kernels[0].launched(shapes) == (((25, 1, 1), (100,)) if op == "segment_reduce" else ((7, 1, 1), (1000, 100)))


def test_a_graph_network_is_exported_for_graphs_of_any_size(tmp_path: Path) -> None:
    module = graph_net.graph_net()
    write_module(module, graph_net.graph_net.spec(), tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for nodes, edges, counts in ((4, 0, [4]), (31, 99, [10, 0, 21]), (200, 800, [20] * 10)):
        random = torch.Generator().manual_seed(nodes)
        feed = {
            "x": torch.randn(nodes, 12, generator=random),
            "edge": torch.randint(0, nodes, (2, edges), generator=random),
            "counts": torch.tensor(counts),
        }
        with torch.no_grad():
            right = module(**feed)
        got = session.run(None, {name: value.numpy() for name, value in feed.items()})[0]
        np.testing.assert_allclose(got, right.numpy(), rtol=1e-5, atol=1e-6)
