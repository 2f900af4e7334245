"""Torch-TensorRT's ahead-of-time conversion: from an exported program to a serialized TensorRT engine.

The whole of its API that aot speaks: 2.14, where the caller names inputs and outputs and the program's own dtypes
are the engine's. Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

import torch_tensorrt
from aot import profile, toolchain
from aot.backend import Job
from aot.declaration import Dim, Input
from aot.errors import EngineError
from aot.frontend.quiet import silenced
from aot.routes import TORCH_TENSORRT


def convert(job: Job, plan: Path) -> Mapping[str, Any]:
    """Convert the program `job.graph` and write the engine to `plan`; return the facts of `Backend.build`.

    Raises EngineError where Torch-TensorRT refuses.
    """
    program = move_to_device_pass(torch.export.load(job.graph), "cuda")
    outputs = program.call_spec.out_spec.unflatten(range(program.call_spec.out_spec.num_leaves))
    options = job.options
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            engine: bytes = silenced(
                lambda: torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
                    program,
                    arg_inputs=(),
                    kwarg_inputs={name: _input(name, tensor, job) for name, tensor in job.spec.inputs.items()},
                    kwarg_input_binding_names={name: name for name in job.spec.inputs},
                    output_binding_names={name: name for name in outputs},
                    disable_tf32=not options.tf32,
                    optimization_level=options.optimization_level,
                    workspace_size=(options.workspace_mib or 0) << 20,
                    timing_cache_path=str(Path(scratch) / "timing"),  # by default shared by everybody, under /tmp
                )
            )
        except Exception as error:  # it wraps whatever its converters and the builder raise
            said = " ".join(str(error.__cause__ or error).split())[:400]
            raise EngineError(
                f"Torch-TensorRT {toolchain.version(TORCH_TENSORRT)} could not convert the program: {said}",
                where=f"model '{job.spec.name}', --target {job.target}",
                fix="leave --route away: through ONNX other ops are taken; aot explain says which",
            ) from error
    plan.write_bytes(engine)
    machine = toolchain.machine()
    return {
        "origin": {"gpu": machine.gpu.name, "driver": machine.driver or "unknown"} if machine.gpu else None,
        "builder_seconds": round(time.perf_counter() - started, 3),
        "timing_cache": "does not apply",
    }


def _input(name: str, tensor: Input, job: Job) -> Any:
    """One shape where no Dim is in it, else one range of shapes for each optimization profile."""
    dtype = getattr(torch, tensor.dtype)
    if not any(isinstance(dim, Dim) for dim in tensor.shape):
        return torch_tensorrt.Input(shape=tuple(tensor.shape), dtype=dtype, name=name)
    keys = ("min_shape", "opt_shape", "max_shape")
    rank = tuple(-1 if isinstance(dim, Dim) else dim for dim in tensor.shape)
    ranges = [dict(zip(keys, profile.shapes(tensor, one, rank), strict=True)) for one in job.profiles]
    return torch_tensorrt.Input(profiles=ranges, dtype=dtype, name=name)
