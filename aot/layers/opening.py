"""The graph behind each of the two names that `aot diff` compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aot import routes
from aot.errors import UsageError

if TYPE_CHECKING:
    from aot.profile import Triple
    from aot.run import Run
    from aot.runners import Runnable


def graph_of(side: Runnable, other: Runnable, dims: Mapping[str, Triple], run: Run) -> tuple[Path, str]:
    """The ONNX file of a side and what it is, for people.

    Of an artifact its final graph; of an ONNX file the file itself, where the other side is one too; else what surgery
    makes of the model in the precision of the other side, whose names the final graph of a build keeps.
    Raises UsageError for an artifact that holds no graph.
    """
    if side.prepared is not None:
        if side.prepared.plan.route != routes.ONNX:
            raise UsageError(
                "the artifact holds a program of torch's, no graph, so it cannot be compared layer by layer",
                where=side.name,
                fix="build it without --route torch-tensorrt, or leave --layers away",
            )
        return side.prepared.final.model, f"final graph, {side.prepared.plan.precision}"
    if side.given is not None and other.prepared is None:
        return Path(side.name), "the file as it is"
    return _rewritten(side, other, dims, run), "FP32 graph after surgery"


def _rewritten(side: Runnable, other: Runnable, dims: Mapping[str, Triple], run: Run) -> Path:
    from aot.config import Request
    from aot.plan import choose, decide
    from aot.source import open_source, project_of
    from aot.stages.export import export
    from aot.stages.surgery import surgery

    given = {name: dim.bounds for name, dim in other.spec.dims.items()} if side.given is not None else {}
    request = Request(model=side.name, dims={**given, **dims}, precision="fp32", until="graph")
    source = open_source(request, run)
    plan = decide(request, choose(request, project_of(side.name)), source.spec)
    if other.prepared is not None:
        theirs = other.prepared.plan
        plan = replace(plan, precision=theirs.precision, surgery=theirs.surgery)
    return surgery(run, export(run, source), plan).model
