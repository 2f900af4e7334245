"""ONNX files whose weights are most of an engine, and of which there are several with one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HIDDEN, OUT = 512, 2048, 256
WEIGHTS = 2 * (WIDTH * HIDDEN + HIDDEN + HIDDEN * OUT + OUT)
"""Bytes of the weights of `wide` in FP16."""


def wide(path: Path, seed: int = 0) -> Path:
    """y = relu(x W1 + b1) W2 + b2, x [batch, 512]; the seed decides the weights and nothing else."""
    random = np.random.default_rng(seed)
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, OUT), "b2": (OUT,)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Add", ["h", "b1"], ["a"], name="bias1"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["z"], name="second"),
        helper.make_node("Add", ["z", "b2"], ["y"], name="bias2"),
    ]
    weights = {name: (random.standard_normal(shape) / shape[0] ** 0.5) for name, shape in shapes.items()}
    return _save(path, nodes, weights, ["batch", WIDTH], ["batch", OUT])


def convolutions(path: Path, seed: int = 0) -> Path:
    """Two convolutions, the second grouped, a GELU, a mean and a linear layer, x [batch, 16, 16, 16]."""
    random = np.random.default_rng(seed)
    shapes = {"k1": (64, 16, 3, 3), "c1": (64,), "k2": (64, 1, 3, 3), "c2": (64,), "w": (64, 8), "b": (8,)}
    weights = {name: random.standard_normal(shape) / prod(shape[1:]) ** 0.5 for name, shape in shapes.items()}
    scalars = {"half": 0.5, "one": 1.0, "root": 2**-0.5}
    nodes = [
        helper.make_node("Conv", ["x", "k1", "c1"], ["p"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["p", "root"], ["scaled"], name="gelu1"),
        helper.make_node("Erf", ["scaled"], ["erf"], name="gelu2"),
        helper.make_node("Add", ["erf", "one"], ["plus"], name="gelu3"),
        helper.make_node("Mul", ["p", "plus"], ["product"], name="gelu4"),
        helper.make_node("Mul", ["product", "half"], ["g"], name="gelu5"),
        helper.make_node("Conv", ["g", "k2", "c2"], ["q"], name="grouped", pads=[1, 1, 1, 1], group=64),
        helper.make_node("GlobalAveragePool", ["q"], ["pool"], name="pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], name="flat", axis=1),
        helper.make_node("Gemm", ["flat", "w", "b"], ["y"], name="last"),
    ]
    return _save(path, nodes, weights | scalars, ["batch", 16, 16, 16], ["batch", 8])


def _save(
    path: Path, nodes: list[onnx.NodeProto], weights: Mapping[str, Any], x: Sequence[Any], y: Sequence[Any]
) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
