"""The precision of every layer, and why the wide ones are wide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from aot.config import QUANTIZED
from aot.report import svg
from aot.report.html import fold, legend, paragraph, table_of
from aot.report.html import section as titled

_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "fp8": 8, "int4": 4}
_HEIGHTS = {32: 62, 16: 40, 8: 22, 4: 12}
_HEIGHT, _FOOT = 92, 22

Decisions = Sequence[Mapping[str, Any]]


def section(data: Mapping[str, Any]) -> str:
    """A strip of all nodes in order, as high as they are wide in bits; then the counts, the reasons, the nodes."""
    decisions: Decisions = data.get("decisions") or ()
    title = "Precision by layer"
    if not decisions:
        known = data.get("decisions") is not None
        return titled(title, paragraph("Every node is in the precision of the network.")) if known else ""
    wide = [one for one in decisions if kept_wide(one, data["precision"])]
    return titled(
        title,
        paragraph("Every node in order, left to right: the higher, the wider.", "soft"),
        legend((f"p-{name}", f"{name} ({count})") for name, count in _counts(decisions).items() if name in _BITS),
        _strip(decisions),
        fold("By module", _modules(decisions)),
        "<h3>What was kept wide, and why</h3>" + _reasons(wide) if wide else "",
        fold(f"Kept wide, node by node ({len(wide)})", _nodes(wide)),
        fold(f"Every reason ({len(decisions)} nodes)", _reasons(decisions)),
        fold(f"Every node ({len(decisions)})", _nodes(decisions)),
    )


def kept_wide(decision: Mapping[str, Any], asked: str) -> bool:
    """Whether a node was left wider than it might have been: FP32 in a narrow network, or a layer not quantized."""
    layer = asked in QUANTIZED and decision["op"] in ("MatMul", "Gemm", "Conv", "ConvTranspose")
    wide = ("fp16", "bf16", "fp32") if layer else ("fp32",)
    return asked != "fp32" and decision["precision"] in wide


def _counts(decisions: Decisions) -> dict[str, int]:
    """Nodes by precision, the widest first; integers last."""
    found: dict[str, int] = {}
    for one in decisions:
        found[one["precision"]] = found.get(one["precision"], 0) + 1
    return dict(sorted(found.items(), key=lambda one: -_BITS.get(one[0], 0)))


def _strip(decisions: Decisions) -> str:
    """Nodes that compute in floating point or are quantized; neighbours of one precision and module are one shape."""
    shown = [one for one in decisions if one["precision"] in _BITS]
    if not shown:
        return ""
    shapes, base, start = [], _HEIGHT - _FOOT, 0
    for (precision, module), group in groupby(shown, key=lambda one: (one["precision"], one.get("module", ""))):
        nodes = list(group)
        height = _HEIGHTS[_BITS[precision]]
        first = f"{nodes[0]['node']} ({nodes[0]['op']})"
        said = f"{precision}: {first}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        said = escape(f"{said} {module}".rstrip())
        box = f'x="{start}" y="{base - height}" width="{len(nodes)}" height="{height}"'
        shapes.append(f'<rect class="p-{precision}" {box}><title>{said}</title></rect>')
        start += len(nodes)
    body = svg.stretched("".join(shapes), _HEIGHT, len(shown))
    marks = [
        svg.text(0, base - _HEIGHTS[bits] + 5, f"{bits} bit", "soft")
        for bits in sorted({_BITS[one["precision"]] for one in shown})
    ]
    said = ", ".join(f"{count} nodes in {name}" for name, count in _counts(shown).items())
    return svg.plot("Precision by layer", said, _HEIGHT, body + "".join(marks) + _blocks(shown))


def _blocks(shown: Decisions) -> str:
    """The names of the model's parts under the strip, where there is room for them."""
    depth = _depth(shown)
    parts, start, free = [], 0, 0.0
    for name, group in groupby(shown, key=lambda one: _prefix(one, depth)):
        count = len(list(group))
        left = svg.across(start / len(shown))
        label = name.rpartition(".")[2]
        if label and left >= free and count / len(shown) > 0.02:
            parts.append(
                f'<line class="grid" x1="{left:.2f}%" x2="{left:.2f}%" y1="{_HEIGHT - _FOOT}" y2="{_HEIGHT}"/>'
            )
            parts.append(svg.text(left + 0.6, _HEIGHT - 8, label, "soft"))
            free = left + 3 + 1.9 * len(label)
        start += count
    return "".join(parts)


def _depth(shown: Decisions) -> int:
    """How many components of a module's path tell the model's parts apart: the first depth at which no part is most
    of the model."""
    for depth in range(1, 7):
        parts = Counter(_prefix(one, depth) for one in shown)
        if max(parts.values()) <= len(shown) / 2:
            return depth
    return 1


def _prefix(one: Mapping[str, Any], depth: int) -> str:
    return ".".join(str(one.get("module", "")).split(".")[:depth])


def _modules(decisions: Decisions) -> str:
    """How many nodes of each part of the model are in which precision."""
    depth, names = _depth(decisions), list(_counts(decisions))
    found: dict[str, dict[str, int]] = {}
    for one in decisions:
        part = found.setdefault(_prefix(one, depth) or "the model itself", {})
        part[one["precision"]] = part.get(one["precision"], 0) + 1
    rows = [(module, *(str(part.get(name, "")) for name in names)) for module, part in found.items()]
    return table_of(("module", *names), rows)


def _reasons(decisions: Decisions) -> str:
    counts: dict[tuple[str, ...], int] = {}
    for one in decisions:
        group = (one["op"], one["precision"], one["reason"])
        counts[group] = counts.get(group, 0) + 1
    rows = sorted(((*group, str(count)) for group, count in counts.items()), key=lambda row: (-int(row[-1]), row))
    return table_of(("op", "precision", "why", "nodes"), rows)


def _nodes(decisions: Decisions) -> str:
    keys = ("node", "op", "precision", "module", "source")
    rows = [(*(one.get(key, "") for key in keys), one["reason"]) for one in decisions]
    return table_of((*keys, "why"), rows)
