"""An attribute that is a list of integers, `int[] strides`, from SCHEMA to op, node, function and kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend import plugins
from aot.frontend.export import write_module
from aot.plugins.checking import check
from aot.plugins.compiling import Job, compile_all
from aot.plugins.header import read
from aot.plugins.nodes import plugin_nodes
from tests.plugins.projects import line_of, write

THINNED = '''"""Every strides[0]th row and strides[1]th column."""
import torch
import triton
import triton.language as tl
from aot.plugin import Launch, ceil_div

NAME = "mine::thinned"
SCHEMA = "(T x, int[] strides=[1, 1], float scale=1.0) -> (T y)"
TYPES = {"T": "float32 float16"}
SHAPES = {"x": "rows columns"}
ATTRIBUTES = {"strides": [[2, 3]]}
CASES = [{"rows": 5, "columns": 7}, {"rows": 4, "columns": 1, "strides": [3, 2], "scale": 2}]
CONFIGS = [{"block": 16}]


def reference(x, strides, scale):
    return x[:: strides[0], :: strides[1]] * scale


def outputs(shapes, attributes):
    rows, columns = shapes.x
    return ((ceil_div(rows, attributes.strides[0]), ceil_div(columns, attributes.strides[1])),)


def launch(shapes, attributes, config):
    assert type(attributes.strides) is tuple
    rows, columns = outputs(shapes, attributes)[0]
    return Launch(
        grid=(rows, ceil_div(columns, config["block"])),
        scalars={"wide": shapes.x[1], "columns": columns},
        constants={"DOWN": attributes.strides[0], "RIGHT": attributes.strides[1], "SCALE": attributes.scale,
                   "BLOCK": config["block"]},
    )


@triton.jit
def kernel(
    x, wide, columns, y, DOWN: tl.constexpr, RIGHT: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * DOWN * wide + column * RIGHT, mask=column < columns)
    tl.store(y + row * columns + column, (value * SCALE).to(y.dtype.element_ty), mask=column < columns)
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugins, "current", lambda: tmp_path)
    write(tmp_path, "thinned", text=THINNED)
    return tmp_path


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return aot.ops.thinned(x, [2, 3], 0.5), aot.ops.thinned(torch.tanh(x))


def test_the_op_the_node_and_its_function_have_it(project: Path) -> None:
    spec = ModelSpec("net", {"x": Input([Dim("rows", min=1, opt=5, max=9), 8])}, ("thin", "whole"))
    write_module(Net(), spec, project, project)
    x = np.linspace(-2.0, 2.0, 7 * 8, dtype=np.float32).reshape(7, 8)
    session = onnxruntime.InferenceSession(str(project / "model.onnx"))
    thin, whole = session.run(None, {"x": x})
    np.testing.assert_allclose(thin, x[::2, ::3] * 0.5, rtol=1e-6)
    np.testing.assert_allclose(whole, np.tanh(x), rtol=1e-5)
    nodes = [node for node in onnx.load(project / "model.onnx").graph.node if node.domain == "mine"]
    said = [{one.name: list(one.ints) for one in node.attribute} for node in nodes]
    assert [one["strides"] for one in said] == [[2, 3], [1, 1]]
    found = plugin_nodes(ir.load(project / "model.onnx"), read(project / "plugins" / "thinned.py"))
    assert [one.call.attributes for one in found if one.call is not None] == [
        {"strides": (2, 3), "scale": 0.5},
        {"strides": (1, 1), "scale": 1.0},
    ]


def test_the_kernel_is_checked_with_it_and_compiled_for_it(project: Path) -> None:
    header = read(project / "plugins" / "thinned.py")
    (found,) = check([header])
    assert found.passed
    assert any("strides=(2, 3)" in case.what for case in found.cases)
    (made,) = compile_all(header, [Job("sm90", {"x": (None, 8)}, ("float16",), {"strides": (2, 3), "scale": 0.5})])
    assert made.launched([(7, 8)]) == ((4, 1, 1), (8, 3))
    assert made.outputs == ([["ceil", ["size", "x", 0], 2], 3],)


@pytest.mark.parametrize(
    ("old", "new", "says", "at"),
    [
        ("strides=[1, 1]", "strides=[1.5]", "the default of 'strides' is not int[]: [1.5]", "SCHEMA"),
        ('"strides": [[2, 3]]', '"strides": [2, 3]', "'strides' is 2, and SCHEMA says int[]", "ATTRIBUTES"),
        (
            "(T x, int[]",
            "(T x, T? bias, int[]",
            "'T? bias' may be left out, and an engine gives a plugin every",
            "SCHEMA",
        ),
        ("(T x, int[]", "(Tensor? x, int[]", "'Tensor? x' may be left out", "SCHEMA"),
    ],
)
def test_what_cannot_be_is_told(tmp_path: Path, old: str, new: str, says: str, at: str) -> None:
    file = write(tmp_path, "thinned", (old, new), text=THINNED)
    with pytest.raises(PluginError) as caught:
        read(file)
    assert says in str(caught.value)
    assert caught.value.where == line_of(file, at)
    assert at != "SCHEMA" or "?" not in new or "zeros for a bias" in str(caught.value.fix)
