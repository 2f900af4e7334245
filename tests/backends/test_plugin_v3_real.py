"""The plugin under a real parser and builder: TensorRT-RTX, which builds without a GPU, knows the same interface.

It sees lifetimes and signatures that a stand-in cannot. Nothing is launched, for its builder times no plugin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest

from aot.runtime.kernels import Compiled
from tests.backends.test_plugin_v3 import kernel

ROOT = Path(__file__).parents[2]
GRAPH = """<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
g (float16[a, b, 8] x, float[b] s) => (float16[a, b, 8] z) { y, q = mine.scaled(x, s)  z, r = mine.scaled(y, s) }"""
SCRIPT = """
import json, sys
from pathlib import Path
import tensorrt_rtx as trt
from aot.backends import _plugin_v3
from aot.runtime import plugin_v3
from aot.runtime.kernels import Compiled

graph, folder = map(Path, sys.argv[1:])
kernels = [Compiled.from_json(one) for one in json.loads((folder / "given.json").read_text())]
path = _plugin_v3.prepare(trt, graph, {"first": kernels, "second": kernels[:1]}, folder)
log = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(log)
network = builder.create_network(0)
parser = trt.OnnxParser(network, log)
assert parser.parse_from_file(str(path)), [parser.get_error(at).desc() for at in range(parser.num_errors)]
layers = [network.get_layer(at) for at in range(network.num_layers)]
found = {
    layer.name: [[layer.get_output(at).dtype.name, *layer.get_output(at).shape] for at in range(layer.num_outputs)]
    for layer in layers if layer.type == trt.LayerType.PLUGIN_V3
}
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
profile = builder.create_optimization_profile()
profile.set_shape("x", (1, 5, 8), (3, 5, 8), (4, 6, 8))
profile.set_shape("s", (5,), (5,), (6,))
config.add_optimization_profile(profile)
plan = builder.build_serialized_network(network, config)
kept = [str(error) for _, error in plugin_v3._kept]
print(json.dumps({"layers": found, "built": plan is not None, "kept": kept}))
"""


def run(graph: Path, folder: Path, *kernels: Compiled) -> dict[str, Any]:
    """The script in a process of its own: plugins of TensorRT-RTX need a library name that its wheel lacks."""
    spec = find_spec("tensorrt_rtx_libs")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("tensorrt-rtx-cu13 is not installed")
    libraries = folder / "lib"
    libraries.mkdir()
    (libraries / "libtensorrt_rtx.so").symlink_to(Path(spec.submodule_search_locations[0]) / "libtensorrt_rtx.so.1")
    (folder / "given.json").write_text(json.dumps([one.to_json() for one in kernels]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(graph), str(folder)],
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_real_builder_makes_an_engine_of_it(tmp_path: Path) -> None:
    """Sizes: of y as of x [a, b, 8]; of the second output max(a * b, 1) and b - 1."""
    model = onnx.parser.parse_model(GRAPH)
    for node, name in zip(model.graph.node, ("first", "second"), strict=True):
        node.name = name
    onnx.save(model, tmp_path / "graph.onnx")
    (tmp_path / "work").mkdir()
    found = run(tmp_path / "graph.onnx", tmp_path / "work", kernel(4), kernel(8))
    outputs = [["HALF", -1, -1, 8], ["INT8", -1, -1]]
    assert found == {"layers": {"first": outputs, "second": outputs}, "built": True, "kept": []}
