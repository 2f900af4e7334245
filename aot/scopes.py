"""The module paths that torch.onnx records on a node."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def scopes(metadata: Mapping[str, str]) -> list[str]:
    """From the outermost module inwards, the first one empty; the last is the FX node's own name, which is no module.

    Empty for a node that the exporter did not make.
    """
    try:
        found = ast.literal_eval(metadata.get("pkg.torch.onnx.name_scopes") or "[]")
    except (ValueError, SyntaxError):
        return []
    return [str(scope) for scope in found] if isinstance(found, list) else []
