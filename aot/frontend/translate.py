"""From an exported program to ONNX: `torch.onnx`, with the translations of `aot.frontend.bridge` in place of its own.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import warnings
from typing import Any

import onnx_ir as ir
import torch

from aot.errors import ExportError
from aot.frontend import constraints
from aot.frontend.bridge import TRANSLATIONS

OPSET = 20


def translated(program: torch.export.ExportedProgram) -> ir.Model:
    """The program as an ONNX model of opset OPSET. Raises ExportError for an op without translation."""

    def translate() -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[str(name) for name in program.graph_signature.user_inputs],
                custom_translation_table=TRANSLATIONS,
                optimize=True,
                verbose=False,
            )

    try:
        made = constraints.silenced(translate)
    except torch.onnx.errors.OnnxExporterError as error:
        raise constraints.untranslated(error, program.graph.nodes) from error
    model = made.model
    if not isinstance(model, ir.Model) or model.opset_imports.get("") != OPSET:
        raise ExportError(
            f"torch.onnx wrote opset {model.opset_imports.get('')} instead of {OPSET}",
            fix="install torch 2.11 or later",
        )
    return model
