"""Building a graph with TensorRT-RTX, which needs no GPU for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import pytest


def build(model: ir.Model, shapes: Mapping[str, list[tuple[int, ...]]] | None = None) -> bytes:
    """The strongly typed engine for one target; what the builder says otherwise is in the failure.

    shapes: the smallest, the usual and the largest of each input with dynamic sizes.
    """
    trt = pytest.importorskip("tensorrt_rtx")
    said: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                said.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(ir.to_proto(model).SerializeToString()), parser.get_error(0).desc()
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, sizes in shapes.items():
            profile.set_shape(name, *sizes)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, said
    return bytes(plan)
