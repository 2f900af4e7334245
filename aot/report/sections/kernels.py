"""Plugins: what they replaced in the model, which kernels the engine launches, and the form of its attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aot.report.html import facts, table_of
from aot.report.html import section as titled


def section(data: Mapping[str, Any]) -> str:
    """Each place where a plugin may stand, and the decision; each kernel and its digest; each attention that stays."""
    places = [
        (
            one["plugin"], one["node"], "replaced" if one["replaced"] else "left", one["why"],
            one.get("module"), one.get("source"),
        )
        for one in data.get("replaced") or ()
    ]  # fmt: skip
    launched = {
        (one["plugin"], target): one
        for target, inside in (data.get("launched") or {}).items()
        for one in inside.get("kernels") or ()
    }
    kernels = list(_kernels(data, launched))
    left = [
        (one["op"], part["target"], str(len(one.get("nodes", ())) or ""), one["why"])
        for part in data.get("kernels") or ()
        for one in part["left"]
    ]
    return titled(
        "Plugins, kernels, attention",
        table_of(("plugin", "node", "", "why", "module", "source"), places),
        table_of(("kernel", "target", "nodes", "launched", "SHA-256 of the PTX"), kernels),
        table_of(("op without a kernel", "target", "nodes", "why"), left),
        facts(_attention(data)),
    )


def _kernels(
    data: Mapping[str, Any], launched: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[tuple[str, ...]]:
    carried = {(one["plugin"], part["target"]): one for part in data.get("kernels") or () for one in part["kernels"]}
    for (plugin, target), one in {**carried, **launched}.items():
        how = "" if (plugin, target) not in launched else "from Python" if one["needs_python"] else "by the engine"
        digests = one["digests"]
        more = f" and {len(digests) - 1} more" if len(digests) > 1 else ""
        yield plugin, target, str(len(one["nodes"])), how, f"{digests[0][:16]}{more}"


def _attention(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for target, inside in (data.get("launched") or {}).items():
        name = f"attention in {target}"
        if inside.get("attention_operators"):
            yield name, f"{inside['attention_operators']} as the operator Attention"
        if inside.get("attention_kernels"):
            yield name, f"{inside['attention_kernels']} as a kernel of the plugin attention"
    for part in data.get("kernels") or ():
        for one in (part.get("attention") or {}).get("left", ()):
            yield f"attention for {part['target']}", f"{len(one['nodes'])} as two MatMuls and a Softmax: {one['why']}"
