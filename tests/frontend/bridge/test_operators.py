"""Ops as exported give what eager gives, at sizes other than the example's. One export a table; every op on its own."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from tests.frontend.bridge import operators

B, T = Dim("batch", min=1, opt=2, max=6), Dim("time", min=4, opt=7, max=32)
H, W = Dim("height", min=8, opt=16, max=40), Dim("width", min=8, opt=12, max=40)
POOL = {
    "x": Input([B, 4, H, W]),
    "s": Input([B, T, 8]),
    "i": Input([B, T], "int64", low=-50, high=50),
    "k": Input([B, T], "int64", low=0, high=4),
    "m": Input([B, T], "bool"),
}
SIZES = (
    {"batch": 2, "time": 7, "height": 16, "width": 12},
    {"batch": 1, "time": 4, "height": 9, "width": 31},
    {"batch": 5, "time": 30, "height": 37, "width": 8},
)
TABLES = {
    "whole numbers": operators.WHOLE_NUMBERS,
    "sizes": operators.SIZES,
    "floats": operators.FLOATS,
    "matrices": operators.MATRICES,
    "special": operators.SPECIAL,
    "images": operators.IMAGES,
    "complex": operators.COMPLEX,
    "long": operators.LONG,
}

STRIDED = "before torch 2.13 a strided pool is captured only for sizes that its stride divides, and aot says so"
CONDITIONAL = "before torch 2.13 torch.cond raises here without any export, too"
LATER = {
    **dict.fromkeys(("average with a divisor", "ceil, maximum", "ceil, padded maximum"), STRIDED),
    "ceil, average without padding": STRIDED,
    **dict.fromkeys(("branch", "branch that keeps", "branches that keep"), CONDITIONAL),
}
"""Ops that torch itself captures from 2.13 on, and why not before."""
if torch.__version__ >= torch.torch_version.TorchVersion("2.13"):
    LATER = {}

Results = dict[str, list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]]


def names(function: Callable[..., Any]) -> list[str]:
    return ["x"] if isinstance(function, nn.Module) else list(inspect.signature(function).parameters)


def module(functions: list[Callable[..., Any]], used: list[str]) -> nn.Module:
    """All functions of a table as one module whose forward takes what they need."""

    class Table(nn.Module):
        def apply_all(self, **given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(function(*(given[name] for name in names(function))) for function in functions)

    space: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(used)}): return self.apply_all({', '.join(f'{n}={n}' for n in used)})", space)
    Table.forward = space["forward"]
    return Table().eval()


def inputs(used: list[str], sizes: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(sizes["time"])
    made: dict[str, np.ndarray[Any, Any]] = {}
    for name in used:
        shape = [size if isinstance(size, int) else sizes[size.name] for size in POOL[name].shape]
        whole = {"i": (-50, 50), "k": (0, 4), "m": (0, 2)}.get(name)
        made[name] = random.integers(*whole, shape) if whole else random.standard_normal(shape, np.float32)
    return {name: values.astype(bool) if name == "m" else values for name, values in made.items()}


@cache
def table(owner: str) -> tuple[Results, onnx.ModelProto]:
    """(name of a function -> what the graph and eager gave at each size, the graph). Exported once."""
    functions = {name: function for name, function in TABLES[owner].items() if name not in LATER}
    used = [name for name in POOL if any(name in names(function) for function in functions.values())]
    made = module(list(functions.values()), used)
    with tempfile.TemporaryDirectory() as folder:
        write_module(made, ModelSpec("table", {name: POOL[name] for name in used}), Path(folder))
        session = onnxruntime.InferenceSession(Path(folder, "model.onnx"))
        graph = onnx.load(Path(folder, "model.onnx"))
    results: Results = {name: [] for name in functions}
    for sizes in SIZES:
        case = inputs(used, sizes)
        with torch.no_grad():
            want = made(**{name: torch.from_numpy(values) for name, values in case.items()})
        for name, got, wanted in zip(functions, session.run(None, case), want, strict=True):
            results[name].append((got, wanted.numpy()))
    return results, graph


ALL = [
    pytest.param(owner, name, marks=pytest.mark.slow if owner == "long" else ())
    for owner, entries in TABLES.items()
    for name in entries
]


@pytest.mark.parametrize(("owner", "name"), ALL)
def test_an_op_gives_what_eager_gives_at_every_size(owner: str, name: str) -> None:
    if name in LATER:
        pytest.skip(LATER[name])
    for got, want in table(owner)[0][name]:
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4)


def test_no_value_of_a_graph_is_complex() -> None:
    graph = table("complex")[1].graph
    complex_types = {onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128}
    held = {v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    assert not complex_types & (held | {weight.data_type for weight in graph.initializer})
    assert not {node.op_type for node in graph.node} & {"DFT", "STFT"}
