"""From an exported program to ONNX: `torch.onnx`, with the translations of `aot.frontend.bridge` in place of its own.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import warnings
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.values import TracedOnnxFunction

from aot import origins as origins_of
from aot.errors import ExportError
from aot.frontend import origins
from aot.frontend.bridge import TRANSLATIONS, plugin_nodes, quantized
from aot.frontend.bridge.rewrite import rewritten
from aot.frontend.call import tensor_inputs
from aot.frontend.quiet import silenced
from aot.frontend.untranslated import untranslated

OPSET = 20


def _read_signatures_once() -> None:
    """Keep the signatures of onnxscript's 500 functions, which torch.onnx has read from their source in every export:
    half of the time of a small one, and every function of a plugin is one.
    """
    name = "function_ir"
    read = TracedOnnxFunction.__dict__.get(name)
    if isinstance(read, property) and read.fget is not None:
        kept = cached_property(read.fget)
        kept.__set_name__(TracedOnnxFunction, name)
        setattr(TracedOnnxFunction, name, kept)


_read_signatures_once()


def translated(program: torch.export.ExportedProgram, project: Path | None = None) -> ir.Model:
    """The program as an ONNX model of opset OPSET, every node with its origin; `project`: see `origins.write`.

    Raises ExportError for an op without translation, PluginError for a plugin that is broken.
    """

    plugins = plugin_nodes.Plugins(project)
    program = silenced(partial(rewritten, program, plugins.implement))
    own = plugins.translations(program)

    def translate() -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=tensor_inputs(program),
                custom_translation_table={**TRANSLATIONS, **own},
                optimize=False,  # before origins are written it would lose some
                verbose=False,
            )
            assert made is not None
            origins.write(made.model, project)
            known = origins_of.by_value(made.model)
            made.optimize()
            _hold_constants(made.model)
            quantized.write_quantization(made.model)
            origins_of.inherit(made.model, known)
            return made

    try:
        made = silenced(translate)
    except torch.onnx.errors.OnnxExporterError as error:
        raise untranslated(error, program.graph.nodes) from error
    model = made.model
    if not isinstance(model, ir.Model) or model.opset_imports.get("") != OPSET:
        raise ExportError(
            f"torch.onnx wrote opset {model.opset_imports.get('')} instead of {OPSET}",
            fix="install torch 2.11 or later",
        )
    plugins.attach_functions(model, translated)
    return model


def _hold_constants(model: ir.Model) -> None:
    """Make initializers of constants that nodes read and no graph holds.

    The rules of onnxscript that torch's optimizer applies name a new constant after the value that they are applied
    to; of two with one name the graph keeps the last, and the model could not be written.
    """
    held = {id(value) for value in model.graph.initializers.values()}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None or value.is_graph_input():
                continue
            if id(value) in held or value.is_initializer():
                continue
            name, count = value.name or "constant", 1
            while value.name is None or value.name in model.graph.initializers:
                count += 1
                value.name = f"{name}_{count}"
            model.graph.register_initializer(value)
            held.add(id(value))
