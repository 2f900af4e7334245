"""A model with a plugin's op from model.py to the final graph, as a user has it: custom ops of the model's own too."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from aot.cli import _main as cli
from tests.plugins.projects import write

MODEL = """
import aot, torch

batch = aot.Dim("batch", min=1, opt=3, max=8)


@torch.library.custom_op("aotdemo::swiglu", mutates_args=())
def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(a) * b


@swiglu.register_fake
def _(a, b):
    return torch.empty_like(a)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(16, 8)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        y, total = aot.ops.add_rms_norm(x, torch.tanh(x), self.weight)
        a, b = self.up(y).chunk(2, -1)
        return self.down(torch.ops.aotdemo.swiglu(a, b)), total


@aot.model(inputs={"x": aot.Input([batch, 8])})
def net():
    return Net()
"""

SWIGLU = '''"""silu(a) b."""
import torch
import triton
import triton.language as tl
from aot.plugin import Launch

NAME = "aotdemo::swiglu"
SCHEMA = "(T a, T b) -> (T y)"
TYPES = {"T": "float32 float16"}
SHAPES = {"a": "rows width", "b": "rows width"}
CONFIGS = [{}]


def reference(a, b):
    return (torch.nn.functional.silu(a.float()) * b.float()).to(a.dtype)


def outputs(shapes, attributes):
    return (shapes.a,)


def launch(shapes, attributes, config):
    return Launch(grid=(shapes.a[0] * shapes.a[1],))


@triton.jit
def kernel(a, b, y):
    at = tl.program_id(0)
    gate = tl.load(a + at).to(tl.float32)
    tl.store(y + at, (gate * tl.sigmoid(gate) * tl.load(b + at)).to(y.dtype.element_ty))
'''


def built(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, object], onnx.ModelProto]:
    output = folder / "net.aot"
    arguments = ["build", str(folder / "model.py"), "--until", "graph", "-o", str(output), "--json", *options]
    assert cli.call(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    return found, onnx.load(next((output / "graph").glob("*.onnx")), load_external_data=False)


def ops(model: onnx.ModelProto) -> set[str]:
    return {f"{node.domain}::{node.op_type}" for node in model.graph.node if node.domain}


def test_a_plugin_keeps_an_op_of_the_model_that_would_be_expanded_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both graphs are compared with eager at the least, the optimal and the greatest size, and at one more."""
    (tmp_path / "model.py").write_text(MODEL)
    found, model = built(tmp_path, capsys, "--precision", "fp32")
    assert ops(model) == {"aot::add_rms_norm"}
    assert found["accepted"]

    write(tmp_path, "swiglu", text=SWIGLU)
    found, model = built(tmp_path, capsys, "--precision", "fp16")
    assert ops(model) == {"aot::add_rms_norm", "aotdemo::swiglu"}
    assert {function.name for function in model.functions} == {"add_rms_norm", "swiglu"}
    assert found["accepted"]
    assert found["verification"]["graph"]["cosine"] > 0.99999  # type: ignore[index]
    assert {"export", "verify export"} <= {s["name"] for s in found["stages"] if not s["cached"]}  # type: ignore[attr-defined]

    # Nothing has changed: nothing is done, and a plugin that has changed is exported again.
    found, _ = built(tmp_path, capsys, "--precision", "fp16")
    assert all(stage["cached"] for stage in found["stages"] if stage["name"] != "package")  # type: ignore[attr-defined]
    write(tmp_path, "swiglu", text=SWIGLU + "# changed\n")
    found, _ = built(tmp_path, capsys, "--precision", "fp16")
    assert not next(stage for stage in found["stages"] if stage["name"] == "export")["cached"]  # type: ignore[attr-defined]


def test_a_broken_plugin_ends_the_build_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    file = write(tmp_path, "swiglu", text=SWIGLU.replace("-> (T y)", "-> (T y, T z)"))
    assert cli.call(["build", str(tmp_path / "model.py"), "--until", "graph"]) == 2
    said = capsys.readouterr().err
    assert "aotdemo::swiglu" in said or "plugin swiglu" in said
    assert str(file) in said
