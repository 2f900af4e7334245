"""The second route: an exported program in place of a graph, and Torch-TensorRT in place of a parser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.backend import Job
from aot.plan import Plan
from aot.records import PROGRAM, Program
from aot.run import Run
from aot.source import Source

WHOLE = "everything computes in {}: the route torch-tensorrt keeps nothing in FP32"


def capture(run: Run, source: Source, plan: Plan) -> Program:
    """The model as an exported program that computes in the plan's precision. Raises ExportError."""

    def make(folder: Path) -> Mapping[str, Any]:
        facts = source.write_program(folder / PROGRAM, plan.precision)
        warnings = [WHOLE.format(plan.precision.upper())] if plan.precision != "fp32" else []
        return {"precision": plan.precision, "ops": {}, "qdq": 0, "decisions": [], "warnings": warnings, **facts}

    record = run.stage(
        Program,
        "program",
        make,
        config={"precision": plan.precision},
        inputs=[source.key],
        tools=source.tools,
        detail=plan.precision,
    )
    for warning in record.facts["warnings"]:
        run.progress.warn(warning)
    return record


def convert(job: Job, file: Path) -> Mapping[str, Any]:
    """Write the engine of a program to `file`; return the facts of `Backend.build`. Raises EngineError."""
    from aot.frontend import torch_tensorrt

    return torch_tensorrt.convert(job, file)
