"""FP8 convolutions whose channels are no multiples of 16: TensorRT builds them, and they compute what they should."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from aot import toolchain
from tests.e2e.harness import Aot

# float[batch, CHANNELS[0], 14, 14] to float[batch, CHANNELS[2], 14, 14].
CHANNELS = (24, 17, 40)


def test_any_sixteen_channels_or_more(aot: Aot) -> None:
    gpu = toolchain.machine().gpu
    assert gpu is not None
    if int(gpu.target[2:]) < 89:
        pytest.skip("FP8 needs compute capability 8.9")
    first, middle, last = CHANNELS
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 20]>
        convolutions (float[batch, {first}, 14, 14] x) => (float[batch, {last}, 14, 14] y)
        {{ h = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu(h)  y = Conv(r, v) }}""")
    drawn = np.random.default_rng(0)
    for name, shape in {"w": (middle, first, 3, 3), "v": (last, middle, 1, 1)}.items():
        weight = (0.1 * drawn.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, aot.folder / "convolutions.onnx")

    (aot.folder / "few.yaml").write_text("extends: fp8\nplacement: {min_channels: 16, slow: true}\n")

    options = ("--dim", "batch=1:8:16", "--backend", "tensorrt", "--calibration", "few.yaml", "--json")
    outcome = aot("build", "convolutions.onnx", *options, "-o", "fp8.aot")

    assert outcome.code == 0, outcome.err
    summary = outcome.json
    assert summary["quantized"]["ops"] == 2
    assert summary["verification"]["engine"]["ran"] is True
    assert summary["verification"]["engine"]["cosine"] >= 0.98
