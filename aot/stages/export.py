"""Export: from the source to ONNX, as its author wrote it."""

from __future__ import annotations

from aot.records import Exported
from aot.run import Run
from aot.source import Source


def export(run: Run, source: Source) -> Exported:
    """The model as ONNX. Raises ExportError or GraphError, from the source."""
    record = run.stage(Exported, "export", source.write_onnx, config={}, inputs=[source.key], tools=source.tools)
    for warning in record.facts.get("warnings", ()):
        run.progress.warn(warning)
    return record
