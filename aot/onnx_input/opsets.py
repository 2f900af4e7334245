"""Bringing a model from an older opset up to a newer one, by one rule for every op whose meaning was rewritten.

ONNX changes an op in one of two ways. Most new versions only allow more (types, negative axes, new optional inputs
whose absence means what it meant); such nodes stay as they are. The others move an attribute to an input, change a
default, or drop an op; each of those has a `Rule` in `opset_rules`: the last opset in which a node may still have
the old form, and the function that rewrites it. Rules are applied in the order of opsets, subgraphs included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from aot.errors import GraphError
from aot.onnx_input._instead import standard

OLDEST = 7
"""Before it, arithmetic did not broadcast by shape but by attributes; onnx's own converter brings it up to this."""

Rewrite = Callable[[ir.Node, int], int]


@dataclass(frozen=True)
class Rule:
    """Nodes of `ops` written for opset `last` or an earlier one are rewritten for `last + 1`.

    rewrite: `(node, opset the model was written in) -> sites changed`; it raises Unsupported for what has no newer
    form.
    """

    ops: tuple[str, ...]
    last: int
    rewrite: Rewrite


class Unsupported(Exception):
    """A node that has no form in the newer opset; the message says why."""


def upgrade(model: ir.Model, target: int, where: str) -> int:
    """Rewrite the model, in place, into opset `target` where it is older; returns the opset it was written in.

    Raises GraphError, naming the node, for one that cannot be rewritten.
    """
    from aot.onnx_input.opset_rules import RULES

    before = model.graph.opset_imports.get("")
    if before is None or before >= target:
        model.graph.opset_imports.setdefault("", target)
        return before or target
    written = before
    if before < OLDEST:
        _converted(model, where)
        written = OLDEST
    for rule in sorted(RULES, key=lambda rule: rule.last):
        if not written <= rule.last < target:
            continue
        for node in tuple(model.graph.all_nodes()):
            if node.graph is None or not standard(node, *rule.ops):
                continue
            try:
                rule.rewrite(node, written)
            except Unsupported as error:
                raise GraphError(
                    f"{node.op_type} of opset {before} cannot be brought to {target}: {error}",
                    where=f"node '{node.name}' ({node.op_type}) in {where}",
                    fix=f"export the model again with opset_version={target}",
                ) from error
    for node in model.graph.all_nodes():
        node.version = None
    model.graph.opset_imports[""] = target
    model.ir_version = max(model.ir_version or 0, 10)
    return before


def _converted(model: ir.Model, where: str) -> None:
    """Bring opsets 1 to 6 to `OLDEST` with onnx's own converter, in place."""
    import onnx

    before = model.graph.opset_imports[""]
    try:
        proto = onnx.version_converter.convert_version(ir.to_proto(model), OLDEST)
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError) as error:
        raise GraphError(
            f"opset {before} cannot be brought to {OLDEST}: {' '.join(str(error).split())[:200]}",
            where=where,
            fix="export the model again with a newer opset",
        ) from error
    newer = ir.from_proto(proto)
    model.graph = newer.graph
