"""Kernels of plugins inside engines, on this GPU: three ops, two of them with two outputs, sizes that vary.

Where the machine that runs this has no torch.export of the model, `AOT_PREPARED` takes its place: a folder that holds
plugins-fp32.aot and plugins-fp16.aot, prepared from MODEL with `--until graph --target` and this GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import backend, toolchain
from tests.e2e.harness import Aot

MODEL = """
import aot, torch

batch = aot.Dim("batch", min=1, opt=4, max=16)
seq = aot.Dim("seq", min=1, opt=16, max=64)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 64))
        angle = torch.arange(64.0)[:, None] / 100 ** (torch.arange(8) / 8)[None].repeat(1, 2)
        self.register_buffer("cos", torch.cos(angle))
        self.register_buffer("sin", torch.sin(angle))

    def forward(self, x):
        b, s, width = x.shape
        q = self.q(x).reshape(b, s, 4, 16).transpose(1, 2)
        q = aot.ops.rotary(q, self.cos[:s], self.sin[:s]).transpose(1, 2).reshape(b, s, width)
        y, total = aot.ops.add_rms_norm(q, x, self.weight)
        z = self.down(torch.relu(self.up(y)))
        return aot.ops.add_layer_norm(z, total, self.norm.weight, self.norm.bias)


@aot.model(inputs={"x": aot.Input([batch, seq, 64])}, outputs=["y", "total"])
def plugins():
    return Net().eval()
"""
SIZES = ((1, 1), (4, 16), (16, 63))
OPS = {"aot::rotary", "aot::add_rms_norm", "aot::add_layer_norm"}
CLOSE = {"fp32": 1e-5, "fp16": 4e-3}
"""Of an output's largest magnitude: FP32 sums in another order; a few roundings to FP16."""


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def built(request: pytest.FixtureRequest, aot: Aot) -> tuple[Aot, str, Path]:
    """(how to run aot, the precision, an artifact with an engine for this GPU)."""
    launching = backend.get("tensorrt").launches(backend.get("tensorrt").version())
    if launching == "python":
        pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings, which launches kernels, is not installed")
    precision, folder = request.param, os.environ.get("AOT_PREPARED")
    output = aot.folder / f"plugins-{precision}-engine.aot"
    found = Path(folder or "nowhere") / f"plugins-{precision}.aot"
    if found.is_dir():
        shutil.copytree(found, aot.folder / found.name)
        outcome = aot("build", found.name, "-o", output.name, "--json")
    else:
        pytest.importorskip("triton", reason="triton, which compiles kernels, is not installed")
        (aot.folder / "model.py").write_text(MODEL)
        asked = ("--precision", precision, "--backend", "tensorrt", "-o", output.name, "--json")
        outcome = aot("build", "model.py", *asked)
    assert outcome.code == 0, outcome.err
    assert outcome.json["verification"]["engine"]["ran"] is True
    return aot, precision, output


def facts(artifact: Path) -> dict[str, Any]:
    return dict(json.loads((artifact / "manifest.json").read_text())["engines"][0]["engine"]["facts"])


def test_every_op_is_a_kernel(built: tuple[Aot, str, Path]) -> None:
    _, _, artifact = built
    gpu = toolchain.machine().gpu
    assert gpu is not None
    found = facts(artifact)
    assert {one["plugin"] for one in found["kernels"]} == OPS
    assert {one["target"] for one in found["kernels"]} == {gpu.target}
    assert "expanded" not in found


@pytest.mark.parametrize("size", SIZES)
def test_values_are_those_of_the_references(built: tuple[Aot, str, Path], size: tuple[int, int]) -> None:
    """The functions of the same graph, run by onnxruntime on the CPU."""
    aot, precision, artifact = built
    x = np.random.default_rng(sum(size)).standard_normal((*size, 64)).astype(np.float32)
    np.savez(aot.folder / "x.npz", x=x)
    for chosen, out in (((), "engine.npz"), (("--engine", "cpu"), "graph.npz")):
        done = aot("run", artifact.name, "--inputs", "x.npz", "-o", out, *chosen)
        assert done.code == 0, done.err
    got, expected = np.load(aot.folder / "engine.npz"), np.load(aot.folder / "graph.npz")
    assert sorted(got) == ["total", "y"]
    for name in expected:
        atol = CLOSE[precision] * float(np.abs(expected[name]).max())
        np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=atol)


def test_a_cuda_graph_replays_them_on_other_data(built: tuple[Aot, str, Path]) -> None:
    """Captured on one batch, replayed on another, and the same bits as a direct run."""
    import tensorrt as trt

    torch = pytest.importorskip("torch", reason="torch captures the graph")
    _, _, artifact = built
    tensorrt: Any = backend.get("tensorrt")
    _, log = tensorrt.start()
    engine = trt.Runtime(log).deserialize_cuda_engine((artifact / "engines" / facts(artifact)["file"]).read_bytes())
    context = engine.create_execution_context()
    x = torch.randn(4, 16, 64, device="cuda")
    assert context.set_input_shape("x", (4, 16, 64))
    made = {name: torch.zeros(4, 16, 64, device="cuda") for name in ("y", "total")}
    for name, tensor in {"x": x, **made}.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    assert context.execute_async_v3(stream.cuda_stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)

    x.copy_(torch.randn(4, 16, 64, device="cuda"))
    for tensor in made.values():
        tensor.zero_()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    replayed = {name: tensor.clone() for name, tensor in made.items()}
    assert context.execute_async_v3(stream.cuda_stream)
    torch.cuda.synchronize()
    for name, tensor in made.items():
        assert torch.count_nonzero(tensor) > 0
        assert torch.equal(replayed[name], tensor)


def test_the_runtime_launches_them_in_a_process_without_the_compiler(built: tuple[Aot, str, Path]) -> None:
    aot, precision, artifact = built
    script = (
        "import sys, numpy as np, aot\n"
        "session = aot.load(sys.argv[1])\n"
        "x = np.load('runtime-x.npz')['x']\n"
        "for _ in range(4): got = session(x=x)\n"  # plain, captured, launched
        "np.savez('runtime-y.npz', **got)\n"
        "print(session.label, [name for name in ('torch', 'onnx', 'triton', 'pydantic') if name in sys.modules])"
    )
    for batch, seq in SIZES:
        x = np.random.default_rng(batch).standard_normal((batch, seq, 64)).astype(np.float32)
        np.savez(aot.folder / "runtime-x.npz", x=x)
        done = subprocess.run(
            [sys.executable, "-c", script, str(artifact)], cwd=aot.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("engine sm")
        assert done.stdout.strip().endswith("[]")
        outcome = aot("run", artifact.name, "--inputs", "runtime-x.npz", "-o", "graph-y.npz", "--engine", "cpu")
        assert outcome.code == 0, outcome.err
        got, expected = (np.load(aot.folder / name) for name in ("runtime-y.npz", "graph-y.npz"))
        for name in ("y", "total"):
            most = np.abs(expected[name]).max()
            np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=2 * CLOSE[precision] * most)
