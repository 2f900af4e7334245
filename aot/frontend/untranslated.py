"""What torch.onnx says when it refuses, turned into one sentence with a line and a way out."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from typing import Any

import torch

from aot.errors import ExportError
from aot.frontend import lines
from aot.frontend.failures import at_line, first_sentence

OTHERWISE = "write that step with other torch functions, or provide a plugin for it"


def untranslated(error: BaseException, nodes: Iterable[Any]) -> ExportError:
    """The ExportError for an op among `nodes` that torch.onnx cannot translate."""
    text = f"{error}\n{error.__cause__ or ''}"
    op = re.search(r"No ONNX function found for (?:<OpOverload\(op=')?([\w.]+)", text)
    failed = re.search(r"Error when translating node %(\w+)", text)
    names = {node.name: node for node in nodes}
    at = lines.of_node(names[failed[1]]) if failed and failed[1] in names else _line_of_error(error)
    if op:
        own = not op[1].startswith(("aten.", "prims.", "torchvision."))
        return ExportError.of(
            at_line(
                "op without translation",
                f"there is no ONNX translation of {op[1]}",
                f"provide a plugin for it, plugins/{op[1].rpartition('.')[2]}.py" if own else OTHERWISE,
                at,
            )
        )
    target = re.search(r"Error when translating node .*target=torch\.ops\.(\w+\.\w+)", text)
    if target:
        what = f"torch.onnx has no translation of {target[1]} for these arguments"
        return ExportError.of(at_line("op without translation", what, OTHERWISE, at))
    said = first_sentence(error.__cause__ or error)
    return ExportError.of(at_line("translation", f"torch.onnx failed: {said}", None, at))


def _line_of_error(error: BaseException) -> lines.Line | None:
    """The line of the node at work when an exception arose, where torch.onnx made that node itself."""
    while error.__cause__ is not None:
        error = error.__cause__
    held = [frame.f_locals.get(name) for frame, _ in traceback.walk_tb(error.__traceback__) for name in ("node", "n")]
    return next((lines.of_node(node) for node in reversed(held) if isinstance(node, torch.fx.Node)), None)
