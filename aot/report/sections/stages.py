"""What the build did, and how long each part of it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aot.report.html import known, paragraph
from aot.report.html import section as titled
from aot.report.svg import Bar, bars


def section(data: Mapping[str, Any]) -> str:
    """Bars, for each machine that had a part in the build."""
    history = data.get("history") or ()
    halves = [half for half in history if half.get("stages")]
    if not halves:
        return titled("Stages", _bars(data.get("stages") or ()))
    parts = []
    for half in halves:
        head = f"<h3>{escape(' and '.join(half['did']))}, {escape(place(half))}</h3>" if len(halves) > 1 else ""
        parts.append(head + _bars(half["stages"]))
    return titled("Stages", *parts)


def place(half: Mapping[str, Any]) -> str:
    """The machine: its GPU, else its CPU."""
    machine = known(half, "machine")
    gpu = known(machine, "gpu").get("name")
    return str(gpu or machine.get("cpu") or "")


def _bars(stages: Sequence[Mapping[str, Any]]) -> str:
    if not stages:
        return ""
    rows = [
        Bar(one["name"], one["seconds"], "from the store" if one["cached"] else f"{one['seconds']:.1f} s")
        for one in stages
    ]
    worked = sum(one["seconds"] for one in stages if not one["cached"])
    cached = sum(bool(one["cached"]) for one in stages)
    total = f"{worked:.1f} s of work" + (f"; {cached} of {len(stages)} stages came from the store" if cached else "")
    return paragraph(total, "soft") + bars("Seconds by stage", total, rows)
