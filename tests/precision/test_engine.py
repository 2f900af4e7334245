"""A strongly typed builder takes the graphs: TensorRT-RTX, which needs no GPU to build."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.precision.graphs import converted, graph, observe, recipe

trt = pytest.importorskip("tensorrt_rtx")
rng = np.random.default_rng(4)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return (0.2 * rng.standard_normal(shape)).astype(np.float32)


NETWORK = """g (float[4, 16, 8, 8] x) => (float[4, 16] y, float[4, 64] p) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w, b)  c = Relu(a)  d = Conv <pads = [1, 1, 1, 1]> (c, v)  s = Add(d, x)
    m = GlobalAveragePool(s)  f = Flatten(m)  n = LayerNormalization(f, g, b)  e = Gemm(n, u)  h = Gelu(e)
    k = Gemm <transB = 1> (h, t)  y = Softmax(k)  q = ReduceL2(h, axis)  r = Add(q, eps)  p = Div(h, r)
}"""


def network() -> ir.Model:
    return graph(
        NETWORK,
        w=normal(16, 16, 3, 3),
        v=normal(16, 16, 3, 3),
        b=normal(16),
        g=np.ones(16, np.float32),
        u=normal(16, 64),
        t=normal(16, 64),
        axis=np.array([1]),
        eps=np.array(1e-12, np.float32),
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_tensorrt_rtx_builds_every_precision(precision: str) -> None:
    made = network()
    amax = observe(made, {"x": normal(4, 16, 8, 8)})
    model, outcome = converted(made, recipe(precision, residual=precision == "int8"), amax)
    assert outcome.ops == {"int8": {"Add": 1, "Conv": 2, "Gemm": 2}, "fp8": {"Conv": 2, "Gemm": 2}}.get(precision, {})

    said: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                said.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    made_network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(made_network, logger)
    assert parser.parse(ir.to_proto(model).SerializeToString()), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    assert builder.build_serialized_network(made_network, config) is not None, said
