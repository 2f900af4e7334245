"""Export: from the source to ONNX, as its author wrote it."""

from __future__ import annotations

from functools import partial

from aot.plugins.replacing import NOTHING, Replacing
from aot.records import Exported
from aot.run import Run
from aot.source import Source


def export(run: Run, source: Source, replacing: Replacing = NOTHING) -> Exported:
    """The model as ONNX, with ops of plugins in it where `replacing` says so.

    Raises ExportError, GraphError or PluginError, from the source.
    """
    record = run.stage(
        Exported,
        "export",
        partial(source.write_onnx, replacing=replacing),
        config={"replacing": replacing.to_json()} if replacing.names else {},
        inputs=[source.key],
        tools=source.tools,
    )
    for warning in record.facts.get("warnings", ()):
        run.progress.warn(warning)
    return record
