"""A model with a plugin's op from model.py to the final graph, as a user has it: custom ops of the model's own too."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from aot import artifact, content, toolchain
from aot.backends.tensorrt import TensorRt
from aot.cli import _main as cli
from aot.content import plugin_digest
from aot.plugins import tuned
from tests.backends import fake_tensorrt
from tests.plugins.projects import line_of, write

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


def test_ops_of_plugins_stay_those_that_the_model_made_itself_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph is compared with eager at the least, the optimal and the greatest size, and at one more."""
    (tmp_path / "model.py").write_text(MODEL)
    write(tmp_path, "swiglu", text=SWIGLU)
    found, model = built(tmp_path, capsys, "--precision", "fp16")
    assert ops(model) == {"aot::add_rms_norm", "aotdemo::swiglu"}
    assert {function.name for function in model.functions} == {"add_rms_norm", "swiglu"}
    assert found["accepted"]
    assert found["verification"]["graph"]["cosine"] > 0.99999  # type: ignore[index]

    found, _ = built(tmp_path, capsys, "--precision", "fp16")  # nothing has changed
    assert all(stage["cached"] for stage in found["stages"] if stage["name"] != "package")  # type: ignore[attr-defined]


def test_a_kernel_that_disagrees_with_its_reference_ends_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is run on the interpreter when it is compiled for a target, where nothing else compares it."""
    (tmp_path / "model.py").write_text(MODEL)
    file = write(tmp_path, "swiglu", ("tl.sigmoid(gate)", "tl.sigmoid(-gate)"), text=SWIGLU)
    command = ["build", str(tmp_path / "model.py"), "--until", "graph", "--target", "sm90", "-o"]
    assert cli.call([*command, str(tmp_path / "net.aot"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"].startswith("plugin swiglu: the kernel does not compute what reference does, in ")
    assert "'y' differs by" in error["what"]
    assert error["where"] == line_of(file, "def kernel")


def test_an_artifact_carries_kernels_to_a_machine_without_the_plugins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared here for sm90; finished by TensorRT 10.6, a stand-in, without triton and the plugins."""
    monkeypatch.setattr(tuned, "best", lambda *_, **__: 0)  # one config is enough
    (tmp_path / "here").mkdir()
    (tmp_path / "here/model.py").write_text(MODEL)
    write(tmp_path / "here", "swiglu", text=SWIGLU)
    built(tmp_path / "here", capsys, "--precision", "fp16", "--target", "sm90")
    (kernels,) = artifact.load(str(tmp_path / "here/net.aot")).kernels
    compiled = {found.plugin: found for found, *_ in kernels.by_node().values()}
    assert set(compiled) == {"aot::add_rms_norm", "aotdemo::swiglu"}
    assert compiled["aot::add_rms_norm"].dtypes == ("float16",) * 3
    assert compiled["aotdemo::swiglu"].launched([(3, 16), (3, 16)]) == ((48, 1, 1), ())

    there = tmp_path / "there"
    (tmp_path / "here/net.aot").rename(there)
    fake_tensorrt.install(monkeypatch)
    monkeypatch.setattr(TensorRt, "can_run", lambda *_: "a stand-in runs nothing")
    version = toolchain.version
    monkeypatch.setattr(toolchain, "version", lambda name: None if name == "triton" else version(name))
    names = content.names
    monkeypatch.setattr(content, "names", lambda kind, *project: {} if kind == "plugins" else names(kind, *project))
    assert cli.call(["build", str(there), "-o", str(tmp_path / "full.aot"), "--json"]) == 0
    capsys.readouterr()
    assert cli.call(["inspect", str(tmp_path / "full.aot"), "--json"]) == 0
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert {one["plugin"]: one["digests"] for one in engine["kernels"]} == {
        name: [one.digest] for name, one in compiled.items()
    }
    assert all(one["needs_python"] and one["target"] == "sm90" for one in engine["kernels"])
    assert "expanded" not in engine
    assert cli.call(["inspect", str(tmp_path / "full.aot")]) == 0
    said = capsys.readouterr().out
    assert f"1 node, kernel {compiled['aotdemo::swiglu'].digest[:12]}, needs Python and cuda-bindings to run" in said


def test_a_changed_plugin_and_what_it_imports_change_what_is_made_from_them(tmp_path: Path) -> None:
    digests = [plugin_digest(tmp_path)]
    for name, text in (("swiglu", SWIGLU), ("swiglu", f"{SWIGLU}# changed"), ("_common", "HELPER = 1")):
        (tmp_path / "plugins").mkdir(exist_ok=True)
        (tmp_path / "plugins" / f"{name}.py").write_text(text)
        digests.append(plugin_digest(tmp_path))
    assert len(set(digests)) == 4


def test_a_broken_plugin_ends_the_build_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    file = write(tmp_path, "swiglu", text=SWIGLU.replace("(T a, T b)", "(T a, T b, float limit=7.0)"))
    assert cli.call(["build", str(tmp_path / "model.py"), "--until", "graph"]) == 2
    said = capsys.readouterr().err
    assert "torch has an op aotdemo::swiglu already, with another schema" in said
    assert f"at:  {line_of(file, 'NAME =')}" in said
