"""Writing where nodes come from, from what torch or an ONNX file says of them; see `aot.origins`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir

import aot
from aot import origins
from aot.origins import Origin

# What torch.onnx leaves on nodes, values and graphs; several times the size of the graph itself.
_EXPORTER = re.compile(r"pkg\.torch\.|namespace$")
_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]*)(?P<code>\n(?! *File ")[^\n]*)?'
)
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")


def write(model: ir.Model, project: Path | None) -> None:
    """Give every node of a model that torch.onnx has just made its origin, and drop what the exporter left there.

    The source is the deepest frame that is neither torch's nor aot's own, relative to `project` where it lies inside;
    the module is the innermost. Nodes that stand for no line (sizes asked for by the exporter) get those of the first
    node that reads them; nodes of a subgraph without a module those of the node that holds it.
    """
    for node in origins.every_node(model):
        origins.set(node, _recorded(node.metadata_props, project))
    for holder in origins.every_node(model):
        above = origins.of(holder)
        for node in (node for graph in origins.subgraphs(holder) for node in graph):
            own = origins.of(node)
            if above is not None and own is not None and not own.module:
                origins.set(node, Origin(above.module, own.file, own.line, own.function, own.code))
    origins.inherit(model, {})
    _drop_exporters(model)


def write_from_file(model: ir.Model, path: Path, project: Path | None) -> None:
    """Give every node of an ONNX file its origin: what the exporter that wrote the file recorded, else the node itself.

    A file that aot wrote keeps the origins it has. Call it before the first edit, while names are the file's own.
    """
    for node in origins.every_node(model):
        if origins.of(node) is None:
            name = node.name or next((str(v.name) for v in node.outputs if v.name), "")
            origins.set(node, _recorded(node.metadata_props, project) or Origin(name, path.name, 0, node.op_type))
    _drop_exporters(model)


def _recorded(metadata: Mapping[str, str], project: Path | None) -> Origin | None:
    """The origin by torch.onnx's metadata; None where that names neither a module nor a line of the user's."""
    module = _module(metadata.get("pkg.torch.onnx.name_scopes", ""))
    frames = _FRAME.finditer(metadata.get("pkg.torch.onnx.stack_trace", ""))
    own = [frame for frame in frames if not _foreign(frame["file"])]
    if not own:
        return Origin(module) if module else None
    frame = own[-1]
    code = (frame["code"] or "").strip()
    return Origin(module, portable(frame["file"], project), int(frame["line"]), frame["function"].strip(), code)


def _module(scopes: str) -> str:
    """The innermost module. The list goes from the outermost inwards and ends with the FX node, which is no module."""
    try:
        found = ast.literal_eval(scopes or "[]")
    except (ValueError, SyntaxError):
        return ""
    path = found[-2] if isinstance(found, list) and len(found) > 1 else ""
    # torch's stand-in where it lost the module.
    return "" if str(path).startswith("_empty_nn_module_stack") else str(path)


@cache
def _foreign(file: str) -> bool:
    """Whether a frame is torch's, aot's or of generated code: nothing the user wrote."""
    spec = find_spec("torch")
    own = [Path(aot.__file__).parent, *([Path(spec.origin).parent] if spec is not None and spec.origin else [])]
    return (
        file.startswith(("<", "torch/"))
        or re.search(r"/(?:site|dist)-packages/torch/", file) is not None
        or any(Path(file).is_relative_to(folder) for folder in own)
    )


@cache
def portable(file: str, project: Path | None) -> str:
    """The file's name on every machine: from the installed package's root, from the project's folder, or from the
    root of the package that it belongs to."""
    installed = _INSTALLED.match(file)
    if installed is not None:
        return file[installed.end() :]
    path = Path(file)
    if project is not None and path.is_relative_to(project.resolve()):
        return path.relative_to(project.resolve()).as_posix()
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return path.relative_to(root).as_posix()


def _drop_exporters(model: ir.Model) -> None:
    graphs = [model.graph, *model.graph.subgraphs()]
    nodes = list(origins.every_node(model))
    values = [v for graph in graphs for v in (*graph.inputs, *graph.initializers.values())]
    values += [v for node in nodes for v in node.outputs]
    held = [model.metadata_props, *(graph.metadata_props for graph in graphs)]
    held += [function.metadata_props for function in model.functions.values()]
    held += [node.metadata_props for node in nodes] + [value.metadata_props for value in values]
    for metadata in held:
        for key in [key for key in metadata if _EXPORTER.match(key)]:
            del metadata[key]
