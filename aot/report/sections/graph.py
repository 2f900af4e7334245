"""The graph as it was exported, as surgery left it, and as it is built: its nodes by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.report import svg
from aot.report.html import fold, known, legend, paragraph, table_of
from aot.report.html import section as titled

_NAMES = {"exported": "exported", "surgery": "after surgery", "final": "final, with Q/DQ and casts"}
_KINDS = {"exported": "before", "surgery": "surgery", "final": "final"}
_MOST = 14
_ROW = 34


def section(data: Mapping[str, Any]) -> str:
    """Three bars an op, the most frequent ones; all of them in a table, and what each rewrite did."""
    nodes, steps = known(data, "nodes"), list(data.get("steps") or ())
    counts = {one["step"]: one["ops"] for one in steps}
    ops = sorted({op for found in counts.values() for op in found}, key=lambda op: -_largest(counts, op))
    passes: Mapping[str, int] = next((one["passes"] for one in steps if one.get("passes")), {})
    rewritten = table_of(("rewrite", "places"), [(name, str(places)) for name, places in passes.items() if places])
    every = [(op, *(str(found.get(op, 0)) for found in counts.values())) for op in ops]
    return titled(
        "Graph before and after",
        paragraph(_said(nodes, counts, known(data, "quantized_ops"), known(data, "quantized"))),
        legend((_KINDS[step], _NAMES[step]) for step in counts),
        _plot(ops[:_MOST], counts),
        fold(f"Every op ({len(ops)})", table_of(("op", *(_NAMES[step] for step in counts)), every)) if ops else "",
        fold("What surgery rewrote", rewritten),
    )


def _largest(counts: Mapping[str, Mapping[str, int]], op: str) -> int:
    return max(found.get(op, 0) for found in counts.values())


def _said(
    nodes: Mapping[str, int],
    counts: Mapping[str, Mapping[str, int]],
    quantized: Mapping[str, int],
    total: Mapping[str, int],
) -> str:
    """`99 nodes exported, 98 after surgery, 233 in the final graph; quantized: 44 Conv and 8 Add`."""
    if not nodes:
        return ""
    parts = [f"{nodes['exported']} nodes exported"]
    if "surgery" in counts:
        parts.append(f"{sum(counts['surgery'].values())} after surgery")
    parts.append(f"{nodes['final']} in the final graph")
    ops = " and ".join(f"{count} {op}" for op, count in sorted(quantized.items(), key=lambda one: -one[1]))
    parts[-1] += f"; quantized: {ops}" if ops else ""
    parts += [f"with {total['qdq']} DequantizeLinear"] if total.get("qdq") else []
    return ", ".join(parts) + "."


def _plot(ops: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> str:
    if not ops:
        return ""
    axis = svg.linear(float(_largest(counts, op)) for op in ops)
    parts = []
    for place, op in enumerate(ops):
        y = place * _ROW + 4
        numbers = [found.get(op, 0) for found in counts.values()]
        parts.append(svg.text(0, y + 16, op))
        for offset, (step, number) in enumerate(zip(counts, numbers, strict=True)):
            if number:
                said = f"{op}, {_NAMES[step]}: {number}"
                parts.append(svg.rectangle(34, y + offset * 8, axis.at(number) * 42, 7, _KINDS[step], said))
        parts.append(svg.text(100, y + 16, " → ".join(map(str, numbers)), "strong", "end"))
    said = "; ".join(f"{op} {' to '.join(str(found.get(op, 0)) for found in counts.values())}" for op in ops)
    return svg.plot("Nodes by op", said, len(ops) * _ROW + 4, "".join(parts))
